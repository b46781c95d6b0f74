"""Invariants of every history, checked after every event: those of DESIGN.md.

Here are the coordinator's decisions, records and messages; `nodes` checks how nodes carry them out.
"""

from __future__ import annotations

from collections.abc import Sequence

from coordinatord.core.journal import Decided
from coordinatord.core.machine import Coordinator
from coordinatord.core.rounds.state.durable import DurableRun, State
from coordinatord.core.rounds.state.run import Run
from coordinatord.core.rounds.values.records import (
    JobForgotten,
    NodeJoined,
    NodeLost,
    NodesHeard,
    NodeSucceeded,
    Record,
    RoundEnded,
    RoundFormed,
    RoundStopped,
    RunEnded,
)
from coordinatord.protocol.codec import decode, encode
from coordinatord.protocol.messages import Degraded, Desired, Goal, Join, RefusalCode, Refused, Result
from tests.sim.durable_replica import differences, timeless
from tests.sim.invariants.laws import WHOLE_EVERY, Facts, Laws
from tests.sim.invariants.successors import SuccessorLaws
from tests.sim.network import Session
from tests.sim.workers import Round

ENCODED_EVERY = 97
"""One in so many messages to a node is encoded and decoded."""

WELL_FOR_S = 12.0
"""A node that was healthy for so long must not be lost: twice a lease, and some seconds to connect."""


class RoundLaws(Laws):
    """Watches one world."""

    def __init__(self, facts: Facts, successors: SuccessorLaws) -> None:
        super().__init__(facts)
        self._successors = successors
        self._ended: dict[str, RunEnded] = {}
        """How each run ended."""
        self.charged_unseen = 0
        """How many rounds were charged of which the failure could not be seen. None should be; see "How it is proved"
        in DESIGN.md."""
        self.done_without = 0
        """Runs that succeeded after a node that had done its part was gone."""
        self._succeeded: set[tuple[Round, str]] = set()
        """The nodes of each round that had done their part, by the records."""
        self._rounds_sent: dict[str, int] = {}
        """The last round of each run that was sent to any node."""
        self._back: set[tuple[str, int]] = set()
        """Node and incarnation of those that have joined since the coordinator started."""
        self._newest: dict[tuple[str, str], int] = {}
        """The incarnation that joined last, by run and node: an older one stays replaced when that one has left."""
        self._messages_sent = 0

    # Decisions

    def decided(self, records: Sequence[Record]) -> None:
        """Check what was decided by the state of the world at this moment, durable or not."""
        jobs = self.world.daemon.machine.jobs
        replaced = False
        for record in records:
            self.check(bool(record.reason), "a record without a reason: %s", record)
            if isinstance(record, RoundStopped) and record.condition == "node_lost":
                self._judge_missed(record, [other.node for other in records if isinstance(other, NodeLost)])
            if isinstance(record, NodeLost) and record.reason.startswith("replaced by"):
                replaced = True
            elif isinstance(record, NodeLost):
                self._judge_loss(record)
            elif isinstance(record, RoundStopped) and not record.planned and not replaced:
                self._judge_stop(record)
            elif isinstance(record, NodesHeard):
                self.check(self.world.daemon.machine.sessions > 0, "no node can be heard: %s", record.reason)
        for run in jobs.values():
            self.check(run.durable.restarts_used <= run.spec.max_restarts, "the budget is overdrawn")

    def _judge_loss(self, record: NodeLost) -> None:
        world = self.world
        key = (record.node, record.incarnation)
        since_start = world.queue.now - world.daemon.started_at
        grace = world.scenario.policy.restart_grace_s * (1.0 - world.scenario.skew) / (1.0 + world.scenario.skew)
        if world.daemon.life > 1 and key not in self._back:
            self.check(since_start >= grace, "%s was lost %.1f s after a start", record.node, since_start)
        for host in world.hosts.values():
            if (host.node, host.incarnation) == key:
                well = host.well and world.queue.now - host.troubled_until > WELL_FOR_S
                self.check(not well, "%s is well but was lost: %s", record.node, record.reason)

    def _judge_stop(self, record: RoundStopped) -> None:
        key = (record.run, record.round)
        training = self.world.trainings.get(key)
        if record.condition in {"unrestorable", "hung", "diverged"}:
            return  # see `kept_state`, `hangs` and `replicas`
        if key not in self.facts.disturbed and training is not None and not training.broken:
            quiet = self.facts.was_quiet(key)
            self.check(not quiet, "round %d was stopped for nothing: %s", record.round, record.reason)

    def _judge_missed(self, record: RoundStopped, lost: list[str]) -> None:
        """Check that a round which is stopped for lost nodes has lost one that had not done its part."""
        done = [node for node in lost if ((record.run, record.round), node) in self._succeeded]
        self.check(not lost or done != lost, "round %d is stopped for %s, whose part is done", record.round, lost)

    # Records

    def durable(self, record: Record) -> None:
        """Check what becomes durable, in its order."""
        over = record.run in self._ended and not isinstance(record, JobForgotten)
        self.check(not over, "run %s goes on after its end: %s", record.run, record)
        match record:
            case NodeJoined():
                self._newest[record.run, record.node] = record.incarnation
            case RoundFormed():
                self._judge_formed(record)
            case NodeSucceeded():
                self._succeeded.add(((record.run, record.round), record.node))
            case RoundEnded():
                self._judge_ended(record)
            case RunEnded():
                self._judge_run(record)

    def _judge_formed(self, record: RoundFormed) -> None:
        run = self.facts.replica.jobs[record.job]
        self.check(record.round > run.round, "rounds must be numbered upward: %d after %d", record.round, run.round)
        self.check((record.run, record.round) not in self.facts.formed, "round %d was formed before", record.round)
        self.check(run.state is State.FORMING, "a round is formed while one is %s", run.state)
        spec = run.spec
        self.check(spec.nodes_min <= len(record.nodes) <= spec.nodes_max, "a round of %d nodes", len(record.nodes))
        short = "all that --nnodes allows" in record.reason and len(record.nodes) < spec.nodes_max
        self.check(not short, "round %d counts as full with %d nodes", record.round, len(record.nodes))
        nodes = [ranks.node for ranks in record.nodes]
        self.check(len(set(nodes)) == len(nodes), "a node twice in a round: %s", nodes)
        given: list[int] = []
        for place, ranks in enumerate(record.nodes):
            self.check(ranks.group_rank == place, "group rank %d at place %d", ranks.group_rank, place)
            given += range(ranks.first_rank, ranks.first_rank + ranks.workers)
            member = run.members.get(ranks.node)
            self.check(member is not None and member.outcome is None, "%s is no member", ranks.node)
            self.check(member is not None and member.offer.workers == ranks.workers, "%s brings others", ranks.node)
        self.check(given == list(range(len(given))), "ranks must be given once each, from 0 upward: %s", given)
        before = [node for node in run.order if node in set(nodes)]
        kept = [node for node in nodes if node in set(run.order)]
        self.check(before == kept, "survivors must keep their order: %s after %s", kept, before)
        if len(nodes) >= len(run.order):
            self._judge_places(run, record)

    def _judge_places(self, run: DurableRun, record: RoundFormed) -> None:
        """Check that no survivor changes its rank if as many nodes have come as are gone; all have as many workers."""
        for ranks in record.nodes:
            was = run.order.get(ranks.node, ranks)
            same = (was.group_rank, was.first_rank) == (ranks.group_rank, ranks.first_rank)
            self.check(same, "%s moves from rank %d to %d", ranks.node, was.first_rank, ranks.first_rank)

    def _judge_ended(self, record: RoundEnded) -> None:
        key = (record.run, record.round)
        if record.charged:
            self.facts.charged[record.run] += 1
            known = key in self.facts.genuine or key in self.facts.unseen
            self.check(known, "round %d was charged without a failure: %s", record.round, record.reason)
            self.charged_unseen += key not in self.facts.genuine
        elif key in self.facts.genuine and key not in self.facts.stopped_on_purpose | self.facts.disturbed:
            quiet = self.facts.was_quiet(key)
            self.check(not quiet, "a failure in round %d was not charged: %s", record.round, record.reason)
        run = self.facts.replica.jobs[record.job]
        done = all((key, node) in self._succeeded for node in run.order)
        self.check(not done, "round %d is followed by another one, and all its workers had succeeded", record.round)
        charged = self.facts.charged[record.run]
        self.check(record.restarts_used == charged, "%d restarts used, %d charged", record.restarts_used, charged)
        self.check(charged <= run.spec.max_restarts, "the budget is overdrawn")

    def _judge_run(self, record: RunEnded) -> None:
        outcome = record.outcome
        well = outcome.result is Result.SUCCEEDED
        self.check(well == (outcome.exit_code == 0), "%s with exit code %d", outcome.result, outcome.exit_code)
        if well:
            key = (record.run, self.facts.replica.jobs[record.job].round)
            workers = sum(ranks.workers for ranks in self.facts.formed[key].nodes)
            exited = self.world.training(key).exited_well
            self.check(exited == workers, "succeeded when %d of %d workers had", exited, workers)
            run = self.facts.replica.jobs[record.job]
            self.done_without += not {ranks.node for ranks in self.facts.formed[key].nodes} <= run.members.keys()
        self._ended[record.run] = record

    def settled(self, machine: Coordinator) -> None:
        """Check that the replayed records give the state in memory."""
        durable, replayed = machine.cluster.durable, self.facts.replica.cluster
        if durable != replayed:
            self.check(False, "memory and store differ: %s", "; ".join(differences(durable, replayed)))
        if self.facts.commits % WHOLE_EVERY == 0:
            for run in machine.jobs.values():
                self._judge_index(run)

    def _judge_index(self, run: Run) -> None:
        for member in run.members.values():
            state = member.state_in(run.id, run.durable.round)
            self.check(member.state is state, "%s is filed as %s: %s", member.node, member.state, state)
        self.check(run.roll.workers == sum(m.offer.workers for m in run.members.values()), "workers are miscounted")

    # The coordinator's lives

    def crashed(self) -> None:
        """Note that the coordinator has died."""
        self._back.clear()

    def set_back(self, records: Sequence[Record], now: float) -> None:
        """Note that the store holds these records alone, and no longer all that was sent."""
        self._rounds_sent.clear()
        done = [record for record in records if isinstance(record, NodeSucceeded)]
        self._succeeded = {((record.run, record.round), record.node) for record in done}

    def joined(self, join: Join) -> None:
        """Note that a node has come, or come back."""
        self._back.add((join.node, join.incarnation))

    def restored(self, machine: Coordinator, past: Sequence[Decided]) -> None:
        """Check that a coordinator which starts knows all that its forerunner recorded, and so all that was sent."""
        before = timeless(self.facts.replica.cluster)
        self.facts.replica.begin_life(past)
        found = differences(timeless(self.facts.replica.cluster), before)
        self.check(not found, "the coordinator comes back different: %s", "; ".join(found))
        for run in machine.jobs.values():
            self._judge_index(run)
            sent = self._rounds_sent.get(run.id, 0)
            # No round follows in a run that is over.
            known = run.durable.state.ended or run.durable.round >= sent
            self.check(known, "round %d was sent, and %d is remembered", sent, run.durable.round)
            self.check(
                run.durable.restarts_used == self.facts.charged[run.id],
                "%d charges are remembered",
                run.durable.restarts_used,
            )

    # Messages

    def sent(self, session: Session, message: Desired | Degraded | Refused) -> None:
        """Check that a message to a node rests on what is durable."""
        if isinstance(message, Refused):
            self._judge_refusal(session, message)
            return
        host = session.host
        self._messages_sent += 1
        if self._messages_sent % ENCODED_EVERY == 0:
            self.check(decode(encode(message), Desired, Degraded) == message, "the wire changes %s", message)
        if isinstance(message, Degraded):
            return
        if message.goal is Goal.EXIT:
            mine = self.facts.replica.released.get((message.run, host.node, session.incarnation))
            known_outcomes = {self.facts.replica.outcomes.get(message.run), mine}
            known = message.outcome in known_outcomes or self._successors.came_late(session, message)
            self.check(known, "%s is sent an outcome that is not durable: %s", host.name, message)
            return
        run = self.facts.replica.jobs.get("job")
        known = run is not None and run.id == message.run
        self.check(known, "%s is sent run %s, which a crash could forget", host.name, message.run)
        assert run is not None
        self.check(message.round <= run.round, "%s is sent round %d, which is not durable", host.name, message.round)
        if message.round > self._rounds_sent.get(run.id, 0):
            self._rounds_sent[run.id] = message.round
        if message.goal is Goal.RUN:
            self._judge_assignment(session, message)
        elif message.goal is Goal.STOP:
            member = run.members.get(host.node)
            goes_on = run.round == message.round and run.state in {State.STARTING, State.RUNNING}
            inside = member is not None and member.in_round and member.incarnation == session.incarnation
            self.check(not (goes_on and inside), "%s is to stop a round that goes on", host.name)

    def _judge_assignment(self, session: Session, message: Desired) -> None:
        formed = self.facts.formed.get((message.run, message.round))
        self.check(formed is not None, "%s is sent a round that is not durable", session.host.name)
        assert formed is not None
        part = message.assignment
        assert part is not None
        mine = formed.nodes[part.group_rank]
        same = (mine.node, mine.first_rank, mine.first_role_rank) == (
            session.host.node,
            part.first_rank,
            part.first_role_rank,
        )
        self.check(same, "%s is sent ranks that are not its own: %s", session.host.name, part)
        whole = part.world_size == formed.nodes[-1].first_rank + formed.nodes[-1].workers
        self.check(whole and part.group_world_size == len(formed.nodes), "%s: world size", session.host.name)
        self.check(part.master_port == formed.master_port, "%s is sent another port", session.host.name)
        self.check(
            part.restarts_used == self.facts.charged[message.run], "%s is sent another budget", session.host.name
        )

    def _judge_refusal(self, session: Session, refused: Refused) -> None:
        self.check(bool(refused.message), "%s is refused without a reason", session.host.name)
        stranger = refused.code is RefusalCode.FORBIDDEN
        self.check(not stranger, "%s is refused its own name: %s", session.host.name, refused.message)
        if refused.code is RefusalCode.SUPERSEDED and refused.retry:
            used = session.host.session is session and session.incarnation == session.host.incarnation
            self.check(not used, "%s is turned away from the connection that it uses", session.host.name)
        elif refused.code is RefusalCode.SUPERSEDED:
            newest = self._newest.get((self.facts.replica.jobs["job"].id, session.host.node))
            known = newest is not None and newest != session.incarnation
            self.check(
                known or self.facts.replica.jobs["job"].state.ended,
                "%s is superseded by no process that is recorded",
                session.host.name,
            )
