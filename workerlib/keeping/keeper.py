"""Keeps the state of each step of one round: decides when state is saved, and by which thread.

A round breaks when a worker or a node dies, and the other workers then hang in a collective of the next step. Their
state is still that of the last whole step. So a thread beside training saves it, the one that reads from nodeclient.
The training thread itself saves at an interval, after the last step of a planned end, and when an exception ends
training.

Two things decide what a thread may do with the state: its stage (`step_numbers.StateStage`), since only the state of a
whole step is saved, and the owner of its lock (`state_lock.LockOwner`). With a GPU, its gate (`gate`) also has
training wait, so that nothing of an aborted collective comes into the state. Once the last step of the round is saved,
the state is *final*: from then on only `LockOwner.SAVER` can acquire the lock, and training blocks where it would.

In each step the training thread comes to `_after_forward`, to `_before_optimizer`, which acquires the lock, and to
`step`, which releases it. The other thread may come to `_on_message` at any time, and waits for the lock to save. A
rank may save no small states (`SaveRole.saves_small`). Then only its training thread saves until training is over, and
acquires the lock only in `step`. The other thread leaves requests to it, or answers `NotSaved` (`_save_for`).

A keeper ends with the script's block, with the process, or when the process leaves the round. Then it saves once more
if it can, removes its hooks, and only answers nodeclient.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, NoReturn

import torch

from workerlib import progress
from workerlib.contract.arena import Arena, ArenaError, refusal_text
from workerlib.contract.channel_messages import (
    Comparison,
    HaltAt,
    Message,
    NotSaved,
    RefusedMemory,
    Reserved,
    Saved,
    SaveNow,
    Unkept,
    Unstepped,
    at_own_step,
)
from workerlib.contract.env import WorkerEnvironment
from workerlib.keeping import restoring
from workerlib.keeping.adapter import Adapter
from workerlib.keeping.generations import GenerationWriter
from workerlib.keeping.keep_channel import KeepChannel, connect_if_offered
from workerlib.keeping.kept_errors import KeptStateError
from workerlib.keeping.kept_objects import adapt
from workerlib.keeping.planned_end import PlannedEnd
from workerlib.keeping.process_hooks import ProcessHooks, after_closure
from workerlib.keeping.small_state import SmallStateWriter
from workerlib.keeping.state_lock import LockOwner, StateLock
from workerlib.keeping.step_numbers import StateEvent
from workerlib.keeping.step_saver import StepSaver
from workerlib.keeping.unkept_state import UnkeptState
from workerlib.record import declare_final
from workerlib.stop import STOP_REQUEST

WAIT_S = 2.0
"""How long a save waits for training to leave a step: for the rest of an optimizer's step, unless that hangs."""

GPU_WITHIN_S = 0.5
"""How long a save on request, or after a failure, waits for a GPU, which may be stuck in a collective then."""

STAND_STILL_S = 60.0
"""How long training stands still after the last save of the round, before it fails. Its node ends it far earlier."""


class StepKeeper:
    """Keeps the state of the objects that a script passed to `ctx.keep`."""

    def __init__(
        self,
        environment: WorkerEnvironment,
        objects: Mapping[str, Adapter],
        generations: GenerationWriter,
        small: SmallStateWriter,
        channel: KeepChannel,
    ) -> None:
        """Keep the objects of these adapters; `generations` and `small` write their state."""
        self._environment = environment
        self._objects = objects
        self._channel = channel
        self._saver = StepSaver(environment, generations, small, channel.report)
        self._unkept = UnkeptState(objects)
        self._gate = generations.gate
        """The gate at which optimizers wait; None without a GPU."""
        self.planned_end = PlannedEnd(channel)
        self._lock = StateLock()
        self._process = os.getpid()
        """The process whose state is kept; 0 once the script has left its block, or the process its round."""
        self._hooks = ProcessHooks()
        self.is_reused = False
        """Whether this process may take part in the next round; the script then does nothing between the rounds."""
        self.is_sharded = self._saver.commits.has_sharded
        """Whether tensors are bound to the process group of this round, as a sharded model's are."""

    @property
    def _has_ended(self) -> bool:
        """Whether nothing is kept any more, as in a forked child, such as a data loader's process."""
        return os.getpid() != self._process

    # The beginning

    def begin(self, modules: Iterable[torch.nn.Module]) -> int:
        """Restore the newest state that was kept; return its step, -1 if there is none.

        Raises `KeptStateError`. An error leaves no hooks in this process.
        """
        environment, saver = self._environment, self._saver
        restored: Mapping[str, Any] = {}
        try:
            point = restoring.request_state(self._channel)
            if point.step >= 0:
                restored = restoring.restore_objects(point, self._objects, environment.rank, environment.world_size)
            saver.begin(point)
            # All of this is there before the other thread begins to read, which may be asked to save at once.
            self.planned_end.halt_between_steps(
                saver.last_step, save=self._save_before_checkpoint, save_after_end=self._save_after_end
            )
            self._hooks.before_optimizers(self._before_optimizer)
            if not saver.has_unique_state:  # otherwise nobody completes the step without this rank
                self._hooks.after_forward(modules, self._after_forward)
            self.planned_end.listen(self._on_message)
            if point.step >= 0 or not saver.has_unique_state:  # otherwise nothing is saved before the first step
                saver.ask_for_memory(restored)  # the other thread reads the answer
            self._hooks.in_process(self.step, self.close)
        except BaseException:
            self._process = 0
            self._hooks.remove()
            self.planned_end.close()
            raise
        return point.step

    # Training

    def step(self, number: int) -> None:
        """Record that the state is now that of this step, and make the saves that are due.

        Raises `LeftRoundError` if this process goes on in the next round instead.
        """
        if self._has_ended:
            return
        trained = self._saver.has_trained()  # may wait for a GPU, during which the other thread can save the last step
        if not self._lock.is_in_step:  # no optimizer's hook has acquired it in this step
            self._acquire_for_training()
        step_counts = True
        try:
            is_new = self._saver.numbers.on_step(number, trained=trained)
            if is_new:
                step_counts = self._saver.keep_step()
            # A call that is no new step, as in accumulation, comes after random numbers were drawn. So the last step
            # can be saved now only if its small state was saved at its end. If not, the request waits for a new step.
            can_save = is_new or self._saver.role.saves_small
            if can_save and (request := self._lock.pop_request()) is not None:
                self._save_for(request)
        finally:
            self._lock.release()  # from here on the other thread may save the step
        if not step_counts:  # the round broke within this step
            self._stand_still()
        if is_new:
            self._finish_new_step(number)
        self._lock.check_in_round()

    def _finish_new_step(self, number: int) -> None:
        """Do what does not need the lock after a new step, and save this step if the round ends with it."""
        self._saver.compare()
        self._saver.report_digest()
        self._saver.memory.await_growth()
        for what in self._unkept.find():
            self._channel.report(Unkept(what))
        halt = self.planned_end.wait_after_step(number)
        if halt is not None and not self._lock.is_final:
            self._acquire_for_training()
            self._save_last_step(halt)
            if self.is_reused:  # otherwise the script may go on to its end, and blocks if it begins another step
                self._stand_still()

    def _before_optimizer(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record that parameters change: from now on, or after the optimizer's closure has returned.

        Return the optimizer's arguments with another closure for torch, or None to leave them as they are.
        """
        self._unkept.record(optimizer)
        begin_change = partial(self._begin_change, optimizer)
        if (wrapped := after_closure(args, kwargs, begin_change)) is None:
            begin_change()
        return wrapped

    def _begin_change(self, optimizer: torch.optim.Optimizer) -> None:
        """Record that parameters are about to change, so that the state is no longer that of a whole step.

        Before the first change of a step, this opens the gate, or stands still if the round has ended. Raises as
        `Gate.open`, `_stand_still` and `_acquire_for_training` do.
        """
        if self._has_ended:
            return
        if self._gate is not None and not self._saver.numbers.is_changing and not self._gate.open():
            self._stand_still()
        if self._saver.role.saves_small:  # otherwise no other thread saves
            self._saver.on_change()  # saves the small state as pending
            if not self._lock.is_in_step:
                self._acquire_for_training()
        has_too_many_steps = self._saver.numbers.on_optimizer(id(optimizer), in_section=progress.is_in_section())
        if has_too_many_steps:
            self._channel.report(Unstepped(self._environment.rank))

    def _after_forward(self, *_: object) -> None:
        """Save the small state as pending; do nothing where torch.compile traces this hook."""
        if torch.compiler.is_compiling() or self._has_ended:
            return
        self._lock.check_in_round()
        self._saver.on_forward(with_gradients=torch.is_grad_enabled(), in_step=self._lock.is_in_step)

    def _acquire_for_training(self) -> None:
        """Acquire the lock for training; with a final state, raise as `_stand_still` does."""
        if not self._lock.acquire(LockOwner.TRAINING, STAND_STILL_S):
            raise self._overdue()

    def _stand_still(self) -> NoReturn:
        """Block until this worker leaves the round, which is over, or its process is ended.

        Raises `LeftRoundError` when it leaves, and `KeptStateError` if neither happens within `STAND_STILL_S`.

        If only this worker knows that the round is over, it saves and ends the process without torch's destructors:
        these would abort the collectives before the peers have saved.
        """
        if self._gate is not None and self._gate.failed:  # only this worker knows
            self.close(failed=True)
            sys.stdout.flush()
            sys.stderr.write(f"workerlib: {self._gate.failed}\n")
            sys.stderr.flush()
            os._exit(1)
        self._lock.is_final = True
        self._lock.acquire(LockOwner.TRAINING, STAND_STILL_S)  # never gets it, as the state is final
        raise self._overdue()

    def _overdue(self) -> KeptStateError:
        """Keep nothing any more; return the error of a worker that its node should have ended long ago."""
        self._process = 0
        return KeptStateError(f"this round ended {STAND_STILL_S:g} s ago, so this worker ends")

    # The last save of the round

    def _save_last_step(self, halt: HaltAt) -> None:
        """Save the last step of the round, which `halt` names, and release the lock, which the caller has acquired.

        If the script skips that number, the next one that it reports is saved: all ranks skip the same numbers.
        """
        try:
            self._lock.is_final = True
            done = self._saver.last_step
            early = NotSaved(f"step {halt.step} was to be kept, and training ended after step {done}", halt.number)
            if done >= halt.step:
                self._channel.report(self._saver.save(halt.number, last=True, gpu_within_s=GPU_WITHIN_S))
            else:
                self._channel.report(early)
        finally:
            self._lock.release()

    def _save_before_checkpoint(self) -> None:
        """Save the last step of the round in `should_checkpoint`, unless that is done already."""
        if not self._lock.is_final:
            self._acquire_for_training()
            self._save_last_step(HaltAt(number=0, step=self._saver.last_step))  # 0: it answers no order

    def _save_after_end(self, halt: HaltAt) -> None:
        """Save the last step of the round after training has ended, in the thread that reads."""
        if not self._lock.is_final and self._lock.acquire(LockOwner.SAVER, WAIT_S):
            self._save_last_step(halt)

    def _save_for(self, request: SaveNow) -> None:
        """Answer nodeclient's request at the end of a round; the caller has acquired the lock.

        A saved state is final, unless the request is `late`: then training goes on to the script's own step. Such a
        save may overwrite as a last one does, since the process may be ended before that step.
        """
        saver = self._saver
        # If each rank has a shard of its own, a step is of use only if all of them save it. After the death of a rank,
        # only steps that were saved at an interval are. At a planned end, all may have come to the same step, and save
        # it now if none of them has to do another step first (`is_whole_between_steps`).
        may_all_save = request.planned and saver.is_whole_between_steps
        if saver.has_unique_state and self._environment.world_size > 1 and not may_all_save:
            why = "each rank has state that no other rank has, and saves it at intervals"
            self._channel.report(NotSaved(why, request.number))
            return
        answer = saver.save(request.number, last=True, gpu_within_s=GPU_WITHIN_S)
        self._lock.is_final |= isinstance(answer, Saved) and not request.late
        self._channel.report(answer)

    def close(self, *, failed: bool) -> None:
        """Save the state, if possible, when training ends: when it is done, or early by an error or a request.

        As long as this process lives, the node may still ask for a save, and gets an answer at once.
        """
        if self._has_ended:
            return
        self._hooks.remove()
        in_step = self._end_training()
        if self._saver.numbers.lacks_steps and not failed:  # an error may have come before the first `ctx.step`
            self._channel.report(Unstepped(self._environment.rank))
        if not (in_step or failed) and self._saver.memory.awaited:
            self._saver.memory.await_answer()  # a short training may be over before its memory has come
        # Within a step this thread has the lock already, and `save` below only reports why nothing can be saved.
        has_lock = in_step or (not self._lock.is_final and self._lock.acquire(LockOwner.SAVER, WAIT_S))
        if has_lock and not (in_step or failed):
            self._saver.accept_last_changes()  # those since the last step
        self.planned_end.end_training()  # from now on the other thread saves too
        if not has_lock:
            return  # the last step is saved, or the other thread still saves it after `WAIT_S`
        try:
            # As the last save of the round, it may overwrite the newest saved step. If nobody else has that one either,
            # nothing is saved after a failure: the process may be ended meanwhile.
            if not failed or not self._saver.has_unique_state:
                gpu_within_s = GPU_WITHIN_S if failed else None
                self._channel.report(self._saver.save(0, last=True, gpu_within_s=gpu_within_s))
            self._saver.release()
            if (request := self._lock.pop_request()) is not None:
                self._save_for(request)
        finally:
            self._lock.release()

    def _end_training(self) -> bool:
        """Record that training is over; return whether it has ended within a step."""
        in_step, self._process = self._lock.is_in_step, 0
        if in_step:  # the state belongs to no step
            self._saver.numbers.apply(StateEvent.TORN)
        return in_step

    # Leaving the round, as the same process

    def interrupt(self) -> None:
        """Have `LeftRoundError` raised in the training thread: at once if it stands still, else in its next step.

        Collectives may be aborted when this returns.
        """
        self._lock.interrupt()
        self._saver.commits.answered.set()  # training may wait for it in `StepSaver.compare`
        self.planned_end.release()
        if self._gate is not None:
            self._gate.shut()

    def leave_round(self) -> None:
        """Remove this keeper from the process: the next round has another one."""
        self._hooks.remove()
        if not self._has_ended and self._end_training():
            self._lock.release()  # so that no save waits for the end of the step
        self.planned_end.close()
        for kept in self._objects.values():
            kept.discard_step()

    # The thread that reads from nodeclient

    def _on_message(self, message: Message, files: list[int]) -> None:
        """Handle a message; `planned_end` handles `HaltAt` by itself."""
        match message:
            case Reserved(disk_every_s, lent):
                if disk_every_s:
                    self._saver.expect_disk(disk_every_s)
                self._attach(files, lent=lent)
            case Comparison(alike):
                self._saver.record_comparison(alike=alike)
            case RefusedMemory(why):
                self._saver.memory.refuse(why)
                self._attach(files)  # there may be memory for the small state
                self._saver.memory.finish()
            case SaveNow(number, planned=True, late=False) if STOP_REQUEST.listening:
                # The script calls `should_stop`: it ends at a step of its choice, and then saves.
                self._channel.report(at_own_step(number))
            case SaveNow():
                # The round has broken: a peer that leaves it may abort its collectives from now on.
                if self._gate is not None and not (message.planned or message.late):
                    self._gate.shut()
                self._save_when_whole(message)

    def _attach(self, files: list[int], *, lent: bool = False) -> None:
        """Use the arena that has come with a packet, if one has.

        A `lent` one comes when the round breaks, and training may then be stuck within a step.
        """
        for file in files:
            try:
                arena = Arena.attach(file, writable=True)
            except (ArenaError, OSError) as error:
                self._saver.memory.refuse(refusal_text(error) if isinstance(error, OSError) else str(error))
                self._saver.memory.finish()
            else:
                if self._lock.acquire(LockOwner.SAVER, WAIT_S if lent else None):
                    try:
                        self._saver.attach(arena, lent=lent)
                    finally:
                        self._lock.release()
            finally:
                os.close(file)

    def _save_when_whole(self, request: SaveNow) -> None:
        """Save as soon as training is between two steps, unless the training thread answers the request before."""
        saver = self._saver
        if self._lock.is_final and saver.has_saved_last:
            self._channel.report(Saved(saver.last_step, seconds=0.0, length=0, asked=request.number))
            return
        self._lock.set_request(request)
        lone = self._environment.world_size == 1
        if lone and not saver.is_whole_between_steps and not self._has_ended:
            return  # only the training thread knows when a step is whole; it answers then, as it waits for no peer
        if not self._lock.acquire(LockOwner.SAVER, WAIT_S):
            if self._lock.pop_request() is not None:
                self._channel.report(NotSaved(f"a step was not whole within {WAIT_S:g} s", request.number))
            return
        try:
            if self._lock.pop_request() is not None:
                self._save_for(request)
        finally:
            self._lock.release()


LOG = logging.getLogger("workerlib.keeping")


def keep(environment: WorkerEnvironment, objects: Mapping[str, Any]) -> tuple[int, StepKeeper | None]:
    """Restore the newest common state, and keep it from now on; return its step (-1 for none) and the keeper.

    The keeper is None if the launcher offers no memory. Raises `KeptStateError` as `Context.keep` does.
    """
    try:
        adapters, generations, small = _prepare(environment, objects)
    except KeptStateError as error:
        if error.__cause__ is None:  # with a cause, an object of the script has failed, perhaps only this time
            declare_final(error)  # a restart would not help
        raise
    channel = connect_if_offered(environment)
    if channel is None:
        LOG.info("no state is kept: this launcher offers no memory for it")
        return -1, None
    keeper = StepKeeper(environment, adapters, generations, small, channel)
    modules = [kept for kept in objects.values() if isinstance(kept, torch.nn.Module)]
    return keeper.begin(modules), keeper


def _prepare(
    environment: WorkerEnvironment, objects: Mapping[str, Any]
) -> tuple[Mapping[str, Adapter], GenerationWriter, SmallStateWriter]:
    """Return the adapters of objects, and the writers of their state. Raises `KeptStateError` if it cannot be kept."""
    adapters = adapt(objects)
    if not adapters:
        raise KeptStateError("keep() was given nothing: pass it the objects of the training, as keep(model=model, ...)")
    generations, small = GenerationWriter(adapters, environment.world_size), SmallStateWriter(adapters)
    # Both read the whole state once, so that state that cannot be kept fails now, also without nodeclient's memory.
    generations.bytes_needed(0)
    small.first_snapshot({})
    return adapters, generations, small
