"""Keeps the state of each step: when it is saved, and by which thread.

Training holds `_whole` from the optimizer's step until `ctx.step` says that the step is done, so whoever else gets it
finds the state of a whole step. The thread that listens to nodeclient saves at the break of a round, when training is
stuck in a collective; the training thread itself saves at an interval, and when an exception ends the training. What
it costs to be asked at each step is the small state. `step_saver` does the saving.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping
from enum import Enum, auto
from typing import Any

import torch

from workerlib.env import WorkerEnvironment
from workerlib.keep import restoring
from workerlib.keep.agent_channel import AgentChannel
from workerlib.keep.arena import Arena, ArenaError
from workerlib.keep.channel_messages import (
    HaltAt,
    Hello,
    Message,
    NotSaved,
    RefusedMemory,
    Reserved,
    Saved,
    SaveNow,
    at_own_step,
)
from workerlib.keep.generations import Generations
from workerlib.keep.kept_errors import KeptStateError, LeftRoundError
from workerlib.keep.kept_objects import KeptObject
from workerlib.keep.pending_state import after_closure
from workerlib.keep.planned_end import PlannedEnd
from workerlib.keep.process_hooks import ProcessHooks
from workerlib.keep.round_exit import RoundExit
from workerlib.keep.small_state import SmallStates
from workerlib.keep.step_saver import StepSaver
from workerlib.stop import REQUEST

WAIT_S = 2.0
"""How long a save waits for a step to be whole."""

STAND_STILL_S = 60.0
"""How long training stands still after a save at the break, until its node ends it: far longer than that takes."""


class Training(Enum):
    """Where the training thread is, as far as the state that it changes goes."""

    BETWEEN_STEPS = auto()
    """It does not hold `_whole`. Who does finds a whole step then, see `StepSaver.finds_whole_steps`."""
    IN_STEP = auto()
    """It has begun to change parameters, and holds `_whole`."""
    ENDED = auto()
    """Nothing is kept any more: the script is out of its block, or this process is a child of the one that keeps."""


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
        self._saver = StepSaver(environment, generations, small, channel.tell)
        self.planned_end = PlannedEnd(channel)
        self._training = Training.BETWEEN_STEPS
        self._whole = threading.Lock()
        self._asked: SaveNow | None = None
        """The request of nodeclient for a save. The training thread makes the save if it gets there first."""
        self._over = False
        """Whether the round is over and its state saved. Then `_whole` is never released, so training stands still."""
        self._hooks = ProcessHooks()
        way_out = (self.planned_end, self._hooks, objects, self._whole, lambda: self._over, self._break_off)
        self.exit = RoundExit(*way_out, is_sharded=self._saver.commits.has_sharded)

    # The beginning

    def begin(self, modules: Iterable[torch.nn.Module]) -> int:
        """Bring the objects to the newest state that was kept; return its step, -1 if there is none."""
        environment, saver = self._environment, self._saver
        self._channel.send(Hello(environment.local_rank, environment.round, os.getpid()))
        point = restoring.ask(self._channel)
        restored: Mapping[str, Any] = {}
        if point.step >= 0:
            restored = restoring.bring_back(point, self._objects, environment.rank)
            saver.begin(point)
        self.planned_end.keep_steps(saver.done, self._keep_before_checkpoint, self._keep_when_over)
        saver.note_whole()
        self._hooks.before_optimizers(self._before_optimizer)
        if not saver.alone:
            self._hooks.after_forward(modules, self._after_forward)
        self.planned_end.listen(self._take)
        if point.step >= 0 or not saver.alone:
            saver.ask_for_memory(restored)
        self._hooks.in_process(self.step, self.close, self._become_child)
        return point.step

    # Training

    def step(self, number: int) -> None:
        """Note that a step is done: what is kept from now on is the state of this step."""
        if self._training is Training.ENDED:
            return
        if self._training is Training.BETWEEN_STEPS:
            self._hold()
        try:
            is_new = self._saver.numbers.note_step(number)
            if is_new:
                self._saver.keep_step()
            if self._asked is not None and (is_new or self._saver.follows):
                self._answer(self._asked)
        finally:
            self._training = Training.BETWEEN_STEPS
            if not self._over:
                self._whole.release()
        if is_new and (halt := self.planned_end.leave_step(number)) is not None and not self._over:
            self._hold()
            self._keep_last(halt)
        self.exit.check()

    def _before_optimizer(self, _: object, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Wait for the change of parameters: it begins with the optimizer's step, or when its closure has returned."""
        if (wrapped := after_closure(given, named, self._begin_change)) is None:
            self._begin_change()
        return wrapped

    def _begin_change(self) -> None:
        """Note that parameters are about to change, so that the state is no longer that of a whole step."""
        if self._training is Training.ENDED:
            return
        if self._saver.follows:
            self._saver.note_change()
            if self._training is Training.BETWEEN_STEPS:
                self._hold()
                self._training = Training.IN_STEP
        self._saver.numbers.note_optimizer()

    def _after_forward(self, *_: object) -> None:
        if torch.compiler.is_compiling() or self._training is Training.ENDED:
            return
        self.exit.check()
        in_step = self._training is Training.IN_STEP
        self._saver.note_forward(with_gradients=torch.is_grad_enabled(), in_step=in_step)

    def _hold(self) -> None:
        """Acquire `_whole`.

        Raises `KeptStateError` where the round was over long ago, and `LeftRoundError` as `RoundExit.check` does.
        """
        if not self._whole.acquire(timeout=STAND_STILL_S):
            self._training = Training.ENDED
            raise KeptStateError(f"this round ended {STAND_STILL_S:g} s ago, so this worker ends")
        try:
            self.exit.check()
        except LeftRoundError:
            self._whole.release()  # a save may wait for it
            raise

    # The last save of the round; `_whole` is held

    def _keep_last(self, halt: HaltAt) -> None:
        """Save the step that was named, which is the last one of the round.

        All ranks leave out the same steps, so it may be a later one on all of them.
        """
        self._over = True
        done = self._saver.done
        early = NotSaved(f"step {halt.step} was to be kept, and training ended after step {done}", halt.number)
        self._channel.tell(early if done < halt.step else self._saver.save(halt.number, last=True))

    def _keep_before_checkpoint(self) -> None:
        """Save the last step of the round: the order to do so is answered by the checkpoint that the script writes."""
        if not self._over:
            self._hold()
            self._keep_last(HaltAt(0, self._saver.done))

    def _keep_when_over(self, halt: HaltAt) -> None:
        """Save the step that was named where training has ended."""
        if not self._over and self._whole.acquire(timeout=WAIT_S):
            self._keep_last(halt)
            self._whole.release()

    def _answer(self, question: SaveNow) -> None:
        """Save at the end of a round; `_whole` stays held if that succeeds, unless training may still go on."""
        self._asked = None
        saver = self._saver
        # Where a rank has died, its shard is as old as its last save; where none has, all may be at the same step.
        same_step = saver.finds_whole_steps and question.planned
        if saver.alone and self._environment.world_size > 1 and not same_step:
            self._channel.tell(NotSaved("only this rank has its state: it is saved at intervals", question.number))
            return
        answer = saver.save(question.number, last=True)
        self._over = isinstance(answer, Saved) and not question.late
        self._channel.tell(answer)

    def close(self, *, failed: bool) -> None:
        """Save what can be saved when training ends early: by an error, or because a node asked for it.

        The node may ask after that, as long as this process lives, and is answered at once.
        """
        if self._training is Training.ENDED:
            return
        in_step = self._training is Training.IN_STEP
        self._training = Training.ENDED
        self.planned_end.end()
        self._hooks.remove()
        self._saver.end(in_step=in_step)
        if not in_step and (self._over or not self._whole.acquire(timeout=WAIT_S)):
            return  # it was saved because the node asked for it
        if not failed or not self._saver.alone:  # the process may be told to end before it has, and save nothing then
            self._channel.tell(self._saver.save(0, last=False))
        self._saver.leave_to_script()
        if self._asked is not None:
            self._answer(self._asked)
        self._whole.release()

    def _break_off(self) -> None:
        """Note that training is out of the round, perhaps within a step: a save that waits for it waits in vain."""
        if self._training is Training.ENDED:
            return
        in_step = self._training is Training.IN_STEP
        self._training = Training.ENDED
        self._saver.end(in_step=in_step)
        if in_step:
            self._whole.release()

    def _become_child(self) -> None:
        """Leave the connection to the parent: a data loader's process keeps nothing."""
        self._training = Training.ENDED
        self._hooks.remove()
        self.planned_end.abandon()

    # The thread that listens

    def _take(self, message: Message, files: list[int]) -> None:
        match message:
            case Reserved(disk_every_s):
                [file] = files
                if disk_every_s:
                    self._saver.expect_disk(disk_every_s)
                try:
                    arena = Arena.attach(file, writable=True)
                except (ArenaError, OSError) as error:
                    self._saver.memory.refuse(str(error))
                else:
                    with self._whole:
                        self._saver.attach(arena)
                finally:
                    os.close(file)
            case RefusedMemory(why):
                self._saver.memory.refuse(why)
            case SaveNow(number, planned=True, late=False) if REQUEST.listening:
                self._channel.tell(at_own_step(number))
            case SaveNow():
                self._save_when_whole(message)

    def _save_when_whole(self, question: SaveNow) -> None:
        """Save as soon as no step is on; the training thread may get there first."""
        saver = self._saver
        if self._over and saver.has_saved_last:
            self._channel.tell(Saved(saver.done, 0.0, 0, question.number))
            return
        self._asked = question
        lone = self._environment.world_size == 1
        if lone and not saver.finds_whole_steps and self._training is not Training.ENDED:
            return  # only the training thread knows when its state is that of a whole step
        if not self._whole.acquire(timeout=WAIT_S):
            self._asked = None
            self._channel.tell(NotSaved(f"a step was not whole within {WAIT_S:g} s", question.number))
            return
        if self._asked is not None:
            self._answer(self._asked)
        if not self._over or self._training is Training.ENDED:
            self._whole.release()
