"""The reports of one round's workers about the state that they keep, and their answers to requests to save.

When a round ends, the node asks its workers to save, and goes on when all have answered. A worker may answer late, be
gone, or be asked once more, so requests have numbers, and answers name the request.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from coordinatord.protocol.fields import COUNTER_MAX, STEP_MAX
from coordinatord.protocol.kept_state import FIRST_STATES_MAX
from nodeclient.core.effects import HaltWorkers, SaveKept
from workerlib.contract.channel_messages import BEFORE_NAMED, HaltAt, Interval, NotSaved, SaveNow


class SaveRequests:
    """The requests to save in one round, and the missing answers to the last request."""

    def __init__(self, number: int = 0) -> None:
        """Begin without a request; `number` is the number of the last request in the round before."""
        self.number = number
        """The number of the last request. Numbers go on from round to round, so that no late answer fits a new one."""
        self.last: SaveNow | HaltAt | None = None
        """The last request; None before the first one."""
        self.why_not = ""
        """Why none of the workers that were asked has saved its state; empty if one has."""
        self.put_off = False
        """Whether a script has put off its save for the last request to a later step that it chooses."""
        self._missing: dict[int, int] = {}
        """How many answers are missing from each worker."""
        self._saved = False
        """Whether any worker has saved its state on a request of this round."""
        self._refusal = ""
        """Why a worker has not saved its state on a request of this round; empty if none has refused."""

    def make(self, order: SaveKept | HaltWorkers) -> SaveNow | HaltAt:
        """Make the request that carries out an effect of the agent."""
        self.number += 1
        if isinstance(order, HaltWorkers):
            self.last = HaltAt(self.number, BEFORE_NAMED if order.step is None else order.step)
        else:
            self.last = SaveNow(self.number, order.planned, order.late)
        return self.last

    def await_answers(self, workers: Collection[int]) -> None:
        """Await an answer to the last request from each of these workers."""
        self._missing, self.put_off = dict.fromkeys(workers, 1), False

    @property
    def answered(self) -> bool:
        """Whether no answer to the last request is missing."""
        return not self._missing

    def record_save(self, local_rank: int, asked: int) -> bool:
        """Record that a worker has saved; return whether this completes the answers to the last request.

        `asked` is the number of the request that the worker answers; 0 for a save that nobody asked for.
        """
        self._saved |= asked > 0
        return self.record_answer(local_rank, asked)

    def record_refusal(self, local_rank: int, answer: NotSaved) -> bool:
        """Record that a worker has not saved; return whether this completes the answers to the last request."""
        if answer.asked:
            self._refusal = answer.why
        self.put_off |= answer.put_off and answer.asked == self.number
        return self.record_answer(local_rank, answer.asked)

    def lose(self, local_rank: int) -> bool:
        """Record that a worker is gone; return whether this completes the answers to the last request."""
        if local_rank in self._missing:
            self._missing[local_rank] = 1  # if several answers were missing, none of them will come
        return self.record_answer(local_rank, self.number)

    def repeat(self, local_rank: int) -> bool:
        """Await one more answer from a worker that has only now got memory; return False if no answer was missing.

        The answer that it gave without memory, a refusal, may still be on its way.
        """
        if self.answered:
            return False
        self._missing[local_rank] = self._missing.get(local_rank, 0) + 1
        return True

    def record_answer(self, local_rank: int, asked: int) -> bool:
        """Record an answer to the request `asked`; return whether this completes the answers to the last request."""
        if asked != self.number or local_rank not in self._missing:
            return False
        self._missing[local_rank] -= 1
        if not self._missing[local_rank]:
            del self._missing[local_rank]
        if self._missing:
            return False
        self.why_not = "" if self._saved else self._refusal
        return True


@dataclass(slots=True)
class RoundWorkers:
    """The reports of one round's workers, by local rank."""

    number: int = 0
    keepers: set[int] = field(default_factory=set)
    """The workers that have an arena."""
    checkpointing: set[int] = field(default_factory=set)
    """The workers whose script writes a checkpoint of its own before a planned end."""
    promised: dict[int, int] = field(default_factory=dict)
    """The step after which each worker has promised to stand still, once it was asked to."""
    last_checkpoints: dict[int, int] = field(default_factory=dict)
    """The step of the last checkpoint that the script of each worker has written."""
    intervals: dict[int, Interval] = field(default_factory=dict)
    """How often each worker saves, if it saves at intervals."""
    pageable: str = ""
    """Why saves go into memory that is not page-locked, as the first such worker reports; empty before."""
    first_states: dict[int, int] = field(default_factory=dict)
    """The digest of each worker's state after its first step, in a round that began from nothing."""
    alike: bool | None = None
    """Whether all ranks had the same state after their first step; None before the coordinator's comparison."""
    unstepped: dict[int, int] = field(default_factory=dict)
    """The ranks of the workers that have trained for long without a first `ctx.step`."""
    saves: SaveRequests = field(default_factory=SaveRequests)

    def lose(self, local_rank: int) -> None:
        """Record that a worker is gone. The step that it has promised, and its checkpoint, still count."""
        self.keepers.discard(local_rank)
        self.checkpointing.discard(local_rank)

    def named_first_states(self, workers: int) -> tuple[int, ...]:
        """Return `Holding.first_states`: the distinct digests, once two differ or all `workers` have sent theirs."""
        different = sorted({*self.first_states.values()})[:FIRST_STATES_MAX]
        return tuple(different) if len(different) > 1 or len(self.first_states) == workers else ()

    def still_unstepped(self, steps: Sequence[int | None]) -> list[int]:
        """Return the ranks that never called `ctx.step`; `steps` are the last steps of all workers, if any is known."""
        return sorted(rank for local_rank, rank in self.unstepped.items() if not steps or steps[local_rank] is None)

    @property
    def halting(self) -> set[int]:
        """The workers that can stand still after a step that the coordinator names."""
        return self.keepers | self.checkpointing

    @property
    def halts_after(self) -> int | None:
        """The furthest promised step; None before all workers that can halt have promised one."""
        promised = self.promised
        return max(promised.values()) if promised and promised.keys() >= self.halting else None

    @property
    def writers(self) -> set[int]:
        """The workers whose script writes checkpoints before a planned end, or has written one at any time."""
        return self.checkpointing | self.last_checkpoints.keys()

    @property
    def checkpointed(self) -> int | None:
        """The newest step of which all checkpointing workers have written a checkpoint; None before the first."""
        written = self.last_checkpoints
        return min(written.values()) if written and written.keys() >= self.checkpointing else None

    @property
    def interval_steps(self) -> int | None:
        """The largest interval of saves, in steps; None if no worker saves at an interval."""
        steps = max((interval.steps for interval in self.intervals.values()), default=0)
        return min(steps, STEP_MAX) or None

    @property
    def skipped(self) -> int:
        """How many saves the workers have skipped."""
        return min(sum(interval.skipped for interval in self.intervals.values()), COUNTER_MAX)
