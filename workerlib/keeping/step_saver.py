"""Saves the state of a step: the small one at its end, the big one when that is due or requested.

The caller decides when, and makes sure that the state is that of a whole step: see `keeper`. If a save fails, the
answer has the reason. An error ends the saving, not the training.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import torch

from workerlib.contract.arena import PENDING, Arena, Commit
from workerlib.contract.channel_messages import FirstState, Message, NotSaved, Saved
from workerlib.contract.env import WorkerEnvironment
from workerlib.keeping.arena_request import ArenaRequest
from workerlib.keeping.gate import TorchGroups
from workerlib.keeping.generations import Generations, NotNowError
from workerlib.keeping.intervals import DISK_SHARE, HEARD_S, SaveInterval
from workerlib.keeping.kept_errors import KeptStateError
from workerlib.keeping.pieces import digest_of, is_sharded, shard_of
from workerlib.keeping.restoring import RestorePoint
from workerlib.keeping.small_state import SmallStates, Taken

LOG = logging.getLogger("workerlib.keeping")

UNREPORTED = 100
"""How many optimizer steps without a report of the script lead to a warning. No script has so many optimizers."""


class StateStage(Enum):
    """The stages of the training state; the value says why it is not saved, and is empty if it may be."""

    UNTRAINED = "no step is done yet"
    WHOLE = ""
    """It is the state after the last step."""
    CHANGING = "a step is not whole"
    """An optimizer has begun a step since the last `ctx.step`."""
    UNNUMBERED = "the last step has no number of its own"
    UNKEPT = "it has become state that cannot be kept"
    TORN = "training has ended within a step"
    """It may belong to no step, until the round ends."""


class StateEvent(Enum):
    """What changes the stage."""

    RESUMED = auto()
    """A step was brought back."""
    CHANGED = auto()
    """An optimizer begins a step."""
    NUMBERED = auto()
    """`ctx.step` has a higher number than any before."""
    REPEATED = auto()
    """`ctx.step` has no higher number, though the state is new."""
    REFUSED = auto()
    """State has become one that cannot be kept."""
    TORN = auto()
    """Training has ended within a step, a step does not count, or the script may change the state unobserved."""


_NEXT: dict[tuple[StateStage, StateEvent], StateStage] = {
    (StateStage.UNTRAINED, StateEvent.RESUMED): StateStage.WHOLE,
    (StateStage.UNTRAINED, StateEvent.NUMBERED): StateStage.WHOLE,
    (StateStage.WHOLE, StateEvent.CHANGED): StateStage.CHANGING,
    (StateStage.WHOLE, StateEvent.REPEATED): StateStage.UNNUMBERED,
    (StateStage.CHANGING, StateEvent.NUMBERED): StateStage.WHOLE,
    (StateStage.CHANGING, StateEvent.REPEATED): StateStage.UNNUMBERED,
    (StateStage.UNNUMBERED, StateEvent.CHANGED): StateStage.CHANGING,
    (StateStage.UNNUMBERED, StateEvent.NUMBERED): StateStage.WHOLE,
    **{(stage, StateEvent.REFUSED): StateStage.UNKEPT for stage in StateStage if stage is not StateStage.TORN},
    **{(stage, StateEvent.TORN): StateStage.TORN for stage in StateStage},
}
"""The next stages; any other event leaves the stage as it is."""


class StepNumbers:
    """Finds the step to which a state of the training belongs; a state without a number of its own is not kept.

    A step ends with `ctx.step`, where the state is new only if an optimizer has changed it. If gradients are
    accumulated over several batches, the state between two steps of the optimizer includes gradients, which are not
    kept.
    """

    def __init__(self) -> None:
        self.done = -1
        """The last step that can be kept."""
        self.count = 0
        """How many steps had a new state in this round."""
        self.has_optimizer = False
        """Whether an optimizer with hooks was seen; a script may use others."""
        self.stage = StateStage.UNTRAINED
        self._reported = -1
        """The last number that the script has reported, whether the state was new or not."""
        self._stride = 1
        """The difference between successive reported numbers."""
        self._changed = 0
        """The optimizer steps since the last `ctx.step`."""
        self._refusal = ""
        """Why state cannot be kept any more; empty while it can."""
        self._warned = False

    @property
    def next(self) -> int:
        """The probable number of the current step."""
        return self._reported + self._stride

    @property
    def is_changing(self) -> bool:
        """Whether an optimizer has begun a step since the last `ctx.step`."""
        return self._changed > 0

    @property
    def problem(self) -> str:
        """Why the present state is not saved as that of the step `done`; empty if it may be."""
        return self._refusal if self.stage is StateStage.UNKEPT else self.stage.value

    def on(self, event: StateEvent) -> None:
        """Go to the next stage."""
        self.stage = _NEXT.get((self.stage, event), self.stage)

    def resume(self, step: int) -> None:
        """Go on from a step."""
        self.done = self._reported = step
        self.on(StateEvent.RESUMED)

    def refuse(self, why: str) -> None:
        """Keep nothing any more."""
        self._refusal = why
        self.on(StateEvent.REFUSED)

    def on_optimizer(self) -> None:
        """Record that an optimizer begins a step."""
        self.has_optimizer = True
        self._changed += 1
        self.on(StateEvent.CHANGED)
        if self._changed == UNREPORTED:
            self._warn(f"{UNREPORTED} steps of an optimizer without ctx.step: call it after each, or none is kept")

    def on_step(self, number: int) -> bool:
        """Record that the script reports a step; return whether the state is new, and has this number."""
        changed, self._changed = self.is_changing or not self.has_optimizer, 0
        if number > self._reported >= 0:
            self._stride = number - self._reported
        self._reported = number
        if not changed:
            return False
        if number <= self.done:
            self.on(StateEvent.REPEATED)
            self._warn(f"step {number} was reported after step {self.done}: only a step with a higher number is kept")
            return False
        self.done = number
        self.count += 1
        self.on(StateEvent.NUMBERED)
        return True

    def _warn(self, text: str) -> None:
        if not self._warned:
            LOG.warning("%s", text)
        self._warned = True


class StepCommits:
    """Makes the commits of steps: the round, and the part of the state that this rank has."""

    def __init__(self, environment: WorkerEnvironment, tensors: Iterable[torch.Tensor]) -> None:
        """Find this rank's shard of the state's tensors."""
        self._environment = environment
        all_ = list(tensors)
        self.shard, self.shards = shard_of(all_, environment.rank, environment.world_size)
        self.has_sharded = any(map(is_sharded, all_))
        """Whether tensors are bound to the process group of this round, even if this rank has the whole of them."""
        self.alone = environment.world_size == self.shards
        """Whether no other rank has this state."""
        self.is_compared = self.alone or self.has_sharded
        """Whether it is known if other ranks have the same state. Until then, it is saved as that of this rank."""
        self.is_asked = False
        """Whether the coordinator was asked whether all ranks have the same state."""
        self.answered = threading.Event()
        """Set when that is known, or no answer is needed any more."""
        if not self.is_compared:
            self.shard, self.shards = environment.rank, environment.world_size
        self._begun_at = -1
        self._origin_round: int | None = None
        """The round of the step resumed from, if its world size and its number of shards are the same."""

    @property
    def requested(self) -> tuple[int, int]:
        """The shard for which memory is requested, and how many there are: until it is known, ranks count as alike."""
        return (self.shard, self.shards) if self.is_compared else (0, 1)

    @property
    def problem(self) -> str:
        """Why no state can be saved; empty if it can."""
        return "" if self.is_compared else "it is not known yet whether all ranks have the same state"

    def learn(self, *, alike: bool) -> None:
        """Record whether all ranks have the same state, or each has its own."""
        self.is_compared, self.alone = True, not alike
        if alike:
            self.shard, self.shards = 0, 1

    def begin(self, round_: int, step: int, shape: tuple[int, int], *, own: bool) -> None:
        """Resume from a step of a round with `shape`: its world size and number of shards.

        All ranks resume from the same state, unless each has its `own`.
        """
        self._begun_at = step
        if not self.is_compared:
            self.learn(alike=not own)
        if shape == (self._environment.world_size, self.shards):
            self._origin_round = round_

    def is_of_others(self, step: int) -> bool:
        """Whether a step was done by other ranks than those of this round."""
        return step == self._begun_at and self._origin_round is None

    def of(self, step: int, flags: int = 0) -> Commit:
        """Return the commit of a step, without its length and serial.

        The step resumed from keeps the number of its own round, since the arena may have this rank's state of that
        round.
        """
        environment, round_ = self._environment, self._environment.round
        if step == self._begun_at and self._origin_round is not None:
            round_ = self._origin_round
        place = (environment.rank, environment.world_size, self.shard, self.shards)
        return Commit(step, round_, 0, *place, serial=0, flags=flags)


SAVERS = 2
"""How many workers of a node save state that all ranks share: one of them may be the one that died."""

COMPARED_WITHIN_S = 5.0
"""How long training waits after its first step for the states of the other ranks. That is one lease: a restarted
coordinator is back by then."""

COMPARED_AFTER = 32
"""The steps after which states are compared even if no change was seen: writes to `.data`, or by a collective, are not
seen. A gradient scaler skips fewer steps at first: it begins at 2**16, and halves that with each."""


@dataclass(slots=True)
class SaveRole:
    """Which states this worker saves, and when."""

    saves: bool
    """Whether it saves big states."""
    follows: bool = False
    """Whether the small state of each step is kept. If buffers are on a GPU, each step waits for the GPU then."""
    at_intervals: bool = False
    """Whether big states are saved at an interval, because a save when the round breaks may fail or be late."""


class StepSaver:
    """Writes steps of one round into the memory that nodeclient keeps for this worker."""

    def __init__(
        self,
        environment: WorkerEnvironment,
        generations: Generations,
        small: SmallStates,
        report: Callable[[Message], None],
    ) -> None:
        """Begin without memory; `report` sends a message to nodeclient, if that is still there."""
        self._generations = generations
        self._small = small
        self._report = report
        self.numbers = StepNumbers()
        self.commits = StepCommits(environment, [tensor for _, tensor in generations.tensors()])
        self.memory = ArenaRequest(report, self.commits.requested)
        self.role = SaveRole(saves=environment.worker < SAVERS)
        self._take_role()
        self.interval = SaveInterval()
        if environment.group_world_size > 1:
            self.interval.raise_least(HEARD_S)
        self._collectives: int | None = None
        """How many collectives had begun before parameters could change in this step: without an optimizer, at its
        beginning. None if that is not known."""
        self._newest: int | None = None
        """The step that was saved last in this round; None if none was."""

    def _take_role(self) -> None:
        self.memory.part = self.commits.requested
        self.role.follows = not (self.alone and self._small.on_device)
        self.role.saves |= self.alone
        self.role.at_intervals |= self.alone or self._generations.on_device

    @property
    def alone(self) -> bool:
        """Whether no other rank has this state."""
        return self.commits.alone

    @property
    def done(self) -> int:
        """The last step that can be saved; -1 if there is none."""
        return self.numbers.done

    @property
    def has_saved_last(self) -> bool:
        """Whether the big state of the last step is saved."""
        return self._newest == self.done

    @property
    def finds_whole_steps(self) -> bool:
        """Whether the state is that of a whole step, with its small state, whenever training is between two steps."""
        return self.role.follows and (not self.alone or self.numbers.has_optimizer)

    # The beginning and the end

    def begin(self, point: RestorePoint) -> None:
        """Resume from the restored state."""
        self.numbers.resume(point.step)
        self.commits.begin(point.round, point.step, point.shape, own=point.is_own)
        self._take_role()

    def ask_for_memory(self, restored: Mapping[str, Any]) -> None:
        """Request memory before the first step, and wait for it: this rank may die after its part in that step."""
        self._check_sizes(self._small.take_first(restored), now=True)
        self.memory.await_answer()

    def attach(self, arena: Arena, *, lent: bool) -> None:
        """Attach the memory, and write the small state that waits for it.

        Memory that is `lent` is only for the big state: the small states in it are those of a rank that has ended.
        """
        with self._small.lock:
            self._generations.attach(arena)
            if lent:
                self.role.saves = True
                self.memory.arena = arena
                return
            self._small.attach(arena)
            waiting = self.memory.take(arena)
            if waiting is not None and waiting.step == self.done >= 0:
                commit = self.commits.of(waiting.step)
                if self._small.find(commit) is None:
                    self._small.write(waiting.state, commit)

    def compare(self) -> None:
        """Have the state after the first step compared with those of the other ranks, and wait for the answer.

        Before an optimizer has changed it, ranks that will differ may still have the same state: a gradient scaler
        often leaves out the first steps.
        """
        commits, is_kept = self.commits, self.numbers.stage is not StateStage.UNKEPT
        if not is_kept or commits.is_compared or commits.is_asked or not self._is_trained:
            return
        commits.is_asked = True
        try:
            self._report(FirstState(digest_of(self._generations.tensors())))
        except (KeptStateError, RuntimeError) as error:  # as in `keep_step`, or a layout of which torch has no bits
            self._give_up(str(error))
        else:
            commits.answered.wait(COMPARED_WITHIN_S)

    def learn(self, *, alike: bool) -> None:
        """Record whether all ranks have the same state; else this rank saves its own at an interval."""
        if not self.commits.is_compared:
            self.commits.learn(alike=alike)
            self._take_role()
        self.commits.answered.set()

    def expect_disk(self, every_s: float) -> None:
        """Save state that all ranks share at intervals too: nodeclient writes it to a disk every `every_s` seconds."""
        if not self.alone:
            self.role.at_intervals = True
            self.interval.raise_least(DISK_SHARE * every_s)

    def end(self, *, in_step: bool) -> None:
        """Record that training has ended, within a step or between two; within one, the state is that of no step."""
        if in_step:
            self.numbers.on(StateEvent.TORN)

    def release(self) -> None:
        """Record that the script may change the state from now on, unobserved."""
        if self.alone:
            self.numbers.on(StateEvent.TORN)

    # Events of training

    def on_whole(self) -> None:
        """Record that the present state is that of a whole step."""
        self._generations.record_step()

    def on_forward(self, *, with_gradients: bool, in_step: bool) -> None:
        """Save the small state after a forward: from now on this rank may contribute to the step.

        The others may then complete the step without this rank, so its own state at the end of the step must be known.
        After an optimizer's step only a forward with gradients counts, such as a second network's: it may contribute as
        well. An evaluation there contributes nothing, and if a rank dies in it, its state belongs to no step.
        """
        # If a model runs while parameters change, the other ranks may wait there for one that died.
        self.role.at_intervals |= in_step or self._generations.have_changed()
        if self._keeps_small and (with_gradients or (self._small.is_pending and not in_step)):
            self._write_pending()

    def on_change(self) -> None:
        """Save the small state of the step before its parameters change."""
        if not self.numbers.is_changing:
            self._collectives = TorchGroups().begun()
        if self._keeps_small and not self.alone:
            self._write_pending()

    @property
    def _keeps_small(self) -> bool:
        return self.memory.arena is not None and self.numbers.stage is not StateStage.UNKEPT

    def _write_pending(self) -> None:
        """Write the present small state, as one within the step."""
        try:
            taken = self._small.take_pending()
        except KeptStateError:
            return  # the end of the step reports it
        self._small.write(taken, self.commits.of(self.numbers.next, PENDING))

    def keep_step(self) -> bool:
        """Write the small state at the end of a step, and the big one if it is due; return False if it is no step."""
        if self.numbers.stage is StateStage.UNKEPT:
            return True
        try:
            if not self._generations.record_step():
                self.numbers.on(StateEvent.TORN)
                return False
            # If ranks meet while parameters change, they may wait there for one that died, with no whole step to save.
            self.role.at_intervals = self.role.at_intervals or (self._is_trained and self._have_met())
            if not self.numbers.has_optimizer:
                self._collectives = TorchGroups().begun()
            if self.role.follows:
                taken = self._small.take()
                fits = self._write_small(taken)
                self._check_sizes(taken, now=not fits or self.memory.awaited or self._generations.have_grown())
            if self.role.at_intervals and self.role.saves:
                self._save_if_due()
        except KeptStateError as error:  # no state is worth the end of a training
            self._give_up(str(error))
        return True

    @property
    def _sees_changes(self) -> bool:
        return self.numbers.has_optimizer or self._generations.is_trained

    @property
    def _is_trained(self) -> bool:
        return self._sees_changes or self.numbers.count >= COMPARED_AFTER

    def _have_met(self) -> bool:
        """Whether ranks have met in a collective since parameters could change in this step, if that is known."""
        return self._collectives is not None and self._collectives != TorchGroups().begun()

    def _give_up(self, problem: str) -> None:
        """Keep nothing any more."""
        self.numbers.refuse(problem)
        self.memory.refuse(problem)
        self._report(NotSaved(problem))

    def _save_if_due(self) -> None:
        """Save the big state, if the interval is over."""
        interval, arena = self.interval, self.memory.arena
        is_due = interval.end_step(self.done, time.monotonic())
        if arena is not None and is_due:
            answer = self.save(0, last=False)
            if isinstance(answer, NotSaved):
                interval.record_skip()
            elif answer.length:
                interval.record_save(answer.seconds)
            self._report(answer)
            if (news := interval.news()) is not None:
                self._report(news)
        elif not self.role.follows and self._is_time_to_check:
            self._check_sizes(self._small.take(), now=True)
        interval.begin_step(self.done, time.monotonic())

    # Saving

    def save(self, asked: int, *, last: bool) -> Saved | NotSaved:
        """Save the last step; `asked` is the number of the request or 0, and `last` marks the last save of a round.

        If the small state is not kept at each step, it is taken now; then only the training thread calls this.
        """
        if self.role.follows or self.numbers.stage is StateStage.TORN:
            return self._save_big(asked, last=last)
        if why := self._obstacle():
            return NotSaved(why, asked)
        try:
            taken = self._small.take()
        except KeptStateError as error:  # a value has become one that cannot be kept
            return NotSaved(str(error), asked)
        self._write_small(taken)
        answer = self._save_big(asked, last=last)
        self._check_sizes(taken, now=not isinstance(answer, Saved))
        return answer

    def _write_small(self, taken: Taken) -> bool:
        """Write the small state of the last step; return whether it fits."""
        return self._small.write(taken, self.commits.of(self.done))

    def _save_big(self, asked: int, *, last: bool) -> Saved | NotSaved:
        """Save the big state of the last step, with the small state that was written at its end."""
        commit = self.commits.of(self.done)
        if self.has_saved_last or self._generations.has(commit):
            return Saved(self.done, 0.0, 0, asked)
        if why := self._obstacle():
            return NotSaved(why, asked)
        began_at = time.monotonic()
        try:
            length = self._generations.write(commit, self._small.find(commit), last=last, watch=self.role.follows)
        except (NotNowError, KeptStateError, RuntimeError) as error:  # RuntimeError: a GPU that no longer answers
            return NotSaved(str(error), asked)
        self._newest = self.done
        return Saved(self.done, time.monotonic() - began_at, length, asked)

    def _obstacle(self) -> str:
        """Return why the last step cannot be saved; empty if it can."""
        if why := self.numbers.problem or self.commits.problem:
            return why
        if not self.role.saves:
            return "other workers of this node save the same state"
        if why := self.memory.obstacle():
            return why
        if self.commits.is_of_others(self.done):
            return "no step was done since this round began, and what it began from is kept"
        changed = self.role.follows and (
            self._generations.have_changed() or (not self._sees_changes and self._have_met())
        )
        return "tensors have changed since the last step was done" if changed else ""

    @property
    def _is_time_to_check(self) -> bool:
        """Whether this is one of the steps that become rarer: the first one, the second, the fourth ..."""
        return not self.numbers.count & (self.numbers.count - 1)

    def _check_sizes(self, taken: Taken, *, now: bool = False) -> None:
        """Request memory at the first step, and check now and then, or `now`, whether it still suffices."""
        if not (now or self._is_time_to_check):
            return
        small = self._small.bytes_needed(taken)
        # Most optimizers make their state in the first step, and its size is not known before.
        big = self._generations.bytes_needed(small) if self.role.saves and self.done >= 0 else 0
        self.memory.want(big, small, self.done, taken)
