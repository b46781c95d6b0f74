"""The directory of `--persist` in the simulated world: its whole steps, and what each node sees, writes and reads.

Like a real node, a simulated one reads it before it joins and then from time to time, so the views of two nodes differ
for a while. A host without the mount sees an empty directory of its own.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from msgspec.structs import replace

from coordinatord.protocol.kept_state import (
    PERSISTED_MAX,
    KeptParts,
    KeptStep,
    PersistedStep,
    PersistOrder,
    PersistReport,
    PersistState,
    Resume,
    WantedParts,
)
from nodeclient.core.events import KeptChanged
from nodeclient.core.persist_attempt import StepOnDisk, steps_to_delete
from nodeclient.keeping.disk.disk_thread import STALL_S
from nodeclient.keeping.disk.steps_on_disk import SCAN_EVERY_S
from tests.sim.kept_copies import GARBLED, Chain, Stored
from tests.support.kept_state import kept_parts

if TYPE_CHECKING:  # memories have one
    from tests.sim.host import Host
    from tests.sim.kept_memory import KeptMemory
    from tests.sim.world import World

WRITE_S = 1.5
"""The longest time that a node takes to write its part of a step."""

COMMIT_S = 0.3
"""The longest time that it takes to make a step whole."""

KEEP = 2
"""The number of steps that are kept."""

AGAIN_S = 1.0
"""The pause before a disk that hangs is tried again."""

NOTICED_S = SCAN_EVERY_S + 8.0
"""How soon the coordinator knows that a step was deleted: all nodes have looked by then, or are lost."""

UNREAD_S = 30.0
"""How long a node ignores a step that it could not read."""

Step = tuple[str, KeptStep]
"""The run, and the round and step: two runs of one job may have the same rounds and steps."""


class DiskFault(StrEnum):
    """A fault of the disk."""

    FULL = "full"
    HANGS = "hangs"


@dataclass(frozen=True)
class OnDisk:
    """A step that is whole on the disk."""

    serial: int
    of: Step
    parts: tuple[KeptParts, ...]
    chains: frozenset[Chain]


class Directory:
    """One directory: the whole steps, the newest first, and files of steps that are not whole yet."""

    def __init__(self) -> None:
        self.whole: list[OnDisk] = []
        self.files: dict[tuple[Step, int], dict[tuple[int, bool], Stored]] = defaultdict(dict)
        """The files that each attempt has written of its step, keyed by (rank, whether it is the big state)."""

    def has_all(self, of: Step, attempt: int, shards: int, small: int) -> bool:
        """Whether an attempt has written all of a step: its shards, and the small state of so many ranks."""
        files = self.files[of, attempt]
        found = {rank % shards for rank, big in files if big}
        return len(found) == shards and sum(not big for _, big in files) >= small

    def find(self, of: Step) -> OnDisk | None:
        """Return a whole step."""
        return next((step for step in self.whole if step.of == of), None)


class Disks:
    """The directory that all hosts share, and those of hosts without the mount."""

    def __init__(self) -> None:
        self.shared = Directory()
        self.fault: DiskFault | None = None
        """The fault of the disk for all nodes."""
        self._full_for: set[str] = set()
        """The hosts for which it is full, as with a quota."""
        self.was_unmounted = False
        """Whether it was ever missing on a host."""
        self.is_unreadable = False
        """Whether no host can read its steps."""
        self.deleted: dict[Step, float] = {}
        """When somebody deleted steps that all nodes share."""
        self._away: dict[str, Directory] = {}

    def of(self, host: str) -> Directory:
        """Return the directory that a host sees."""
        return self._away.get(host, self.shared)

    def break_down(self, fault: DiskFault) -> None:
        """Let the disk fail from now on."""
        self.fault = fault

    def fill(self, host: str) -> None:
        """Let the disk have no room for a host from now on."""
        self._full_for.add(host)

    def fault_of(self, host: str) -> DiskFault | None:
        """Return the fault of the disk as a host sees it."""
        return DiskFault.FULL if self.fault is None and host in self._full_for else self.fault

    def unmount(self, host: str) -> None:
        """Let a host see an empty directory."""
        self._away[host], self.was_unmounted = Directory(), True

    def delete(self, first: int, now: float) -> None:
        """Let somebody delete steps that all nodes share: the newest `first` ones."""
        self.deleted |= {step.of: now for step in self.shared.whole[:first]}
        del self.shared.whole[:first]

    def mount(self, host: str) -> None:
        """Let a host see the shared directory again."""
        self._away.pop(host, None)

    def heal(self) -> None:
        """Let the disk answer and have room again."""
        self.fault = None
        self._full_for.clear()

    def repair(self) -> None:
        """End all faults."""
        self.heal()
        self.is_unreadable = False
        self._away.clear()


class KeptDisk:
    """The use of the directory by one life of a nodeclient."""

    def __init__(self, host: Host, world: World, memory: KeptMemory) -> None:
        """Read the directory, as a node does before it joins."""
        self._host, self._world, self._memory = host, world, memory
        self.found: tuple[PersistedStep, ...] = ()
        self.report: PersistReport | None = None
        self._order: tuple[str, PersistOrder] | None = None
        self._attempt = 0
        self.unusable = ""
        self._unread: dict[Step, float] = {}
        """The time until which each step that could not be read is ignored."""
        if world.scenario.persist_every_s is not None:
            self._find()
            self._memory.later(SCAN_EVERY_S, self._look)

    @property
    def _directory(self) -> Directory:
        return self._world.disks.of(self._host.name)

    @property
    def _fault(self) -> DiskFault | None:
        return self._world.disks.fault_of(self._host.name)

    def _find(self) -> None:
        there = self._directory.whole
        whole = [step for step in there if self._may_read(step)]
        self.found = tuple(PersistedStep(step.serial, step.of[0], step.parts) for step in whole[:PERSISTED_MAX])
        self.unusable = "" if len(whole) == len(there) else "a step cannot be read"

    def _may_read(self, step: OnDisk) -> bool:
        now = self._world.queue.now
        return self._unread.get(step.of, now) <= now and not self._world.disks.is_unreadable

    def _look(self, *, again: bool = True) -> None:
        before = self.found, self.unusable
        if self._fault is not DiskFault.HANGS:
            self._find()
        if (self.found, self.unusable) != before:
            self._host.submit(KeptChanged())
        if again:
            self._memory.later(SCAN_EVERY_S, self._look)

    # Writing

    def carry_out(self, run: str, order: PersistOrder | None) -> None:
        """Write the wanted parts of a step; None ends that."""
        before, self._order = self._order, None if order is None else (run, order)
        if order is None:
            self._attempt += 1
            self.report = None
            self._look(again=False)
        elif before is not None and _same_work(before) == _same_work((run, order)):
            if before[1].commit and not order.commit:
                self._order = before  # as `PersistAttempt.record_order` does
            self._commit_if_wanted()
        else:
            self._attempt += 1
            self.report = PersistReport(order.round, order.step, PersistState.WRITING, 0, attempt=order.attempt)
            self._memory.later(WRITE_S, self._write, self._attempt, self._world.queue.now)

    def _is_over(self, attempt: int, began_at: float) -> bool:
        """Whether an attempt is over; end it if the disk has hung for long."""
        hangs = attempt == self._attempt and self._fault is DiskFault.HANGS
        if hangs and self._world.queue.now >= began_at + STALL_S:
            self._report(PersistState.FAILED, "the disk hangs")
        return attempt != self._attempt or self.report is None or self.report.state is PersistState.FAILED

    def _write(self, attempt: int, began_at: float) -> None:
        if self._is_over(attempt, began_at) or self._order is None:
            return
        if self._fault is DiskFault.HANGS:
            self._memory.later(AGAIN_S, self._write, attempt, began_at)
            return
        run, order = self._order
        for wanted in order.parts:
            for rank in range(wanted.first_rank, wanted.first_rank + wanted.ranks):
                if not self._write_rank(run, order, rank, wanted):
                    return
        self._report(PersistState.WRITTEN)
        self._commit_if_wanted()

    def _write_rank(self, run: str, order: PersistOrder, rank: int, wanted: WantedParts) -> bool:
        """Write the state of a rank; return whether it was kept and undamaged."""
        of = run, order.at
        stored = self._memory.find(*of, rank)
        if self._fault is DiskFault.FULL:
            self._report(PersistState.FAILED, "no space left")
        elif stored is None:
            self._world.invariants.kept.persisted.judge_missing(self._memory, of)
            self._report(PersistState.FAILED, "it is not kept any more")
        elif stored.damaged:
            self._report(PersistState.FAILED, "it is damaged")
            self._memory.withdraw(stored)
        else:
            kinds = ((True, wanted.big), (False, wanted.small))
            self._directory.files[of, order.attempt].update(
                {(rank, big): stored for big, is_wanted in kinds if is_wanted}
            )
            return True
        return False

    def _commit_if_wanted(self) -> None:
        is_written = self.report is not None and self.report.state is PersistState.WRITTEN
        if self._order is not None and self._order[1].commit and is_written:
            self._memory.later(COMMIT_S, self._commit, self._attempt, self._world.queue.now)

    def _commit(self, attempt: int, began_at: float) -> None:
        if self._is_over(attempt, began_at) or self._order is None:
            return
        run, order = self._order
        of, directory = (run, order.at), self._directory
        if self._fault is DiskFault.HANGS:
            self._memory.later(AGAIN_S, self._commit, attempt, began_at)
        elif self._fault is DiskFault.FULL:
            self._report(PersistState.FAILED, "no space left")
        elif directory.find(of) is None and not directory.has_all(of, order.attempt, order.shards, order.small):
            self._report(PersistState.FAILED, "not all is found: is it one directory?")
        else:
            self._make_whole(directory, of, order, began_at)
            self._find()
            self._report(PersistState.COMMITTED)

    def _make_whole(self, directory: Directory, of: Step, order: PersistOrder, began_at: float) -> None:
        if directory.find(of) is None:
            files = directory.files.pop((of, order.attempt))
            ranks = sorted({rank for rank, _ in files})
            parts = [
                kept_parts(
                    order.round,
                    order.step,
                    range(rank, rank + 1),
                    world_size=order.world_size,
                    shards=order.shards,
                    big=(rank, True) in files,
                    small=(rank, False) in files,
                )
                for rank in ranks
            ]
            serial = max((step.serial for step in directory.whole), default=0) + 1
            chains = frozenset(stored.chain for stored in files.values())
            directory.whole.insert(0, OnDisk(serial, of, tuple(parts), chains))
        self._world.invariants.kept.persisted.is_whole(directory, of)
        there = [StepOnDisk(step.serial, str(step.serial), self._may_read(step)) for step in directory.whole]
        gone = steps_to_delete(there, KEEP, order.stays)
        readable = [step for step in directory.whole if self._may_read(step)]
        which = {number for number, step in enumerate(readable) if str(step.serial) in gone}
        self._world.invariants.replicas.deletes(of[0], [step.of for step in readable], which, began_at)
        directory.whole = [step for step in directory.whole if str(step.serial) not in gone]
        later = [key for key in directory.files if key[0][0] == of[0] and key[1] > order.attempt]
        directory.files = defaultdict(dict, {key: directory.files[key] for key in later})  # they may be in progress

    def _report(self, state: PersistState, problem: str = "") -> None:
        assert self.report is not None
        self.report = replace(self.report, state=state, bytes=self.report.bytes + 1, problem=problem)
        self._host.submit(KeptChanged())

    # Reading

    @property
    def hangs(self) -> bool:
        """Whether a read does not return at present."""
        return self._fault is DiskFault.HANGS

    def read(self, resume: Resume) -> Chain | None:
        """Return the chain of the step that a round resumes from; None if it cannot be read."""
        assert resume.disk is not None
        of = resume.disk.run, KeptStep(resume.disk.round, resume.step)
        found = self._directory.find(of)
        if found is None or self._world.disks.is_unreadable or self._world.chance.random() < GARBLED:
            self._unread[of] = self._world.queue.now + UNREAD_S
            self._find()
            return None
        self._world.invariants.kept.persisted.read(self._host, found)
        return next(iter(found.chains))


def _same_work(wanted: tuple[str, PersistOrder]) -> tuple[str, PersistOrder]:
    run, order = wanted
    return run, replace(order, commit=False, stays=(), small=0)
