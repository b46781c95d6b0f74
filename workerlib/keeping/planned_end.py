"""The planned end of a round, which nodeclient announces: all workers stand still after one step, and save it.

A round ends on purpose when a node arrives or leaves, or an operator asks. Workers that all save the same step lose
none. They find that step without communication among them:

* nodeclient usually first sends a `HaltAt` that names no step. From then on the training thread stands still at the end
  of its current step. The thread that reads from nodeclient answers at once with the number of that step.
* The coordinator names the furthest of these steps, in another `HaltAt`. No rank has passed it. All ranks can reach it,
  since each contributes to a step before it stands still at its end.
* When that step is done, the training thread saves it in `ctx.step`, which answers the `HaltAt`. If its script writes
  checkpoints, it stands still in `should_checkpoint` instead, and the checkpoint is the answer.
* If not all ranks come to that step in time, nodeclient sends `SaveNow`, as it does when a round breaks.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from workerlib.contract.channel_messages import (
    BEFORE_NAMED,
    Checkpointed,
    Checkpointing,
    HaltAt,
    Halted,
    Message,
    NotSaved,
    SaveNow,
    at_own_step,
)
from workerlib.keeping.keep_channel import KeepChannel
from workerlib.stop import STOP_REQUEST


class Standstill:
    """Blocks the training thread between two steps; the thread that reads from nodeclient sets the limit."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._halt: HaltAt | None = None
        """The order that limits training; None if there is none."""
        self._passed = -1
        """The last step for which `wait_after` has returned, or that of `start_from`; -1 if there is none."""
        self._stride = 1
        """The difference between the numbers of successive steps at which training may stand still."""
        self._halted_at: int | None = None
        """The step after which training stands still now; None while it goes on."""

    def start_from(self, step: int) -> None:
        """Record the step from which training goes on, before any other thread uses this object."""
        self._passed = step

    def limit(self, halt: HaltAt) -> int:
        """Let training go no further than `halt`; return the step after which it probably stands still.

        If the script skips numbers of steps, training may stand still after a later step than that, or than `halt`
        names. All ranks skip the same numbers, so it is the same step on all of them.
        """
        with self._changed:
            self._halt = halt
            self._changed.notify_all()
            return self._passed + self._stride if self._halted_at is None else self._halted_at

    def end_training(self) -> None:
        """Record that training is over: no step follows."""
        with self._changed:
            self._halted_at = self._passed

    def release(self) -> None:
        """Let training go on without a limit."""
        with self._changed:
            self._halt = None
            self._changed.notify_all()

    def wait_after(self, step: int) -> HaltAt | None:
        """Wait at the end of a step until training may go on; return the order if this is the last step, else None."""
        with self._changed:
            if step > self._passed >= 0:
                self._stride = step - self._passed
            self._halted_at = step
            while self._halt is not None and self._halt.step == BEFORE_NAMED:
                self._changed.wait()
            self._halted_at, self._passed = None, step
            return self._halt if self._halt is not None and step >= self._halt.step else None


LOG = logging.getLogger("workerlib.keeping")

CLOSE_WITHIN_S = 3.0
"""How long to wait for the end of the thread that reads, which may wait for a step to be whole (`keeper.WAIT_S`)."""


class PlannedEnd:
    """This worker's side of a planned end: it obeys nodeclient's orders to stand still (`HaltAt`).

    It has a thread that reads all messages of its connection to nodeclient. A process has one such connection at a
    time, and so one object of this class. Messages other than `HaltAt` go on to the object that keeps state: the keeper
    of `ctx.keep`, or the connection of `kept_storage.KeptWriter`.
    """

    def __init__(self, channel: KeepChannel) -> None:
        self._channel = channel
        self._standstill = Standstill()
        self._writes_checkpoints = False
        """Whether the script calls `should_checkpoint`, and stands still there."""
        self._has_ended = False
        """Whether training is over, so that an order to stand still is answered by the thread that reads."""
        self._save: Callable[[], None] | None = None
        """Saves the last step, unless that is done, before the script writes a checkpoint; None without `ctx.keep`."""
        self._save_after_end: Callable[[HaltAt], None] | None = None
        """Saves the last step after the end of training, and answers the order; None without `ctx.keep`."""
        self._thread: threading.Thread | None = None
        self._halt: HaltAt | None = None
        """The order that the script answers with the checkpoint that it writes now; None if there is none."""

    def listen(
        self,
        on_message: Callable[[Message, list[int]], None] | None = None,
        on_end: Callable[[], None] | None = None,
    ) -> None:
        """Read messages from now on; `on_message` handles all but orders to stand still after a step.

        `on_end` is called when no more messages will come.
        """
        self._on_message = on_message or self._reject
        self._on_end = on_end
        self._thread = self._channel.listen("workerlib-keep", self._receive, self._end_reading)

    def halt_between_steps(self, step: int, save: Callable[[], None], save_after_end: Callable[[HaltAt], None]) -> None:
        """Stand still in `wait_after_step` from now on; training goes on from `step`."""
        self._save, self._save_after_end = save, save_after_end
        self._standstill.start_from(step)

    def end_training(self) -> None:
        """Record that training is over: no step follows. nodeclient may still send orders, and gets answers."""
        self._has_ended = True
        self._standstill.end_training()

    def release(self) -> None:
        """Let training go on if it stands still: this worker leaves the round."""
        self._standstill.release()

    def close(self) -> None:
        """End the connection, and the thread that reads from it: this process leaves its round, or cannot begin it."""
        self._channel.end()
        if self._thread is not None:
            self._thread.join(CLOSE_WITHIN_S)
        self._channel.close()

    # The training thread

    def wait_after_step(self, step: int) -> HaltAt | None:
        """Do as `Standstill.wait_after`, unless the script stands still in `wants_checkpoint`."""
        return None if self._writes_checkpoints else self._standstill.wait_after(step)

    def expect_checkpoints(self) -> None:
        """Stand still in `wants_checkpoint` from now on, and answer each order to save with a checkpoint."""
        if not self._writes_checkpoints:
            self._writes_checkpoints = True
            self._channel.report(Checkpointing())

    def wants_checkpoint(self, step: int) -> bool:
        """Stand still after a step; return whether the script has to write a checkpoint of it."""
        halt = self._standstill.wait_after(step)
        if halt is not None and self._save is not None:
            self._save()  # `ctx.keep` resumes from kept state, and not from the checkpoint
        self._halt = halt
        return halt is not None

    @property
    def is_writing_last(self) -> bool:
        """Whether the script has to write the last checkpoint of the round now."""
        return self._halt is not None

    def record_checkpoint(self, step: int) -> bool:
        """Report a written checkpoint to nodeclient; return whether it ends the round."""
        self._channel.report(Checkpointed(step, 0 if self._halt is None else self._halt.number))
        return self._halt is not None

    # The thread that reads

    def _receive(self, message: Message, files: list[int]) -> None:
        if isinstance(message, HaltAt):
            self._halt_at(message)
        else:
            self._on_message(message, files)
        if isinstance(message, SaveNow):
            self._standstill.release()  # the step that all ranks save will not be named any more, or came too late

    def _end_reading(self, failure: Exception | None) -> None:
        if failure is not None:
            LOG.warning("the state of this worker is not kept any more: %r", failure)
        self._standstill.release()
        if self._on_end is not None:
            self._on_end()

    def _halt_at(self, halt: HaltAt) -> None:
        """Obey an order to stand still, and answer it, unless the training thread will when it has done the step."""
        if STOP_REQUEST.listening and not self._writes_checkpoints:  # the script calls `should_stop`
            self._channel.report(at_own_step(halt.number))
            return
        if self._save is None and not self._writes_checkpoints:  # nothing calls `wait_after`
            self._channel.report(NotSaved("the script saves at steps of its own choice", halt.number))
            return
        promised = self._standstill.limit(halt)
        if halt.step == BEFORE_NAMED:
            # `promised` is -1 if training has ended before its first step.
            self._channel.report(Halted(max(promised, 0), halt.number))
        elif self._has_ended and self._save_after_end is not None:
            self._save_after_end(halt)
        elif self._has_ended:
            self._channel.report(NotSaved("training has ended", halt.number))

    def _reject(self, message: Message, _: list[int]) -> None:
        if isinstance(message, SaveNow):
            self._channel.report(NotSaved("", message.number))  # there is nothing to save
