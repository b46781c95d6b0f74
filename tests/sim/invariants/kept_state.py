"""Invariants of kept state: all nodes resume from one step, the newest whole one, and the last one is never lost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from coordinatord.core.journal import Decided
from coordinatord.core.keeping.handover import HAND_OVER_S
from coordinatord.core.keeping.known import kept_of
from coordinatord.core.machine import Coordinator
from coordinatord.core.rounds.events import Connected, Event, Reported
from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.state.member import Member
from coordinatord.core.rounds.state.run import Run
from coordinatord.core.rounds.values.records import NodeLost, NodeReleased, Record, RoundFormed, RoundStopped, RunEnded
from coordinatord.protocol.kept_state import KeptParts, KeptStep, Restoring, Resume
from coordinatord.protocol.messages import Degraded, Desired, Observed, Phase, Refused, Result
from nodeclient.core import events
from tests.sim.invariants.checkpoint_waits import CheckpointWaitLaws
from tests.sim.invariants.kept_steps import UselessSteps, came_late, is_whole, ranks_of, shards_of
from tests.sim.invariants.laws import Facts, Laws
from tests.sim.invariants.persisted_state import PersistedStateLaws
from tests.sim.kept_copies import Chain
from tests.sim.kept_memory import KeptMemory
from tests.sim.workers import Round, Training

if TYPE_CHECKING:  # the world imports its invariants
    from tests.sim.host import Host
    from tests.sim.network import Session

SETTLED_WITHIN_S = 10.0
"""The longest wait of a candidate: some tries for each copy, a heartbeat for each answer. Most take less than 2 s."""

SILENT_S = 2.5
"""A node that has been silent for longer may be cut off, or asleep."""


class CandidateLaws(Laws):
    """Watches how long steps wait to become whole.

    A step that all nodes have is made the whole one, or given up, within some seconds. Until then the older step keeps
    its place in memory, so the steps that a broken round has to do again become more.
    """

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._waits: dict[str, tuple[tuple[object, ...], float]] = {}
        """The candidate of each run with its circumstances, and since when both are as they are."""

    def note_event(self, event: Event) -> None:
        """Check each run at each event: a step that waits for ever leads to no record."""
        machine, now = self.world.daemon.machine, self.world.daemon.clock.read()
        for run in machine.jobs.values():
            candidate = kept_of(run).protection.candidate
            if candidate is None or machine.store_error is not None or not self._is_calm(run, now):
                self._waits.pop(run.id, None)
                continue
            members = ((member.node, member.incarnation, member.session.id) for member in run.members.values())
            circumstances = (self.world.daemon.life, candidate, run.durable.round, *sorted(members, key=str))
            known, since = self._waits.get(run.id, (None, now))
            if known != circumstances:
                self._waits[run.id] = circumstances, now
                continue
            text = "%s has been a candidate for %.1f s, and all nodes report"
            self.check(now - since < SETTLED_WITHIN_S, text, candidate, now - since)

    def _is_calm(self, run: Run, now: float) -> bool:
        """Whether a round goes on, and all nodes are heard as often as they should be."""
        if run.durable.state is not State.RUNNING or self.world.scenario.network.harsh:
            return False
        members = run.members.values()
        return all(member.session.id is not None and now - member.lease.heard_at < SILENT_S for member in members)


class KeptStateLaws(Laws):
    """Watches the kept state of one world."""

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self.useless = UselessSteps()
        self.persisted = PersistedStateLaws(facts, self.useless)
        self.candidates = CandidateLaws(facts)
        self.waits = CheckpointWaitLaws(facts)
        self._safe: dict[str, tuple[int, KeptStep, list[tuple[Host, int]]]] = {}
        """The last whole and protected step of each run, with the life of the coordinator, and its holders."""
        self._heard: dict[tuple[str, int], Observed] = {}
        """The last report of each node, by its incarnation."""
        self._unread: dict[Host, list[Desired]] = {}
        """The messages of the present session of each host that it has not read."""
        self._named: dict[Round, int] = {}
        """The step that all workers of a round were to keep before its end."""
        self._keep_named: dict[Round, dict[str, tuple[Host, KeptMemory]]] = {}
        """The nodes that have kept it."""
        self.kept_named = 0
        """How many rounds began from a step that was named before the end of the round before."""
        self._promised: dict[str, KeptStep] = {}
        self._copied: dict[str, tuple[tuple[object, ...], KeptStep | None]] = {}
        """The members at the last check of each run, and the step that counted as copied."""
        self._lonely: set[str] = set()
        """Runs of which a shard could have no copy at some moment since the last check."""
        self.promised = 0
        """How often another step counted as copied."""
        self.resumed = 0
        """How many rounds began from a step that was kept."""
        self._formed_at: dict[str, float] = {}
        """When the last round of each run was formed, in the clock of the coordinator."""

    def note_event(self, event: Event) -> None:
        """Note a report that the coordinator is about to handle."""
        for run in self.world.daemon.machine.jobs.values() if self.world.scenario.states_differ else ():
            self.useless.note_parts(run.id, self._parts_of(run, run.members.values(), gone=True))
        self._note_lonely()
        if self.world.scenario.copies and not self.world.scenario.network.harsh:
            for run in self.world.daemon.machine.jobs.values():
                self._judge_copies(run)
        if isinstance(event, Connected):
            self._heard[event.join.node, event.join.incarnation] = event.join.observed
        elif isinstance(event, Reported):
            _, member = self.world.daemon.machine._sessions.get(event.session, (None, None))
            if member is not None:
                self._heard[member.node, member.incarnation] = event.observed

    def sent(self, session: Session, message: Desired | Degraded | Refused) -> None:
        """Note a message that is on its way to a node."""
        if self.world.scenario.keeps is not None and isinstance(message, Desired):
            self._unread.setdefault(session.host, []).append(message)

    def happens(self, host: Host, event: events.Event) -> None:
        """Note that a node reads a message, or that those on their way are lost."""
        unread = self._unread.get(host, [])
        if isinstance(event, events.SessionOpened):
            unread.clear()
        elif isinstance(event, events.DesiredReceived) and event.desired in unread:
            del unread[: unread.index(event.desired) + 1]

    def decided(self, records: Sequence[Record]) -> None:
        """Check the choice for a round, by what nodes have reported."""
        for run, record in self.facts.of_runs(records):
            self._judge(run, record)

    def _judge(self, run: Run, record: Record) -> None:
        self.useless.note_parts(run.id, self._parts_of(run, run.members.values(), gone=True))
        for each in record.spoiled if isinstance(record, RoundFormed) else ():
            self.check(self.useless.knows(run.id, each.at), "nothing is wrong with %s", each.at)
        self.useless.note(record)
        if isinstance(record, RoundStopped):
            can_fail = record.condition != "unrestorable" or self.useless.does_resume((record.run, record.round))
            self.check(can_fail, "round %d cannot resume from nothing", record.round)
            self.persisted.stops(record)
            self._judge_planned_end(run, record)
        if isinstance(record, NodeLost):
            self.persisted.unheard.get(run.id, {}).pop(record.node, None)  # a run that ends waits for it no longer
        writes = self.world.scenario.persist_every_s is not None
        ends = {"stop_asked", "all_left", "exhausted", "all_succeeded"}
        if writes and isinstance(record, RunEnded) and record.condition in ends:
            parts = [*self._parts_of(run, _reachable(run), gone=True), *self._unheard_parts(run)]
            whole = self._whole_of(run, parts)
            self.persisted.judge_last(run, record, max((at for at in whole if at.round), default=None))
        # A node that ended while nothing could be recorded is forgotten in the same decision, and can give nothing.
        if isinstance(record, NodeReleased) and record.node in run.members:
            if record.outcome.result is Result.LEFT:
                self._judge_released(run, record.node)
                if writes and run.durable.state is State.FORMING and all(peer.leaves for peer in run.members.values()):
                    self._judge_taken_along(run, record)
            elif writes and record.outcome.result is Result.TIMED_OUT:
                self.persisted.judge_in_vain(run, record, self._newest_with(run, record.node))
        if isinstance(record, RoundFormed):
            self.persisted.begins(record)
            chosen = None if record.resume is None else record.resume.at
            nodes = [run.members[ranks.node] for ranks in record.nodes]
            self._judge_choice(run, record, nodes, chosen)
            self._formed_at[run.id] = self.world.daemon.clock.read()
            self._judge_named((record.run, record.round - 1), nodes, chosen)

    def _judge_planned_end(self, run: Run, record: RoundStopped) -> None:
        """Check that all workers are to keep one step, if the last report of each node says that all of them can.

        A coordinator that was started again has not heard all nodes when the first one asks to leave. Their workers
        would end without a common step if it did not count on them.
        """
        key = record.run, record.round
        reports = [self._heard.get((member.node, member.incarnation)) for member in run.roll.inside]
        is_whole = len(reports) == len(run.durable.order)
        able = is_whole and all(report is not None and _can_halt(report, key) for report in reports)
        lacking = record.planned and run.durable.stepped and able and not kept_of(run).halting.is_possible
        self.check(not lacking, "round %d ends without a step that all of its workers keep", record.round)

    def _judge_released(self, run: Run, node: str) -> None:
        """Check that a node which leaves takes along no step that would be whole if it had stayed.

        Nothing is checked where all nodes leave, where a round has its state or can begin without it, and where the
        node has waited long enough to give its state: also since the round was formed that is to get it.
        """
        member, others = run.members[node], [member for member in run.members.values() if member.node != node]
        goes_on = run.durable.state in {State.STARTING, State.RUNNING}
        given = goes_on and (
            run.durable.stepped or run.durable.resume is None or all(map(self._has_restored, run.roll.inside))
        )
        now, formed_at = self.world.daemon.clock.read(), self._formed_at.get(run.id, -math.inf)
        had_time = run.durable.state is State.FORMING or now >= formed_at + HAND_OVER_S
        waited = member.hands_over and kept_of(run).hand_over_by[member.node] <= now and had_time
        if given or waited or run.durable.stop_asked or all(peer.leaves for peer in others):
            return
        theirs = self._parts_of(run, [peer for peer in _reachable(run) if peer.node != node])
        whole = set(self._whole_of(run, theirs))
        newest = max(self._whole_of(run, [*theirs, *self._parts_of(run, [member], gone=True)]), default=None)
        self.check(newest is None or newest in whole, "%s leaves, and takes %s along", node, newest)

    def _judge_last(self, run: Run) -> None:
        """Check that nothing delays the last write of a run that is to end, if no worker may overwrite the step."""
        disk, members = kept_of(run).disk, run.members.values()
        is_last = run.durable.stop_asked and run.durable.state is State.FORMING and self.world.scenario.persist_every_s
        if not is_last or disk.attempt or disk.problem or self.persisted.unheard.get(run.id):
            return
        working = [member for member in members if member.observed.phase.has_workers]
        free = {part.at for part in self._parts_of(run, working) if not part.protected}
        safe = (at for at in self._candidates(run) if at.round > 0 and at not in free)
        self.persisted.judge_there(run, max(safe, default=None), "the run is to end")

    def _judge_taken_along(self, run: Run, record: NodeReleased) -> None:
        """Check that no node with the last step leaves with all others before the step is on the disk."""
        newest = self._newest_with(run, record.node)
        if any(part.big and part.at == newest for part in self._parts_of(run, [run.members[record.node]], gone=True)):
            self.persisted.judge_last(run, record, newest)

    def _newest_with(self, run: Run, node: str) -> KeptStep | None:
        """Return the newest step that is whole on a node that goes and the reachable ones together."""
        parts = [*self._parts_of(run, _reachable(run)), *self._parts_of(run, [run.members[node]], gone=True)]
        return max((at for at in self._whole_of(run, parts) if at.round), default=None)

    def _has_restored(self, member: Member) -> bool:
        kept = member.observed.kept
        return kept is not None and kept.restoring is Restoring.READY

    def _parts_of(self, run: Run, members: Iterable[Member], *, gone: bool = False) -> list[KeptParts]:
        """Return the parts of a run that its members report, without released ones unless `gone`."""
        return [
            part
            for member in members
            if (gone or member.durable.outcome is None) and member.observed.kept is not None
            if member.keeper is not None and member.observed.run == run.id
            for part in member.observed.kept.parts
        ]

    def _unheard_parts(self, run: Run) -> list[KeptParts]:
        """Return the parts of members that have not been heard since the coordinator was started: it waits for them."""
        unheard = self.persisted.unheard.get(run.id, {})
        there = [host for host in self.world.hosts.values() if unheard.get(host.node) == host.incarnation]
        memories = [host.memory for host in there if host.memory is not None]
        return [stored.parts for memory in memories for stored in memory.stored if stored.run == run.id]

    def _judge_choice(self, run: Run, record: RoundFormed, nodes: list[Member], chosen: KeptStep | None) -> None:
        able = all(member.keeper is not None for member in nodes)
        self.check(able or chosen is None, "round %d resumes where a node keeps nothing", run.durable.round)
        best = max(self._candidates(run), default=None) if able else None
        best = self.persisted.chooses(run, record, nodes, best)
        self.check(chosen == best, "%s is chosen, and %s is the newest that is whole", chosen, best)

    def named(self, host: Host, key: Round, step: int, promised: int | None) -> None:
        """Check the step that the workers of a node are to keep: one for all nodes, which no worker has passed."""
        self.check(
            promised is not None and promised <= step, "%s keeps step %d and promised %s", host.name, step, promised
        )
        known = self._named.setdefault(key, step)
        self.check(known == step, "%s is to keep step %d of round %d, and others %d", host.name, step, key[1], known)

    def finds_place(self, host: Host, step: int, place: int | None) -> None:
        """Check that a node has a place for the last step of a round."""
        self.check(place is not None, "%s has no place for step %d, the last one of its round", host.name, step)

    def keeps_named(self, host: Host, key: Round) -> None:
        """Note that a node keeps the named step, the last one of a round; it may be in another round by now."""
        assert host.memory is not None
        self._keep_named.setdefault(key, {})[host.node] = (host, host.memory)

    def _judge_named(self, last: Round, nodes: list[Member], chosen: KeptStep | None) -> None:
        """Check that no step is lost where all nodes of the last round have kept the one that was named."""
        kept = self._keep_named.get(last, {})
        formed = self.facts.formed.get(last)
        if formed is None or {ranks.node for ranks in formed.nodes} != kept.keys():
            return
        there = all(host.memory is memory and not memory.withdrawn for host, memory in kept.values())
        same = {host.incarnation for host, _ in kept.values()} <= {member.incarnation for member in nodes}
        if there and same and all(member.keeper for member in nodes):
            at = KeptStep(last[1], self._named[last])
            is_chosen = chosen == at or self.useless.excludes(last[0], at)
            self.check(is_chosen, "all nodes have kept %s, and %s is chosen", at, chosen)
            self.kept_named += 1

    def _candidates(self, run: Run) -> Iterable[KeptStep]:
        """Return the steps that are whole, and have not proved useless."""
        return self._whole_of(run, self._parts_of(run, _reachable(run)))

    def _whole_of(self, run: Run, parts: list[KeptParts]) -> Iterable[KeptStep]:
        """Return the steps of which these parts are whole, and that have not proved useless."""
        for at in {part.at for part in parts}:
            if not self.useless.excludes(run.id, at) and is_whole([part for part in parts if part.at == at]):
                yield at

    def fetched(self, host: Host, resume: Resume, chains: set[Chain]) -> None:
        """Check that a node has fetched one state."""
        self.check(len(chains) == 1, "%s has a mixture of %d states of step %d", host.name, len(chains), resume.step)

    def begins(self, training: Training) -> None:
        """Check that all workers of a round begin from one state: the recorded one, or none."""
        states = {None if host.memory is None else host.memory.resumed for host in training.hosts.values()}
        steps = {None if state is None else state[0] for state in states}
        self.check(len(steps) == 1, "round %d begins from %s", training.key[1], steps)
        (at,) = steps
        self.check(at is None or len(states) == 1, "round %d begins from different states", training.key[1])
        formed = self.facts.formed[training.key].resume
        recorded = None if formed is None else formed.at
        self.check(at == recorded, "round %d begins from %s, not from %s", training.key[1], at, recorded)
        self.resumed += at is not None

    def restored(self, machine: Coordinator, past: Sequence[Decided]) -> None:
        """Forget what was not recorded."""
        self.useless.restored(past)

    def settled(self, machine: Coordinator) -> None:
        """Check that whole and protected steps are still there."""
        for run in machine.jobs.values():
            self._judge_failed(run, recording=machine.store_error is None)
            if not self.facts.leaves_out(machine):
                self._judge_index(run)
            self._judge_copied(run)
            self._judge_last(run)
            resume = run.durable.resume
            # Once a round has stepped, a later step may have taken the place of the one that it resumed from. What is
            # on the disk need not be in memory as well.
            in_memory = resume is not None and resume.disk is None and not run.durable.stepped
            whole = kept_of(run).protection.whole or (resume.at if resume is not None and in_memory else None)
            if whole is None or run.durable.state.ended:
                self._safe.pop(run.id, None)
                continue
            known = self._safe.get(run.id)
            if known is None or known[:2] != (self.world.daemon.life, whole):
                known_to_have = kept_of(run).index.holders(
                    whole
                )  # a node that is out of reach may have it too, and overwrite it
                there = [
                    holder
                    for holder in self._holders(run.id, whole)
                    if holder[0].node in known_to_have
                    and not self._may_overwrite(holder[0], run.members[holder[0].node], whole)
                    and not came_late(known_to_have, holder[0].node)
                ]
                self._safe[run.id] = (self.world.daemon.life, whole, there)
            for host, incarnation in self._safe[run.id][2]:
                memory = host.memory
                if memory is None or host.incarnation != incarnation or memory.key[0] != run.id:
                    continue
                has_it = any((stored.run, stored.parts.at) == (run.id, whole) for stored in memory.stored)
                self.check(has_it or whole in memory.withdrawn, "%s has overwritten %s", host.name, whole)

    def _judge_failed(self, run: Run, *, recording: bool) -> None:
        """Check that a round ends if one of its nodes cannot get its state, or no longer finds it on the disk."""
        goes_on = run.durable.state in {State.STARTING, State.RUNNING}
        for member in run.roll.inside if recording and goes_on else ():
            observed, kept = member.observed, member.observed.kept
            here = (observed.run, observed.round) == (run.id, run.durable.round)
            restoring = kept.restoring if here and kept is not None else Restoring.NOTHING
            lost = restoring is not Restoring.READY and self.persisted.is_lost_to(run, member)
            fails = restoring is Restoring.FAILED or (lost and not run.durable.stepped)
            self.check(not fails, "%s cannot get its state, and round %d goes on", member.node, run.durable.round)

    def _judge_index(self, run: Run) -> None:
        """Check that the coordinator counts the last reports of members about this run, and nothing else."""
        for member in () if run.durable.state.ended else run.members.values():
            last = self._heard.get((member.node, member.incarnation))
            if last is None or member.session.id is None or member.durable.outcome is not None:
                continue
            kept = last.kept.parts if last.kept is not None and last.run == run.id else ()
            counted = kept_of(run).index._of_node.get(member.node, ())
            self.check(counted == kept, "of %s counts %s, and it keeps %s", member.node, counted, kept)
        gone = kept_of(run).index._of_node.keys() - run.members.keys()
        self.check(not gone, "what %s have kept counts, and they are gone", gone)

    def _judge_copied(self, run: Run) -> None:
        """Check that a copied step outlives the loss of any one host, and of any one rack where there are several."""
        at = None if run.durable.state.ended else kept_of(run).copied
        self._judge_promise(run, at)
        hosts = {host.node: host for host in self.world.hosts.values() if host.memory is not None}
        if at is None or any(host.memory and at in host.memory.withdrawn for host in hosts.values()):
            return
        self.promised += at != self._promised.get(run.id)
        self._promised[run.id] = at
        held: dict[str, list[KeptParts]] = {}
        lost = set()
        for node, believed in kept_of(run).index.holders(at).items():
            host, member = hosts.get(node), run.members[node]
            held[node] = []
            if host is not None and host.memory is not None and host.incarnation == member.incarnation:
                held[node] = [
                    stored.parts for stored in host.memory.stored if (stored.run, stored.parts.at) == (run.id, at)
                ]
            if not ranks_of(believed) <= ranks_of(held[node]):
                lost.add(node)
        topologies = {node: run.members[node].offer.topology for node in held}
        racks = len({member.offer.topology for member in run.roll.inside}) > 1
        groups = [
            {other for other in held if racks and topologies[other] == topologies[node]} | {node} for node in held
        ]
        for group in groups:
            if lost <= group:
                left = [part for node, parts in held.items() if node not in group for part in parts]
                self.check(left and is_whole(left), "%s counts as copied, and is lost with %s", at, sorted(group))

    def _judge_copies(self, run: Run) -> None:
        """Check that the node which is shown to have a copy of another one's shards really has it.

        It is called only where messages come in order: an old message may change the protected steps.
        """
        for node in () if run.durable.state.ended else run.members:
            taker, at = kept_of(run).copy_of(node) or ("", None)
            host = next(
                (host for host in self.world.hosts.values() if host.node == taker and host.memory is not None), None
            )
            if at is None or host is None or host.memory is None or at in host.memory.withdrawn:
                continue
            if host.incarnation != run.members[taker].incarnation or host.memory.key[0] != run.id:
                continue  # the coordinator does not know yet that the node which had it is gone
            others = [parts for holder, parts in kept_of(run).index.holders(at).items() if holder not in {node, taker}]
            alone = shards_of(kept_of(run).index.holders(at).get(node, ())) - shards_of(
                part for parts in others for part in parts
            )
            there = shards_of(
                stored.parts for stored in host.memory.stored if (stored.run, stored.parts.at) == (run.id, at)
            )
            self.check(alone <= there, "%s has shards %s of %s, and %s is shown to", node, alone - there, at, taker)

    def _judge_promise(self, run: Run, at: KeptStep | None) -> None:
        """Check that no older step counts as copied than a moment ago, while nobody comes, goes or lacks memory.

        Nothing is checked while a shard can have no copy: a newer step without copies is preferred then. A step from
        which a round could not resume does not count: it was damaged. Where messages come out of order, an older report
        may hide what is there.
        """
        members = ((member.node, member.incarnation, member.session.id) for member in run.members.values())
        circumstances = (self.world.daemon.life, run.durable.round, *sorted(members, key=str))
        before, promised = self._copied.get(run.id, ((), None))
        # A step that is protected for the disk alone may go as soon as it is written, or no longer to be written.
        self._copied[run.id] = (
            circumstances,
            at if at in {kept_of(run).protection.whole, kept_of(run).protection.candidate} else None,
        )
        was_lonely = run.id in self._lonely
        self._lonely.discard(run.id)
        self._note_lonely()
        memories = [host.memory for host in self.world.hosts.values() if host.memory is not None]
        damaged = any(memory.withdrawn for memory in memories) or (promised and self.useless.excludes(run.id, promised))
        lonely = was_lonely or run.id in self._lonely
        excused = damaged or lonely or self.world.scenario.network.harsh
        if promised is not None and circumstances == before and not excused and not run.durable.state.ended:
            self.check(at is not None and at >= promised, "%s counted as copied, and now %s does", promised, at)

    def _note_lonely(self) -> None:
        for run in self.world.daemon.machine.jobs.values():
            copies = kept_of(run).copies
            if copies.problems or any(plan.uncopied for plan in copies.plans.values()):
                self._lonely.add(run.id)

    def _may_overwrite(self, host: Host, member: Member, at: KeptStep) -> bool:
        """Whether a node does not know yet that it is to protect a step, or is about to read that it need not.

        So it is where workers go on that were left behind, and where a round goes back to a step that was let go for a
        newer one. If the step is overwritten, the next round cannot get it, and another step is chosen.
        """
        if any(message.protected is not None and at not in message.protected for message in self._unread.get(host, ())):
            return True
        goes_on = not member.durable.in_round and bool(host.workers.alive)
        return goes_on and host.memory is not None and at not in host.memory.protected

    def judge_end(self) -> None:
        """Check that all workers that live have what they resume from, some time after the last fault."""
        for host in self.world.hosts.values():
            training, memory = host.workers.training, host.memory
            waits = training is not None and memory is not None and memory.key == training.key and host.workers.alive
            has_all = memory is None or memory.resumed is not None
            self.check(has_all or not waits, "stuck: %s waits for what its workers resume from", host.name)

    def _holders(self, run: str, at: KeptStep) -> list[tuple[Host, int]]:
        hosts = [host for host in self.world.hosts.values() if host.memory is not None]
        return [
            (host, host.incarnation)
            for host in hosts
            if host.memory is not None
            and any((stored.run, stored.parts.at) == (run, at) for stored in host.memory.stored)
        ]


def _reachable(run: Run) -> list[Member]:
    return [member for member in run.members.values() if member.session.id is not None and not member.lease.expired]


def _can_halt(report: Observed, key: Round) -> bool:
    here = report.phase is Phase.RUNNING and (report.run, report.round) == key
    return here and report.kept is not None and report.kept.can_halt
