"""What the workers of one round have reported about the state that they keep."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from coordinatord.protocol.fields import COUNTER_MAX, STEP_MAX
from coordinatord.protocol.kept_state import FIRST_STATES_MAX
from nodeclient.keep.round_memory import RoundMemory
from workerlib.keep.channel_messages import Interval, NotSaved


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
