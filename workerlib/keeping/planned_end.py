"""The planned end of a round, which nodeclient announces: where this worker stands still, and which state is saved.

By default a worker stands still in `ctx.step`. A script that writes checkpoints of its own stands still in
`should_checkpoint`. Both use the same connection.
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
from workerlib.contract.packets import ChannelError
from workerlib.keeping.agent_channel import AgentChannel
from workerlib.stop import REQUEST


class Standstill:
    """Holds the training thread between two steps, so that all ranks keep the same step without communication.

    nodeclient asks first how far training has come. From then on the training thread stands still at the end of its
    current step, and the answer is the number of that step. The coordinator names the furthest of these steps. No rank
    has passed it, and all can come to it: a rank has given its part of a step to the others before it stands still at
    the end. The training thread calls `leave`, and others call the other methods.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._halt: HaltAt | None = None
        self._passed = -1
        """The last step after which training went on, or will."""
        self._stride = 1
        """The number of the next step at which training may stand still, less that of the last one."""
        self._at: int | None = None
        """The step after which training stands still now; None while it goes on."""

    def begin(self, step: int) -> None:
        """Record the step from which training goes on."""
        self._passed = step

    def ask(self, halt: HaltAt) -> int:
        """Let training go no further than `halt`; return the step after which it probably stands still.

        If the script leaves steps out, it may be a later one. All workers leave out the same steps, so they stand still
        after the same one.
        """
        with self._changed:
            self._halt = halt
            self._changed.notify_all()
            return self._passed + self._stride if self._at is None else self._at

    def end(self) -> None:
        """Record that training is over: no step follows."""
        with self._changed:
            self._at = self._passed

    def release(self) -> None:
        """Let training go on without a limit."""
        with self._changed:
            self._halt = None
            self._changed.notify_all()

    def leave(self, step: int) -> HaltAt | None:
        """Wait at the end of a step until training may go on; return the order to keep this step as the last one."""
        with self._changed:
            if step > self._passed >= 0:
                self._stride = step - self._passed
            self._at = step
            while self._halt is not None and self._halt.step == BEFORE_NAMED:
                self._changed.wait()
            self._at, self._passed = None, step
            return self._halt if self._halt is not None and step >= self._halt.step else None


LOG = logging.getLogger("workerlib.keeping")

Take = Callable[[Message, list[int]], None]
"""Takes a message of nodeclient, with its descriptors."""

CLOSE_WITHIN_S = 3.0
"""How long to wait for the end of the thread that reads, which may wait for a step to be whole (`keeper.WAIT_S`)."""


class PlannedEnd:
    """Reads the messages of nodeclient in a thread; one for each process."""

    def __init__(self, channel: AgentChannel) -> None:
        """Begin with a connection on which this worker has sent `Hello`."""
        self._channel = channel
        self._standstill = Standstill()
        self._steps_are_kept = False
        self._writes_checkpoints = False
        self._ended = False
        self._save: Callable[[], None] | None = None
        self._save_when_over: Callable[[HaltAt], None] | None = None
        self._thread: threading.Thread | None = None
        self._halt: HaltAt | None = None
        """The order that the checkpoint answers that is being written."""

    def listen(self, take: Take | None = None) -> None:
        """Read messages from now on; `take` gets all but orders to stand still after a step."""
        work = self._receive_all
        self._thread = threading.Thread(target=work, args=(take or self._refuse,), name="workerlib-keep", daemon=True)
        self._thread.start()

    def keep_steps(self, step: int, save: Callable[[], None], save_when_over: Callable[[HaltAt], None]) -> None:
        """Stand still in `leave_step` from now on; training goes on from a step.

        `save` keeps the last step of the round before the script writes a checkpoint of its own. `save_when_over` keeps
        it if training has ended before.
        """
        self._steps_are_kept, self._save, self._save_when_over = True, save, save_when_over
        self._standstill.begin(step)

    def end(self) -> None:
        """Record that training is over: no step follows."""
        self._ended = True
        self._standstill.end()

    def release(self) -> None:
        """Let training go on if it stands still: this worker leaves the round."""
        self._standstill.release()

    def close(self) -> None:
        """End the connection, and the thread that reads from it."""
        self._channel.end()
        if self._thread is not None:
            self._thread.join(CLOSE_WITHIN_S)
        self._channel.abandon()

    def abandon(self) -> None:
        """Leave the connection to the parent of this process, which was forked."""
        self._channel.abandon()

    # The training thread

    def leave_step(self, step: int) -> HaltAt | None:
        """Wait at the end of a step until training may go on; return the order to keep this step as the last one."""
        return None if self._writes_checkpoints else self._standstill.leave(step)

    def expect_checkpoints(self) -> None:
        """Stand still in `wants_checkpoint` from now on. Each order to save is answered by a checkpoint."""
        if not self._writes_checkpoints:
            self._writes_checkpoints = True
            self._channel.report(Checkpointing())

    def wants_checkpoint(self, step: int) -> bool:
        """Stand still after a step, and return whether the script is to write the checkpoint of it."""
        halt = self._standstill.leave(step)
        if halt is not None and self._halt is None and self._save is not None:
            self._save()
        self._halt = halt
        return halt is not None

    @property
    def is_writing_last(self) -> bool:
        """Whether the script was told to write the last checkpoint of the round."""
        return self._halt is not None

    def record_checkpoint(self, step: int) -> bool:
        """Report a written checkpoint to nodeclient; return whether it ends the round."""
        self._channel.report(Checkpointed(step, 0 if self._halt is None else self._halt.number))
        return self._halt is not None

    # The thread that reads

    def _receive_all(self, take: Take) -> None:
        """Read until the connection ends; this thread ends it as well, so that nodeclient waits for no answer."""
        try:
            while True:
                message, files = self._channel.receive()
                if isinstance(message, HaltAt):
                    self._halt_at(message)
                else:
                    take(message, files)
                if isinstance(message, SaveNow):
                    self._standstill.release()
        except (OSError, ChannelError):
            pass  # nodeclient is gone, and its workers end as well
        except Exception as error:  # noqa: BLE001 - no state is worth the end of a training
            LOG.warning("the state of this worker is not kept any more: %r", error)
            self._channel.end()
        self._standstill.release()

    def _halt_at(self, halt: HaltAt) -> None:
        if REQUEST.listening and not self._writes_checkpoints:
            self._channel.report(at_own_step(halt.number))
        elif not (self._steps_are_kept or self._writes_checkpoints):
            self._channel.report(NotSaved("the script saves at steps of its own choice", halt.number))
        else:
            promised = self._standstill.ask(halt)
            if halt.step == BEFORE_NAMED:
                self._channel.report(Halted(max(promised, 0), halt.number))
            elif self._ended and self._save_when_over is not None:
                self._save_when_over(halt)
            elif self._ended:
                self._channel.report(NotSaved("training has ended", halt.number))

    def _refuse(self, message: Message, _: list[int]) -> None:
        if isinstance(message, SaveNow):
            self._channel.report(NotSaved("", message.number))  # there is nothing to save
