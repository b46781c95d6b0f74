"""Keeps the state of each step: when what is saved, and by which thread.

Training holds `_whole` from the optimizer's step until `ctx.step` says that the step is done, so whoever else gets it
finds the state of a whole step. The thread that listens to nodeclient saves at the break of a round, when training is
stuck in a collective; the training thread itself saves at an interval, and when an exception ends the training. What
it costs to be asked at each step is the small state.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from workerlib.env import WorkerEnvironment
from workerlib.keep import restoring
from workerlib.keep.agent_channel import AgentChannel
from workerlib.keep.arena import PENDING, Arena, ArenaError
from workerlib.keep.arena_request import ArenaRequest
from workerlib.keep.channel_messages import (
    HaltAt,
    Hello,
    Message,
    NotSaved,
    RefusedMemory,
    Reserved,
    Saved,
    SaveNow,
)
from workerlib.keep.generations import Generations, NotNowError
from workerlib.keep.intervals import DISK_SHARE, FIRST_TOUCH_BYTES_S, SaveInterval
from workerlib.keep.kept_errors import KeptStateError
from workerlib.keep.kept_objects import KeptObject
from workerlib.keep.pending_state import PendingStates, after_closure
from workerlib.keep.planned_end import PlannedEnd
from workerlib.keep.process_hooks import ProcessHooks
from workerlib.keep.round_exit import RoundExit
from workerlib.keep.small_state import SmallStates, Taken
from workerlib.keep.step_commits import StepCommits
from workerlib.keep.step_numbers import StepNumbers
from workerlib.stop import REQUEST

WAIT_S = 2.0
"""How long a save waits for a step to be whole."""

STAND_STILL_S = 60.0
"""How long training stands still after a save at the break, until its node ends it: far longer than that takes."""

SAVERS = 2
"""The workers of a node that save what all ranks have alike: one may be the one that died."""


class StepKeeper:
    """Keeps what a script gave to `ctx.keep`."""

    def __init__(
        self,
        environment: WorkerEnvironment,
        objects: Mapping[str, KeptObject],
        generations: Generations,
        small: SmallStates,
        channel: AgentChannel,
    ) -> None:
        """Take what is to be kept; `generations` and `small` write it."""
        self._environment = environment
        self._objects = objects
        self._channel = channel
        self.planned_end = PlannedEnd(channel)
        self._small = small
        self._generations = generations
        self._interval = SaveInterval()
        self._whole = threading.Lock()
        self._ring = threading.Lock()
        """Held while a small state is written."""
        self._pending = PendingStates(small, self._ring, lambda: self._commits.of(self._numbers.next, PENDING))
        self._in_step = False
        """Whether the training thread holds `_whole`, which it does from the beginning of `optimizer.step`."""
        self._asked: SaveNow | None = None
        """The request of nodeclient for a save. The training thread makes the save if it gets there first."""
        self._over = False
        """Whether the round is over and its state saved. Then `_whole` is never released, so training stands still."""
        self._closed = False
        self._torn = False
        """Whether training has ended, so that its state may be that of no whole step."""
        self._numbers = StepNumbers()
        self._saved = -1
        self._count = 0
        self._problem = ""
        """Why nothing is kept any more; empty if something is."""
        self._commits = StepCommits(environment, [one for _, one in generations.tensors()])
        self._alone = self._commits.alone
        self._follows = not (self._alone and small.on_device)
        """Whether the small state of each step is kept. Where buffers are on a GPU, each step waits for it then."""
        self._saves = self._alone or environment.local_rank < SAVERS
        self._at_intervals = self._alone or generations.on_device
        """Whether there are saves at an interval, because a save at the break may fail or come too late."""
        self._memory = ArenaRequest(channel.tell, self._commits.shard, self._commits.shards)
        self._hooks = ProcessHooks()
        way_out = (self.planned_end, self._hooks, objects, self._whole, lambda: self._over)
        self.exit = RoundExit(*way_out, is_sharded=self._commits.has_sharded)

    # The beginning

    def begin(self, modules: Iterable[torch.nn.Module]) -> int:
        """Bring the objects to the newest state that was kept; return its step, -1 if there is none."""
        environment = self._environment
        self._channel.send(Hello(environment.local_rank, environment.round, os.getpid()))
        point = restoring.ask(self._channel)
        restored: Mapping[str, Any] = {}
        if point.step >= 0:
            restored = restoring.bring_back(point, self._objects, environment.rank)
            self._numbers.begin(point.step)
            self._commits.begin(point.round, point.step, point.shape)
        self.planned_end.keep_steps(self._done, self._keep_before_checkpoint, self._keep_when_over)
        self._generations.note_step()
        self._hooks.before_optimizers(self._before_optimizer)
        if not self._alone:
            self._hooks.after_forward(modules, self._after_forward)
        self.planned_end.listen(self._take)
        if point.step >= 0 or not self._alone:
            # This rank may die in its very first step, after it has contributed to it.
            self._look_at_sizes(self._small.take_first(restored), now=True)
            self._memory.await_answer()
        self._hooks.in_process(self.step, self.close, self._become_child)
        return point.step

    # Training

    def step(self, number: int) -> None:
        """Note that a step is done: what is kept from now on is the state of this step."""
        if self._closed:
            return
        if not self._in_step:
            self._hold()
        try:
            is_new = self._numbers.note_step(number)
            if is_new and not self._problem:
                self._keep_step()
            if self._asked is not None and (is_new or self._follows):
                self._answer(self._asked)
        finally:
            self._in_step = False
            if not self._over:
                self._whole.release()
        if is_new and (halt := self.planned_end.leave_step(number)) is not None and not self._over:
            self._hold()
            self._keep_last(halt)
        self.exit.check()

    def _keep_step(self) -> None:
        self._count += 1
        try:
            self._generations.note_step()
            if self._follows:
                taken = self._small.take()
                with self._ring:
                    fits = self._small.write(taken, self._commits.of(self._done))
                self._look_at_sizes(taken, now=not fits or self._memory.awaited or self._generations.have_grown())
            if self._at_intervals and self._saves:
                self._save_if_due()
        except KeptStateError as error:  # no state is worth the end of a training
            self._problem = str(error)
            self._memory.refuse(self._problem)
            self._channel.tell(NotSaved(self._problem))

    @property
    def _done(self) -> int:
        return self._numbers.done

    @property
    def _is_held(self) -> bool:
        """Whether the holder of `_whole` finds the state of a whole step, with its small state."""
        return self._follows and (not self._alone or self._numbers.has_optimizer)

    def _before_optimizer(self, _: object, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Wait for the change of parameters: it begins with the optimizer's step, or when its closure has returned."""
        if (wrapped := after_closure(given, named, self._begin_change)) is None:
            self._begin_change()
        return wrapped

    def _begin_change(self) -> None:
        """Note that parameters are about to change, so that the state is no longer that of a whole step."""
        if self._closed:
            return
        if self._follows:
            if self._keeps_small and not self._alone:
                self._pending.write()
            if not self._in_step:
                self._hold()
                self._in_step = True
        self._numbers.note_optimizer()

    def _after_forward(self, *_: object) -> None:
        """Save what forward has changed: from now on this rank may contribute to the step."""
        if torch.compiler.is_compiling() or self._closed:
            return
        self.exit.check()
        # Where a model runs while parameters change, the others may wait there for one that died.
        self._at_intervals |= self._in_step or self._generations.have_changed()
        if self._keeps_small:
            self._pending.note_forward(with_gradients=torch.is_grad_enabled(), optimized=self._in_step)

    @property
    def _keeps_small(self) -> bool:
        return self._memory.arena is not None and not self._problem

    def _hold(self) -> None:
        """Acquire `_whole`. Raises `KeptStateError` where the round was over long ago."""
        if not self._whole.acquire(timeout=STAND_STILL_S):
            self._closed = True
            raise KeptStateError(f"this round ended {STAND_STILL_S:g} s ago, so this worker ends")
        self.exit.check()

    # Saving

    def _save_if_due(self) -> None:
        """Save at an interval, if it is time to."""
        interval, arena = self._interval, self._memory.arena
        interval.end_step(time.monotonic())
        if arena is not None:
            interval.expect(arena.sizes.generation / FIRST_TOUCH_BYTES_S)
        if arena is not None and interval.due(self._done):
            answer = self._save(0)
            if isinstance(answer, NotSaved):
                interval.note_skip()
            elif answer.length:
                interval.note_save(answer.seconds)
            self._channel.tell(answer)
        elif not self._follows and not self._count & (self._count - 1):
            self._look_at_sizes(self._small.take())
        if (news := interval.news()) is not None:
            self._channel.tell(news)
        interval.begin_step(time.monotonic())

    def _save(self, asked: int) -> Saved | NotSaved:
        """Save the last step; `_whole` is held. The training thread has the small state at hand, if nobody follows."""
        if self._follows or self._torn:
            return self._save_big(asked)
        if why := self._obstacle():
            return NotSaved(why, asked)
        taken = self._small.take()
        with self._ring:
            self._small.write(taken, self._commits.of(self._done))
        answer = self._save_big(asked)
        self._look_at_sizes(taken, now=not isinstance(answer, Saved))
        return answer

    def _save_big(self, asked: int) -> Saved | NotSaved:
        """Save the big state of the last step, with the small state that was written at its end."""
        commit = self._commits.of(self._done)
        if self._saved == self._done >= 0 or self._generations.has(commit):
            return Saved(self._done, 0.0, 0, asked)
        if why := self._obstacle():
            return NotSaved(why, asked)
        began_at = time.monotonic()
        try:
            length = self._generations.write(commit, self._small.find(commit), last=asked > 0 or self._over)
        except (NotNowError, KeptStateError, RuntimeError) as error:  # RuntimeError: a GPU that no longer answers
            return NotSaved(str(error), asked)
        self._saved = self._done
        return Saved(self._done, time.monotonic() - began_at, length, asked)

    def _obstacle(self) -> str:
        """Return why the last step cannot be saved; empty if it can."""
        if self._torn:
            return "training has ended within a step"
        if why := self._problem or self._numbers.problem:
            return why
        if not self._saves:
            return "other workers of this node save the same state"
        if why := self._memory.obstacle():
            return why
        if self._commits.is_of_others(self._done):
            return "no step was done since this round began, and what it began from is kept"
        changed = self._follows and self._generations.have_changed()
        return "tensors have changed since the last step was done" if changed else ""

    def _keep_last(self, halt: HaltAt) -> None:
        """Save the step that was named, which is the last one of the round; `_whole` is held.

        All ranks leave out the same steps, so it may be a later one on all of them.
        """
        self._over = True
        early = NotSaved(f"step {halt.step} was to be kept, and training ended after step {self._done}", halt.number)
        self._channel.tell(early if self._done < halt.step else self._save(halt.number))

    def _keep_before_checkpoint(self) -> None:
        """Save the last step of the round: the order to do so is answered by the checkpoint that the script writes."""
        if not self._over:
            self._hold()
            self._keep_last(HaltAt(0, self._done))

    def _keep_when_over(self, halt: HaltAt) -> None:
        """Save the step that was named where training has ended."""
        if not self._over and self._whole.acquire(timeout=WAIT_S):
            self._keep_last(halt)
            self._whole.release()

    def _answer(self, question: SaveNow) -> None:
        """Save at the end of a round; `_whole` is held, and stays so if that succeeds."""
        self._asked = None
        # Where a rank has died, its shard is as old as its last save; where none has, all may be at the same step.
        if self._alone and self._environment.world_size > 1 and not (self._is_held and question.planned):
            self._channel.tell(NotSaved("only this rank has its state: it is saved at intervals", question.number))
            return
        answer = self._save(question.number)
        self._over = isinstance(answer, Saved)
        self._channel.tell(answer)

    def close(self, *, failed: bool) -> None:
        """Save what can be saved when training ends early: by an error, or because a node asked for it.

        The node may ask after that, as long as this process lives, and is answered at once.
        """
        if self._closed:
            return
        self._closed = True
        self.planned_end.end()
        self._hooks.remove()
        self._torn = self._in_step
        if not self._in_step and (self._over or not self._whole.acquire(timeout=WAIT_S)):
            return  # it was saved because the node asked for it
        if not failed or not self._alone:  # the process may be told to end before it has, and can save nothing then
            self._channel.tell(self._save(0))
        self._torn |= self._alone  # where nothing tells whether the script changes the state from now on
        if self._asked is not None:
            self._answer(self._asked)
        self._whole.release()

    # The thread that listens

    def _take(self, message: Message, files: list[int]) -> None:
        match message:
            case Reserved(disk_every_s):
                [file] = files
                if disk_every_s and not self._alone:
                    self._at_intervals, self._interval.least_s = True, DISK_SHARE * disk_every_s
                try:
                    arena = Arena.attach(file, writable=True)
                except (ArenaError, OSError) as error:
                    self._memory.refuse(str(error))
                else:
                    self._attach(arena)
                finally:
                    os.close(file)
            case RefusedMemory(why):
                self._memory.refuse(why)
            case SaveNow(number, planned=True) if REQUEST.listening:
                self._channel.tell(NotSaved("the script ends at a step of its choice, and saves that", number))
            case SaveNow():
                self._save_when_whole(message)

    def _save_when_whole(self, question: SaveNow) -> None:
        """Save as soon as no step is on; the training thread may get there first."""
        if self._over and self._saved == self._done:
            self._channel.tell(Saved(self._done, 0.0, 0, question.number))
            return
        self._asked = question
        if self._environment.world_size == 1 and not (self._is_held or self._closed):
            return  # only the training thread knows when its state is that of a whole step
        if not self._whole.acquire(timeout=WAIT_S):
            self._asked = None
            self._channel.tell(NotSaved(f"a step was not whole within {WAIT_S:g} s", question.number))
            return
        if self._asked is not None:
            self._answer(self._asked)
        if not self._over or self._closed:
            self._whole.release()

    def _attach(self, arena: Arena) -> None:
        with self._whole, self._ring:
            self._small.attach(arena)
            self._generations.attach(arena)
            waiting = self._memory.take(arena)
            if waiting is not None and waiting.step == self._done >= 0:
                commit = self._commits.of(waiting.step)
                if self._small.find(commit) is None:
                    self._small.write(waiting.state, commit)
        self._memory.answered.set()

    # Memory

    def _look_at_sizes(self, taken: Taken, *, now: bool = False) -> None:
        """Ask for memory at the first step, and look now and then, or `now`, whether it still suffices."""
        if not now and self._count & (self._count - 1):
            return
        small = self._small.bytes_needed(taken)
        # Of most optimizers the state is there after the first step, and its size is not known before.
        big = self._generations.bytes_needed(small) if self._saves and self._done >= 0 else 0
        self._memory.want(big, small, self._done, taken)

    def _become_child(self) -> None:
        """Leave the connection to the parent: a data loader's process keeps nothing."""
        self._closed = True
        self._hooks.remove()
        self.planned_end.abandon()
