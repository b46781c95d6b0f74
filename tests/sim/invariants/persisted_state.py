"""Invariants of steps on a disk: a whole step stays whole, and no training begins anew beside one."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from typing import TYPE_CHECKING

from coordinatord.core.keeping.known import kept_of
from coordinatord.core.keeping.shards import are_whole
from coordinatord.core.keeping.write_plan import END_S
from coordinatord.core.keeping.write_progress import RETRY_S, WriteAttempt
from coordinatord.core.machine import Coordinator
from coordinatord.core.rounds.events import Event, Reported
from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.state.member import UNHEARD, Member
from coordinatord.core.rounds.state.run import Run
from coordinatord.core.rounds.values.records import NodeReleased, RoundFormed, RoundStopped, RunEnded
from coordinatord.protocol.kept_state import KeptStep, PersistState
from coordinatord.protocol.messages import Observed
from nodeclient.keeping.disk.disk_thread import STALL_S
from tests.sim.invariants.kept_steps import UselessSteps
from tests.sim.invariants.laws import Facts, Laws
from tests.sim.invariants.root_cause import ROUGHLY
from tests.sim.kept_disk import NOTICED_S, Directory, OnDisk, Step
from tests.sim.kept_memory import KeptMemory

if TYPE_CHECKING:  # the world imports its invariants
    from tests.sim.host import Host

STANDS_STILL_S = 5.0
"""A coordinator without an event for so long stood still."""


class PersistedStateLaws(Laws):
    """Watches the directory of one world, and the decisions about it."""

    def __init__(self, facts: Facts, useless: UselessSteps) -> None:
        super().__init__(facts)
        self._useless = useless
        self._newest: dict[int, OnDisk] = {}
        """The newest step that was whole in each directory, keyed by the directory's `id`."""
        self._on_disk: set[tuple[str, int]] = set()
        """Runs with a step on the disk, by the reports to the coordinator, with its life."""
        self._finders: dict[tuple[str, int], set[str]] = {}
        """The nodes that have reported a step of any run, keyed by their own run and the life of the coordinator. They
        may be gone. When one of them finds nothing any more, all are forgotten: the step may have been deleted."""
        self._read: dict[tuple[str, int], int] = {}
        """The serial of the step that the nodes of a round have read."""
        self._stopped: dict[str, float] = {}
        """When the last round of each run was stopped."""
        self._wrote_at: dict[str, float] = {}
        """When a node of each run last wrote to the disk, by the coordinator's clock; infinite if nothing is to be
        written."""
        self.unheard: dict[str, dict[str, int]] = {}
        """The incarnation of each member that has not been heard since the coordinator was started, by run and node."""
        self._waits: dict[str, tuple[int, float]] = {}
        """The life of the coordinator, and the time since which a step of each run waits for the disk."""
        self._attempts: dict[str, int] = {}
        """The last attempt of each run to write a step."""
        self._failed_in_stop: defaultdict[tuple[str, int, int], dict[str, int]] = defaultdict(dict)
        """The nodes that failed to write while workers ended, each with its incarnation, by run, life of the
        coordinator and attempt."""
        self._heard_at = 0.0
        """When the coordinator last received anything."""
        self._shown: dict[tuple[str, int], KeptStep | None] = {}
        """The newest step on the disk by the coordinator, by run and life of the coordinator."""
        self.fell = 0
        """How often that became an older one."""
        self.written = 0
        """How many steps became whole."""
        self.resumed = 0
        """How many rounds were to resume from the disk."""

    # The disk

    def is_whole(self, directory: Directory, of: Step) -> None:
        """Check a step that is made whole, before older ones are dropped."""
        found = directory.find(of)
        assert found is not None
        shards = {part.first_shard for part in found.parts if part.big}
        self.check(len(shards) == found.parts[0].shards, "step %s is whole without all shards: %s", of, shards)
        self.check(len(found.chains) == 1, "step %s is a mixture of %d states", of, len(found.chains))
        useful = (step.of for step in directory.whole if not self._is_useless(step.of))
        later = [each for each in useful if each[0] == of[0] and each[1] > of[1]]
        newer = directory.whole[0].of == of
        self.check(not (later and newer), "step %s becomes the newest one, beside %s", of, later)
        self.written += 1
        self._newest[id(directory)] = directory.whole[0]

    def read(self, host: Host, found: OnDisk) -> None:
        """Check that all nodes of a round read the same step."""
        assert host.memory is not None
        serial = self._read.setdefault(host.memory.key, found.serial)
        self.check(serial == found.serial, "%s reads number %d, and others %d", host.name, found.serial, serial)

    # Decisions

    def chooses(self, run: Run, record: RoundFormed, nodes: list[Member], memory: KeptStep | None) -> KeptStep | None:
        """Return the step to resume from, given the one in memory; check that the round does not begin anew."""
        chosen = record.resume
        found = {member.node: self._found(member) for member in nodes}
        all_find = set.intersection(*(set(steps) for steps in found.values())) if found else set()
        serials = next(iter(found.values()), {})
        able = all(member.keeper is not None for member in nodes)
        of = max(all_find, key=lambda of_step: serials[of_step], default=None) if able else None
        disk = None if of is None else KeptStep(of[1].round if of[0] == run.id else 0, of[1].step)
        if chosen is None:
            some = next((member.node for member in nodes if found[member.node] or self._is_hindered(member)), None)
            self.check(some is None, "round %d begins anew, and %s sees a step", record.round, some)
            is_on_disk = (run.id, self.world.daemon.life) in self._on_disk
            self.check(not is_on_disk, "round %d begins anew, and its run has a step on the disk", record.round)
            finders = self._note_finders(run)
            self.check(not finders, "round %d begins anew, and %s had found a step", record.round, finders)
        from_disk = disk is not None and (memory is None or disk > memory)
        self.resumed += from_disk
        if chosen is not None and chosen.disk is not None:
            named = (chosen.disk.run, KeptStep(chosen.disk.round, chosen.step))
            self.check(named == of, "round %d resumes from %s on the disk, not %s", record.round, named, of)
        return disk if from_disk else memory

    def is_lost_to(self, run: Run, member: Member) -> bool:
        """Whether a round resumes from a step on the disk that one of its nodes no longer finds, as all have said."""
        point = run.durable.resume
        if point is None or point.disk is None or not kept_of(run).index.all_heard:
            return False
        return (point.disk.run, KeptStep(point.disk.round, point.step)) not in self._found(member)

    def begins(self, record: RoundFormed) -> None:
        """Note that a round begins."""
        self._stopped.pop(record.run, None)

    def stops(self, record: RoundStopped) -> None:
        """Note when a round is stopped."""
        self._stopped[record.run] = self.world.queue.now

    def judge_last(self, run: Run, record: RunEnded | NodeReleased, kept: KeptStep | None) -> None:
        """Check that a run which succeeds or is stopped, or whose nodes all leave, has its last whole step on the disk.

        Attempts go on until there is no time for another one, or nothing was written for long. Then the reason of the
        end names the lost step.
        """
        on_disk = re.search(r"; step ([\d,]+) is on the disk", record.reason)
        if on_disk is not None and not self.world.disks.was_unmounted:
            step = int(on_disk[1].replace(",", ""))
            steps = {(of_run, at.step) for of_run, at in (each.of for each in self.world.disks.shared.whole)}
            just = any(self._was_just_deleted(of) for of in self.world.disks.deleted if of[1].step == step)
            self.check((run.id, step) in steps or just, "%r, and it is not", record.reason)
        now = self.world.queue.now
        waited_s = now - self._stopped.get(run.id, now)
        if not self._is_stuck(run) and waited_s < ROUGHLY * (END_S - RETRY_S):
            self.judge_there(run, kept, f"{record.reason!r}:")
        elif not self._is_there(run, kept):
            self.check("is not on the disk" in record.reason, "%r, and nothing about %s", record.reason, kept)

    def judge_in_vain(self, run: Run, record: NodeReleased, kept: KeptStep | None) -> None:
        """Check that a node which has waited in vain takes along no step that it was to write to the disk.

        Nothing is checked while a restarted coordinator has not heard all nodes. If an attempt has failed, the reason
        has to name the lost step, and the node does not wait for the next attempt.
        """
        attempt = kept_of(run).disk.attempt
        if self.unheard.get(run.id) or (attempt is not None and record.node not in attempt.writers):
            return
        if kept_of(run).disk.problem or self._is_stuck(run):
            is_named = "is not on the disk" in record.reason or self._is_there(run, kept)
            self.check(is_named, "%r, and nothing about %s", record.reason, kept)
        else:
            self.judge_there(run, kept, f"{record.node} has gone")

    def _is_stuck(self, run: Run) -> bool:
        idle_s = self.world.daemon.clock.read() - self._wrote_at.get(run.id, math.inf)
        return idle_s >= ROUGHLY * STALL_S

    def judge_there(self, run: Run, kept: KeptStep | None, event: str) -> None:
        """Check that a step or a newer one is on the disk at an event."""
        there = self._newest_there(run)
        self.check(self._is_there(run, kept), "%s with %s on the disk, not %s", event, there, kept)

    def _is_there(self, run: Run, kept: KeptStep | None) -> bool:
        """Whether a step is on the disk, or that is not known: messages out of order, or another directory."""
        if kept is None or self.world.scenario.network.harsh or self.world.disks.was_unmounted:
            return True
        there = self._newest_there(run)
        return there is not None and there >= kept

    def _newest_there(self, run: Run) -> KeptStep | None:
        useful = (step.of for step in self.world.disks.shared.whole if not self._is_useless(step.of))
        return max((at for of_run, at in useful if of_run == run.id), default=None)

    def _found(self, member: Member) -> dict[Step, int]:
        found = () if member.observed.kept is None else member.observed.kept.persisted
        return {(step.run, step.at): step.serial for step in found if not self._is_useless((step.run, step.at))}

    def _is_useless(self, of: Step) -> bool:
        return self._useless.excludes(*of, on_disk=True)

    def _is_hindered(self, member: Member) -> bool:
        kept = member.observed.kept
        return kept is not None and bool(kept.unusable)

    # At any time

    def note_event(self, event: Event) -> None:
        """Note which nodes find a step on the disk, and which are not heard yet, before the next event.

        Check here that no step waits for the disk, or is gone, since there may be no record for long.
        """
        if self.world.scenario.persist_every_s is None:
            return
        machine = self.world.daemon.machine
        if isinstance(event, Reported) and event.session in machine._sessions:
            self._note_failure(*machine._sessions[event.session], event.observed)
        for run in machine.jobs.values():
            self._note_finders(run)
            self._judge_wait(machine, run)
            self._judge_begin(run)
            self._judge_shown(run)
            attempt = kept_of(run).disk.attempt
            self._wrote_at[run.id] = math.inf if attempt is None else attempt.progressed_at
            members = run.members.values()
            self.unheard[run.id] = {member.node: member.incarnation for member in members if member.observed is UNHEARD}
        self._heard_at = self.world.queue.now

    def _note_failure(self, run: Run, member: Member, observed: Observed) -> None:
        """Note which nodes fail in an attempt while workers end."""
        report, attempt = None if observed.kept is None else observed.kept.persisting, kept_of(run).disk.attempt
        if report is None or attempt is None or attempt.without or run.durable.state is not State.STOPPING:
            return
        if report.state is PersistState.FAILED and report.attempt == attempt.number:
            self._failed_in_stop[run.id, self.world.daemon.life, attempt.number][member.node] = member.incarnation

    def _note_finders(self, run: Run) -> set[str]:
        finders = self._finders.setdefault((run.id, self.world.daemon.life), set())
        finding = {member.node for member in run.members.values() if self._found(member)}
        looking = {node for node, member in run.members.items() if member.persist is not None}
        if finders & (looking - finding):
            finders.clear()
        finders |= finding
        return finders

    def settled(self, machine: Coordinator) -> None:
        """Check the directory, and what is being written."""
        directory = self.world.disks.shared
        last = self._newest.get(id(directory))
        there = last is None or last.of in self.world.disks.deleted
        there = there or any(step.serial >= last.serial for step in directory.whole if last is not None)
        self.check(there, "the last whole step is gone: %s", last)
        for run in machine.jobs.values():
            if any(of == run.id for member in run.members.values() for of, _ in self._found(member)):
                self._on_disk.add((run.id, self.world.daemon.life))
            self._judge_work(run)

    def _judge_shown(self, run: Run) -> None:
        """Check that the newest step on the disk is the one that is there, or was until nodes last looked.

        An old report that comes late may hide the step for a moment.
        """
        shown, key, disks = kept_of(run).disk.found.newest, (run.id, self.world.daemon.life), self.world.disks
        before, self._shown[key] = self._shown.get(key), shown
        if disks.was_unmounted or run.durable.state.ended:
            return
        if before is not None and before != shown and (shown is None or shown < before):
            self.fell += 1
            hindered = any(self._is_hindered(member) for member in run.members.values())
            can_read = not hindered and not self.world.scenario.network.harsh
            is_there = disks.shared.find((run.id, before)) is not None and not self._is_useless((run.id, before))
            self.check(not (is_there and can_read), "%s is on the disk, and %s counts as the newest", before, shown)
        if shown is not None:
            newest = max((step.of[1] for step in disks.shared.whole if step.of[0] == run.id), default=None)
            there = (newest is not None and newest >= shown) or self._was_just_deleted((run.id, shown))
            self.check(there, "%s counts as on the disk, not %s", shown, newest)

    def _was_just_deleted(self, of: Step) -> bool:
        """Whether a step was deleted so lately that nodes need not have looked since, or the loss of one may be new."""
        return self.world.queue.now - self.world.disks.deleted.get(of, -math.inf) < NOTICED_S

    def _judge_wait(self, machine: Coordinator, run: Run) -> None:
        """Check that a step of a running round waits for the disk little longer than the interval of its nodes.

        While the coordinator stands still, or cannot record anything, no step is written either.
        """
        now, every_s, disk, whole = self.world.queue.now, self.world.scenario.persist_every_s, kept_of(run).disk, None
        if every_s is not None and run.durable.state is State.RUNNING and machine.store_error is None:
            whole = kept_of(run).protection.whole
        on_disk = self.world.disks.shared.whole
        there = max((step.of[1] for step in on_disk if step.of[0] == run.id), default=None)
        waits = whole is not None and whole.round and (there is None or whole > there)
        life, since = self._waits.get(run.id, (self.world.daemon.life, now))
        stood_still = now - self._heard_at > STANDS_STILL_S
        if not waits or stood_still or disk.attempt is not None or disk.problem or life != self.world.daemon.life:
            life, since = self.world.daemon.life, now
        self._waits[run.id] = life, since
        late = every_s is not None and now - since > (every_s + RETRY_S) / ROUGHLY
        self.check(not late, "%s waits for the disk since %.1f s", whole, now - since)

    def _judge_begin(self, run: Run) -> None:
        """Check that nodes begin to write only what their workers cannot overwrite: none lives, or it is protected.

        None lives on a node whose success is recorded, though an older report may come late.
        """
        attempt = kept_of(run).disk.attempt
        if attempt is None or self._attempts.get(run.id) == attempt.number:
            return
        self._attempts[run.id] = attempt.number
        for member in map(run.members.__getitem__, attempt.writers):
            kept = member.observed.kept
            free = any(parts.at == attempt.at and not parts.protected for parts in (() if kept is None else kept.parts))
            works = member.observed.phase.has_workers and not member.durable.succeeded
            safe = not (free and works)
            self.check(safe, "%s is to be written, and workers of %s may overwrite it", attempt.at, member.node)
        if attempt.began_at == run.durable.entered_at:
            self._judge_again(run, attempt)

    def _judge_again(self, run: Run, attempt: WriteAttempt) -> None:
        """Check that nodes which failed to write while workers ended do not write again at once if others can."""
        in_stop = self._failed_in_stop[run.id, self.world.daemon.life, attempt.number - 1]
        failed = {node for node, one in in_stop.items() if node in run.members and run.members[node].incarnation == one}
        if not failed.isdisjoint(attempt.writers):
            held = kept_of(run).index.holders(attempt.at)
            others = (parts for node, parts in held.items() if node not in failed and _may_write(run.members[node]))
            self.check(not are_whole(others), "%s have just failed to write, and are to again", failed)

    def _judge_work(self, run: Run) -> None:
        """Check that a step which is being written is protected, and made whole only when all parts are written."""
        attempt = kept_of(run).disk.attempt
        if attempt is None or run.durable.state.ended:
            return
        self.check(not self._is_useless((run.id, attempt.at)), "%s is written, and of no use", attempt.at)
        protected = attempt.is_committing or attempt.at in (kept_of(run).protection.steps or ())
        self.check(protected, "%s is written, and not protected", attempt.at)
        if attempt.is_committing and not self.world.disks.was_unmounted:
            directory, of = self.world.disks.shared, (run.id, attempt.at)
            small = sum(parts.ranks for writer in attempt.writers.values() for parts in writer.parts if parts.small)
            there = directory.find(of) is not None or directory.has_all(of, attempt.number, attempt.shards, small)
            later = any(step.of[0] == run.id and step.of[1] > attempt.at for step in directory.whole)
            self.check(there or later, "%s is to be whole, and not all of it is written", attempt.at)

    def judge_missing(self, memory: KeptMemory, of: Step) -> None:
        """Check that a node has the step that it is to write, unless that is no longer wanted, or was damaged.

        Nothing is checked where messages come out of order: an old one may change the protected steps. A step
        from which a round could not resume in memory is protected only once its write has begun.
        """
        if self.world.scenario.network.harsh or self._useless.excludes(*of):
            return
        run = next((run for run in self.world.daemon.machine.jobs.values() if run.id == of[0]), None)
        attempt = None if run is None else kept_of(run).disk.attempt
        is_on = attempt is not None and attempt.at == of[1] and not attempt.is_committing and not attempt.failed_nodes
        self.check(not is_on or of[1] in memory.withdrawn, "%s is to be written, and was overwritten", of[1])

    def judge_end(self) -> None:
        """Check that nothing waits for the disk, some time after all faults are over."""
        for run in self.world.daemon.machine.jobs.values():
            attempt = kept_of(run).disk.attempt
            self.check(attempt is None or not attempt.failed_nodes, "%s is still to be written, and cannot be", attempt)


def _may_write(member: Member) -> bool:
    return member.persist is not None and member.is_connected and member.durable.outcome is None
