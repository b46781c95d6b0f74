"""What the workers of one round have reported about the state that they keep, and the memory that they have for it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import NamedTuple

from coordinatord.protocol.fields import COUNTER_MAX, STEP_MAX
from coordinatord.protocol.kept_state import FIRST_STATES_MAX
from nodeclient.core.effects import Level
from nodeclient.keeping.parts.arenas import NoMemoryError
from nodeclient.keeping.resources import KeepResources
from nodeclient.keeping.worker_channel import WorkerChannel
from workerlib.contract.arena import ArenaError, ArenaSizes
from workerlib.contract.channel_messages import Interval, NotSaved, RefusedMemory, Reserve, Reserved


class Loan(NamedTuple):
    """The memory of a worker that has ended, for one that is left; both are local ranks."""

    owner: int
    borrower: int


@dataclass(slots=True)
class RoundMemory:
    """Which workers of a round have memory for their big state, and who gets that of one that has ended."""

    reserving: set[int] = field(default_factory=set)
    """The workers that wait for an arena."""
    _wanted: dict[int, Reserve] = field(default_factory=dict)
    """What each worker has asked for last."""
    _memory_of: dict[int, int] = field(default_factory=dict)
    """The workers that have memory for their big state, each with the local rank whose arena it is."""
    _ended: dict[int, None] = field(default_factory=dict)
    """The workers that have ended, in that order. Only their memory is lent: nobody else writes into it."""

    def begin(self, local_rank: int, wanted: Reserve) -> bool:
        """Note that a worker asks for memory; return whether it is to get any."""
        if local_rank in self.reserving or local_rank in self._ended:
            return False
        self.reserving.add(local_rank)
        self._wanted[local_rank] = wanted
        self._memory_of.pop(local_rank, None)
        return True

    def give(self, local_rank: int) -> None:
        """Note that there is memory for what a worker has asked for, even if it has ended meanwhile."""
        if self._wanted[local_rank].generation:
            self._memory_of[local_rank] = local_rank

    def end(self, local_rank: int) -> None:
        """Note that the process of a worker has ended."""
        self._ended[local_rank] = None

    def lend(self, able: AbstractSet[int]) -> Loan | None:
        """Lend the memory of a worker that has ended, if no other has the same big state and memory for it.

        One of those that are `able` to save, and wait for no memory, gets it. What was not lent may be lent later: the
        worker that makes the loan needless may end too. Return None if nothing is lent.
        """
        for ended in reversed(self._ended):
            if ended in self._memory_of and (borrower := self._borrower(ended, able)) is not None:
                owner = self._memory_of[borrower] = self._memory_of.pop(ended)
                return Loan(owner, borrower)
        return None

    def awaited(self, connected: AbstractSet[int]) -> set[int]:
        """Return the workers whose connection is gone, and whose memory is lent once their process has ended."""
        gone = self._memory_of.keys() - connected - self._ended.keys()
        return {local_rank for local_rank in gone if self._borrower(local_rank, connected) is not None}

    def _borrower(self, owner: int, able: AbstractSet[int]) -> int | None:
        part = self._wanted[owner].shard, self._wanted[owner].shards
        others = (able - self.reserving - self._ended.keys()) & self._wanted.keys()
        of_same = [rank for rank in others if (self._wanted[rank].shard, self._wanted[rank].shards) == part]
        if not of_same or not self._memory_of.keys().isdisjoint(of_same):
            return None
        return min(of_same)


@dataclass(slots=True)
class RoundWorkers:
    """The workers of one round, each by its local rank."""

    number: int = 0
    """The number of the round."""
    may_connect: bool = False
    """Whether they could connect: not in a round that has failed before they were started."""
    keepers: set[int] = field(default_factory=set)
    """The workers that have an arena."""
    checkpointing: set[int] = field(default_factory=set)
    """The workers whose script writes a checkpoint of its own before a planned end."""
    memory: RoundMemory = field(default_factory=RoundMemory)
    """Who has memory for its big state."""
    promised: dict[int, int] = field(default_factory=dict)
    """The step after which each worker stands still, once it was asked to."""
    checkpoints: dict[int, int] = field(default_factory=dict)
    """The step of the last checkpoint that each worker has written by itself."""
    intervals: dict[int, Interval] = field(default_factory=dict)
    first_states: dict[int, int] = field(default_factory=dict)
    """The digest of the state that each worker had after its first step, if its round began from nothing."""
    alike: bool | None = None
    """Whether all ranks of the round had the same state then; None before the coordinator has said so."""
    why_not: str = ""
    """Why no worker has saved its state, if none of those that were asked has; empty otherwise."""
    put_off: bool = False
    """Whether, at the last request to save, a script goes on to a step of its own choice first."""
    _saving: dict[int, int] = field(default_factory=dict)
    """How many answers are missing of each worker that was asked to save."""
    _asked: int = 0
    """The number of the last request to save."""
    _saved: bool = False
    """Whether a worker has saved its state when it was asked to."""
    _refusal: str = ""
    """Why a worker has not saved its state when it was asked to, if one has not."""

    def ask(self, number: int, workers: Collection[int]) -> None:
        """Note a request to save, and the workers that were sent it."""
        self._asked, self._saving, self.put_off = number, dict.fromkeys(workers, 1), False

    def note_saved(self, local_rank: int, asked: int) -> bool:
        """Note that a worker has saved; return whether it was the last answer to the last request."""
        self._saved |= asked > 0
        return self._note_answer(local_rank, asked)

    def note_not_saved(self, local_rank: int, answer: NotSaved) -> bool:
        """Note that a worker has not saved; return whether it was the last answer to the last request."""
        if answer.asked:
            self._refusal = answer.why
        self.put_off |= answer.put_off and answer.asked == self._asked
        return self._note_answer(local_rank, answer.asked)

    def note_checkpoint(self, local_rank: int, asked: int, step: int) -> bool:
        """Note that a script has written a checkpoint; return whether it was the last answer to the last request."""
        self.checkpoints[local_rank] = min(step, STEP_MAX)
        return self._note_answer(local_rank, asked)

    def lose(self, local_rank: int, connected: AbstractSet[int]) -> bool:
        """Note that a worker is gone; return whether it was the last one whose answer was missing.

        While its process has not ended, and a worker that is left waits for its memory, the request stays open.
        """
        self.keepers.discard(local_rank)
        self.checkpointing.discard(local_rank)
        if local_rank in self.memory.awaited(connected):
            return False
        if local_rank in self._saving:
            self._saving[local_rank] = 1
        return self._note_answer(local_rank, self._asked)

    def ask_again(self, local_rank: int) -> bool:
        """Note that a worker is asked once more, as it can save now; return False if the last request was answered."""
        if not self.saving:
            return False
        self._saving[local_rank] = self._saving.get(local_rank, 0) + 1
        return True

    def _note_answer(self, local_rank: int, asked: int) -> bool:
        if asked != self._asked or local_rank not in self._saving:
            return False
        self._saving[local_rank] -= 1
        if not self._saving[local_rank]:
            del self._saving[local_rank]
        if self._saving:
            return False
        self.why_not = "" if self._saved else self._refusal
        return True

    def named_first_states(self, workers: int) -> tuple[int, ...]:
        """Return what is reported of the first states of so many workers; see `Holding.first_states`."""
        different = sorted({*self.first_states.values()})[:FIRST_STATES_MAX]
        return tuple(different) if len(different) > 1 or len(self.first_states) == workers else ()

    @property
    def saving(self) -> bool:
        """Whether answers to the last request to save are missing."""
        return bool(self._saving)

    @property
    def halting(self) -> set[int]:
        """The workers that can stand still after a step that the coordinator names."""
        return self.keepers | self.checkpointing

    @property
    def halts_after(self) -> int | None:
        """The furthest step of all promises; None before all workers that can halt have promised one."""
        promised = self.promised
        return max(promised.values()) if promised and promised.keys() >= self.halting else None

    @property
    def writers(self) -> set[int]:
        """The workers whose script writes checkpoints by itself, as far as is known."""
        return self.checkpointing | self.checkpoints.keys()

    @property
    def checkpointed(self) -> int | None:
        """The newest step of which all checkpointing workers have written a checkpoint; None before the first."""
        written = self.checkpoints
        return min(written.values()) if written and written.keys() >= self.checkpointing else None

    @property
    def interval_steps(self) -> int | None:
        """The largest interval of saves, in steps; None if no worker saves at an interval."""
        steps = max((interval.steps for interval in self.intervals.values()), default=0)
        return min(steps, STEP_MAX) or None

    @property
    def skipped(self) -> int:
        """How many saves were left out."""
        return min(sum(interval.skipped for interval in self.intervals.values()), COUNTER_MAX)


class ArenaGiver:
    """Gives the workers of a round their memory, and lends that of one that has ended to one that is left."""

    def __init__(
        self,
        resources: KeepResources,
        channel: WorkerChannel,
        workers: RoundWorkers,
        on_given: Callable[[int, bool], None],
    ) -> None:
        """Serve these workers; `on_given` gets the local rank of each one that has got an arena, and if it is lent."""
        self._resources = resources
        self._channel = channel
        self._workers = workers
        self._on_given = on_given
        self._over = False

    def give_up(self) -> None:
        """Give no more arenas: another round begins."""
        self._over = True

    def take(self, local_rank: int, wanted: Reserve) -> None:
        """Take a worker's request for memory."""
        if self._workers.memory.begin(local_rank, wanted):
            self._resources.tasks.spawn(self._reserve(local_rank, wanted), name="reserve")

    def lend(self) -> None:
        """Lend the memory of workers that have ended to those that have none for the same state."""
        if self._over or self._workers.alike is False:
            return
        # A worker that a signal has stopped saves nothing.
        while (loan := self._workers.memory.lend(self._channel.connected - self._channel.stopped)) is not None:
            file = self._resources.arenas.file_of(loan.owner)
            if file is not None:
                self._send(loan.borrower, file, lent=True)

    async def _reserve(self, local_rank: int, wanted: Reserve) -> None:
        resources, memory = self._resources, self._workers.memory
        try:
            file = await resources.arenas.reserve(local_rank, ArenaSizes.at_least(wanted.generation, wanted.small))
        except (NoMemoryError, ArenaError) as error:
            text = f"the state of local rank {local_rank} is not kept: {error}"
            resources.notify(Level.WARNING, text, "state_not_kept")
            small = await resources.arenas.reserve_small(local_rank, wanted.small)
            if not self._over:
                self._channel.send(local_rank, RefusedMemory(str(error)), [] if small is None else [small])
        else:
            memory.give(local_rank)
            if not self._over:
                self._send(local_rank, file)
        finally:
            memory.reserving.discard(local_rank)
        # Meanwhile this worker may have ended, or another one whose memory it now needs.
        self.lend()

    def _send(self, local_rank: int, file: int, *, lent: bool = False) -> None:
        disk = self._resources.disk
        self._channel.send(local_rank, Reserved(0.0 if disk is None else disk.offer.every_s, lent), [file])
        if local_rank in self._channel.connected:
            self._on_given(local_rank, lent)
