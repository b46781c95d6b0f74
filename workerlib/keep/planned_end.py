"""The planned end of a round, as nodeclient announces it: where this worker stands still, and what is saved there.

Without a word from the script it stands still in `ctx.step`. A script that writes checkpoints of its own asks whether
one is wanted, and then it stands still in that question. One connection serves both.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from workerlib.keep.agent_channel import AgentChannel
from workerlib.keep.channel_messages import (
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
from workerlib.keep.standstill import Standstill
from workerlib.packets import ChannelError
from workerlib.stop import REQUEST

LOG = logging.getLogger("workerlib.keep")

Take = Callable[[Message, list[int]], None]
"""Takes in what nodeclient says, with the descriptors that came along."""


CLOSE_WITHIN_S = 3.0
"""The thread that listens may wait for a step to be whole, see `keeper.WAIT_S`."""


class PlannedEnd:
    """Hears nodeclient in a thread of its own; one for each process."""

    def __init__(self, channel: AgentChannel) -> None:
        """Begin with a connection on which this worker has said who it is."""
        self._channel = channel
        self._standstill = Standstill()
        self._steps_are_kept = False
        self._writes_checkpoints = False
        self._ended = False
        self._save: Callable[[], None] | None = None
        self._save_when_over: Callable[[HaltAt], None] | None = None
        self._thread: threading.Thread | None = None
        self._halt: HaltAt | None = None
        """The order that the checkpoint answers which is being written."""

    def listen(self, take: Take | None = None) -> None:
        """Hear nodeclient from now on; `take` gets what is not about a step to stand still after."""
        work = self._receive_all
        self._thread = threading.Thread(target=work, args=(take or self._refuse,), name="workerlib-keep", daemon=True)
        self._thread.start()

    def keep_steps(self, step: int, save: Callable[[], None], save_when_over: Callable[[HaltAt], None]) -> None:
        """Stand still in `leave_step` from now on; training goes on from a step.

        `save` keeps the last step of the round where the script then writes a checkpoint of its own, `save_when_over`
        where training has ended before.
        """
        self._steps_are_kept, self._save, self._save_when_over = True, save, save_when_over
        self._standstill.begin(step)

    def end(self) -> None:
        """Note that training is over: it goes no further than it is."""
        self._ended = True
        self._standstill.end()

    def release(self) -> None:
        """Let training go on where it stands still: this worker leaves the round."""
        self._standstill.release()

    def close(self) -> None:
        """End the connection, and the thread that listens."""
        self._channel.end()
        if self._thread is not None:
            self._thread.join(CLOSE_WITHIN_S)
        self._channel.abandon()

    def abandon(self) -> None:
        """Leave the connection to the parent of this process, which was forked."""
        self._channel.abandon()

    # The training thread

    def leave_step(self, step: int) -> HaltAt | None:
        """Leave the end of a step as soon as training may go on; return who wants it kept as the last one."""
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

    def note_checkpoint(self, step: int) -> bool:
        """Tell nodeclient that a checkpoint is written; return whether that is the end of the round."""
        self._channel.report(Checkpointed(step, 0 if self._halt is None else self._halt.number))
        return self._halt is not None

    # The thread that listens

    def _receive_all(self, take: Take) -> None:
        """Listen until the connection ends, or this thread: nobody waits then for an answer that never comes."""
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
            pass  # nodeclient has gone, and its workers follow
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
