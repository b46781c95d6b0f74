"""Keeps the state of each step: it decides when state is saved, and by which thread.

The thread that reads from nodeclient saves at the break of a round, when training is stuck in a collective. The
training thread itself saves at an interval, and when an exception ends the training. In each step, only the small state
costs time. Two things say what may be done with the state at a moment:

* Its stage (`step_saver.StateStage`): it is *untrained* until the first step is done or brought back. An optimizer's
  step makes it *changing*, and `ctx.step` *whole*, or *unnumbered* if the number is no new one. From there the next
  optimizer's step makes it changing again. Only whole state is saved. State that cannot be kept makes it *unkept*, and
  training that ends within a step makes it *torn*. Both are for the rest of the round.
* Its holder (`state_lock.StateHolder`): *training* takes the state before its first change of a step, and gives it back
  at the end of `ctx.step`. Between two steps *nobody* has it, and a *saver* may take it, does its work and gives it
  back. After the last save of the round the state is final: training waits where it would take it, until the process
  ends or leaves the round.

A keeper ends with the script's block, with the process, or when the process leaves the round. Then it saves once more
if it can, removes its hooks, and only answers nodeclient.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from workerlib.contract.arena import Arena, ArenaError
from workerlib.contract.channel_messages import (
    Comparison,
    HaltAt,
    Hello,
    Message,
    NotSaved,
    RefusedMemory,
    Reserved,
    Saved,
    SaveNow,
    Unkept,
    at_own_step,
    reason,
)
from workerlib.contract.env import KEEP, WorkerEnvironment
from workerlib.keeping import restoring
from workerlib.keeping.adapter import KeptObject
from workerlib.keeping.agent_channel import AgentChannel
from workerlib.keeping.generations import Generations
from workerlib.keeping.kept_errors import KeptStateError, UnreachableError
from workerlib.keeping.kept_objects import adapt
from workerlib.keeping.planned_end import PlannedEnd
from workerlib.keeping.process_hooks import ProcessHooks, after_closure
from workerlib.keeping.small_state import SmallStates
from workerlib.keeping.state_lock import StateHolder, StateLock
from workerlib.keeping.step_saver import StepSaver
from workerlib.keeping.unkept_state import UnkeptState
from workerlib.record import declare_final
from workerlib.stop import REQUEST

WAIT_S = 2.0
"""How long a save waits for a step to be whole."""

STAND_STILL_S = 60.0
"""How long training stands still after a save at the break. Its node ends it far earlier."""


class StepKeeper:
    """Keeps the state of the objects that a script gave to `ctx.keep`."""

    def __init__(
        self,
        environment: WorkerEnvironment,
        objects: Mapping[str, KeptObject],
        generations: Generations,
        small: SmallStates,
        channel: AgentChannel,
    ) -> None:
        """Take the objects to keep; `generations` and `small` write their state."""
        self._environment = environment
        self._objects = objects
        self._channel = channel
        self._saver = StepSaver(environment, generations, small, channel.report)
        self._unkept = UnkeptState(objects)
        self._gate = generations.gate
        """What optimizers wait for; None without a GPU."""
        self.planned_end = PlannedEnd(channel)
        self._lock = StateLock()
        self._has_ended = False
        """Whether nothing is kept any more: the script has left its block, or this process is a forked child."""
        self._hooks = ProcessHooks()
        self.is_reused = False
        """Whether this process may take part in the next round: then nothing of the script runs in vain before it."""
        self.is_sharded = self._saver.commits.has_sharded
        """Whether a rank has only a part of the state: then its tensors are bound to the process group of this
        round."""

    # The beginning

    def begin(self, modules: Iterable[torch.nn.Module]) -> int:
        """Bring the objects to the newest state that was kept; return its step, -1 if there is none.

        Raises `OSError` without nodeclient, and `KeptStateError`. After an error nothing is left in this process.
        """
        try:
            return self._begin(modules)
        except BaseException:
            self._has_ended = True
            self._hooks.remove()
            self.planned_end.close()
            raise

    def _begin(self, modules: Iterable[torch.nn.Module]) -> int:
        environment, saver = self._environment, self._saver
        self._channel.send(Hello(environment.worker, environment.round, os.getpid()))
        point = restoring.ask(self._channel)
        restored: Mapping[str, Any] = {}
        if point.step >= 0:
            restored = restoring.bring_back(point, self._objects, environment.rank, environment.world_size)
            saver.begin(point)
        self.planned_end.keep_steps(saver.done, self._keep_before_checkpoint, self._keep_when_over)
        saver.on_whole()
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
        """Keep the state of a step that is done: the present state is that of this step.

        Raises `LeftRoundError` if this process goes on in the next round instead.
        """
        if self._has_ended:
            return
        if not self._lock.is_in_step:
            self._begin_step()
        counts = True
        try:
            is_new = self._saver.numbers.on_step(number)
            if is_new:
                counts = self._saver.keep_step()
            if (is_new or self._saver.role.follows) and (question := self._lock.take_question()) is not None:
                self._answer(question)
        finally:
            self._lock.release()
        if not counts:
            self._stand_still()
        if is_new:
            self._saver.compare()
            self._saver.memory.await_growth()
            for what in self._unkept.find():
                self._channel.report(Unkept(what))
        if is_new and (halt := self.planned_end.leave_step(number)) is not None and not self._lock.is_final:
            self._begin_step()
            self._keep_last(halt)
            if self.is_reused:
                self._begin_step()  # stands still, as the state is final, until this worker leaves the round
        self._lock.check()

    def _before_optimizer(self, optimizer: torch.optim.Optimizer, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Record that parameters change: from now on, or after the optimizer's closure has returned."""
        self._unkept.record(optimizer)
        if (wrapped := after_closure(given, named, self._begin_change)) is None:
            self._begin_change()
        return wrapped

    def _begin_change(self) -> None:
        """Record that parameters are about to change, so that the state is no longer that of a whole step.

        Before the first change of a step, a GPU has to be past all collectives. Later ones wait for nothing: the state
        is that of no step until `ctx.step`. Raises as `Gate.open` and `_begin_step` do.
        """
        if self._has_ended:
            return
        if self._gate is not None and not self._saver.numbers.is_changing and not self._gate.open():
            self._stand_still()
        if self._saver.role.follows:
            self._saver.on_change()
            if not self._lock.is_in_step:
                self._begin_step()
        self._saver.numbers.on_optimizer()

    def _after_forward(self, *_: object) -> None:
        if torch.compiler.is_compiling() or self._has_ended:
            return
        self._lock.check()
        self._saver.on_forward(with_gradients=torch.is_grad_enabled(), in_step=self._lock.is_in_step)

    def _begin_step(self) -> None:
        """Take the state for training.

        Raises `KeptStateError` if the round was over long ago, and `LeftRoundError` as `StateLock.check` does.
        """
        if not self._lock.take(StateHolder.TRAINING, STAND_STILL_S):
            self._has_ended = True
            raise KeptStateError(f"this round ended {STAND_STILL_S:g} s ago, so this worker ends")

    def _stand_still(self) -> None:
        """Do no further step in this round, which is over. Raises as `_begin_step` does, and never returns.

        If only this worker knows that the round is over, it saves and ends, without torch's destructors: these would
        abort the collectives before the peers have saved.
        """
        if self._gate is not None and self._gate.failed:
            self.close(failed=True)
            sys.stdout.flush()
            sys.stderr.write(f"workerlib: {self._gate.failed}\n")
            sys.stderr.flush()
            os._exit(1)
        self._lock.is_final = True
        self._begin_step()

    # The last save of the round

    def _keep_last(self, halt: HaltAt) -> None:
        """Save the named step, which is the last one of the round, and give the state back.

        If the script leaves steps out, it is a later step, and the same one on all ranks.
        """
        try:
            self._lock.is_final = True
            done = self._saver.done
            early = NotSaved(f"step {halt.step} was to be kept, and training ended after step {done}", halt.number)
            self._channel.report(early if done < halt.step else self._saver.save(halt.number, last=True))
        finally:
            self._lock.release()

    def _keep_before_checkpoint(self) -> None:
        """Save the last step of the round. The checkpoint that the script then writes answers the order."""
        if not self._lock.is_final:
            self._begin_step()
            self._keep_last(HaltAt(0, self._saver.done))

    def _keep_when_over(self, halt: HaltAt) -> None:
        """Save the named step after training has ended."""
        if not self._lock.is_final and self._lock.take(StateHolder.SAVER, WAIT_S):
            self._keep_last(halt)

    def _answer(self, question: SaveNow) -> None:
        """Save at the end of a round. If that succeeds the state is final, unless training may still go on."""
        saver = self._saver
        # If a rank has died, its shard is as old as its last save. In a planned stop, all may be at the same step.
        same_step = saver.finds_whole_steps and question.planned
        if saver.alone and self._environment.world_size > 1 and not same_step:
            why = "each rank has state that no other rank has, and saves it at intervals"
            self._channel.report(NotSaved(why, question.number))
            return
        answer = saver.save(question.number, last=True)
        self._lock.is_final |= isinstance(answer, Saved) and not question.late
        self._channel.report(answer)

    def close(self, *, failed: bool) -> None:
        """Save the state, if possible, when training ends: early by an error or a request, or when it is done.

        The node may still ask for it as long as this process lives, and gets an answer at once.
        """
        if self._has_ended:
            return
        in_step = self._lock.is_in_step
        self._has_ended = True
        self.planned_end.end()
        self._hooks.remove()
        self._saver.end(in_step=in_step)
        if not in_step and (self._lock.is_final or not self._lock.take(StateHolder.SAVER, WAIT_S)):
            return  # the state was saved on request of the node
        try:
            if not failed or not self._saver.alone:  # a process that is ended within a save leaves that place empty
                self._channel.report(self._saver.save(0, last=failed))
            self._saver.release()
            if (question := self._lock.take_question()) is not None:
                self._answer(question)
        finally:
            self._lock.release()

    # The way into the next round, as the same process

    def let_leave(self) -> None:
        """Have `LeftRoundError` raised in the training thread: at once if it stands still, else in its next step.

        Collectives may be aborted when this returns.
        """
        self._lock.leave_round()
        self._saver.commits.answered.set()
        self.planned_end.release()
        if self._gate is not None:
            self._gate.shut()

    def leave_round(self) -> None:
        """Remove everything of this keeper from this process: the next round has another one."""
        self._hooks.remove()
        self._break_off()
        self.planned_end.close()
        for kept in self._objects.values():
            kept.forget_step()

    def _break_off(self) -> None:
        """Record that training has left the round, perhaps within a step, so that no save waits for it any longer."""
        if self._has_ended:
            return
        in_step = self._lock.is_in_step
        self._has_ended = True
        self._saver.end(in_step=in_step)
        if in_step:
            self._lock.release()

    def _become_child(self) -> None:
        """Close the connection in a forked child, such as a data loader's process: only its parent keeps state."""
        self._has_ended = True
        self._hooks.remove()
        self.planned_end.abandon()

    # The thread that reads from nodeclient

    def _take(self, message: Message, files: list[int]) -> None:
        match message:
            case Reserved(disk_every_s, lent):
                if disk_every_s:
                    self._saver.expect_disk(disk_every_s)
                self._attach(files, lent=lent)
                self._saver.memory.answered.set()
            case Comparison(alike):
                self._saver.learn(alike=alike)
            case RefusedMemory(why):
                self._saver.memory.refuse(why)
                self._attach(files)
                self._saver.memory.answered.set()
            case SaveNow(number, planned=True, late=False) if REQUEST.listening:
                self._channel.report(at_own_step(number))
            case SaveNow():
                # The round has broken: a peer that leaves it may abort its collectives from now on.
                if self._gate is not None and not (message.planned or message.late):
                    self._gate.shut()
                self._save_when_whole(message)

    def _attach(self, files: list[int], *, lent: bool = False) -> None:
        """Take the arena that has come with a packet, if one has.

        One that is lent comes when the round breaks, and training may then be stuck within a step.
        """
        for file in files:
            try:
                arena = Arena.attach(file, writable=True)
            except (ArenaError, OSError) as error:
                self._saver.memory.refuse(reason(error) if isinstance(error, OSError) else str(error))
            else:
                if self._lock.take(StateHolder.SAVER, WAIT_S if lent else None):
                    try:
                        self._saver.attach(arena, lent=lent)
                    finally:
                        self._lock.release()
            finally:
                os.close(file)

    def _save_when_whole(self, question: SaveNow) -> None:
        """Save as soon as training is between two steps; the training thread may answer the request before."""
        saver = self._saver
        if self._lock.is_final and saver.has_saved_last:
            self._channel.report(Saved(saver.done, 0.0, 0, question.number))
            return
        self._lock.ask(question)
        lone = self._environment.world_size == 1
        if lone and not saver.finds_whole_steps and not self._has_ended:
            return  # only the training thread knows when a step is whole
        if not self._lock.take(StateHolder.SAVER, WAIT_S):
            if self._lock.take_question() is not None:
                self._channel.report(NotSaved(f"a step was not whole within {WAIT_S:g} s", question.number))
            return
        try:
            if self._lock.take_question() is not None:
                self._answer(question)
        finally:
            self._lock.release()


LOG = logging.getLogger("workerlib.keeping")


def keep(environment: WorkerEnvironment, objects: Mapping[str, Any]) -> tuple[int, StepKeeper | None]:
    """Bring objects to the newest common state, and keep them from now on; return the step, and their keeper.

    Raises `KeptStateError` for state that cannot be kept or brought back.
    """
    try:
        adapters, generations, small = _prepare(environment, objects)
    except KeptStateError as error:
        if error.__cause__ is None:  # else an object of the script has failed, perhaps only this time
            declare_final(error)
        raise
    path = os.environ.get(KEEP)
    if path is None:
        LOG.info("no state is kept: this launcher offers no memory for it")
        return -1, None
    modules = [kept for kept in objects.values() if isinstance(kept, torch.nn.Module)]
    try:
        keeper = StepKeeper(environment, adapters, generations, small, AgentChannel(path))
        return keeper.begin(modules), keeper
    except OSError as error:
        raise UnreachableError(path, error) from error


def _prepare(
    environment: WorkerEnvironment, objects: Mapping[str, Any]
) -> tuple[Mapping[str, KeptObject], Generations, SmallStates]:
    """Adapt a script's objects. Raises `KeptStateError` for state that cannot be kept, whatever was kept before."""
    adapters = adapt(objects)
    if not adapters:
        raise KeptStateError("keep() was given nothing: give it what training depends on, as keep(model=model, ...)")
    generations, small = Generations(adapters, environment.world_size), SmallStates(adapters)
    generations.bytes_needed(0)
    small.take_first({})
    return adapters, generations, small
