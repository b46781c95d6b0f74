"""The worker's end of the channel to nodeclient about kept state; `channel_messages` has its messages."""

from __future__ import annotations

import os
import select

from workerlib.agent_channel import AgentChannel
from workerlib.contract.channel_messages import CODEC, Hello, Interval, Message, may_be_left_out
from workerlib.contract.env import KEEP, WorkerEnvironment
from workerlib.keeping.kept_errors import KeptStateError


class KeepChannel(AgentChannel[Message]):
    """The channel of one worker about kept state, for one round."""

    def __init__(self, path: str, environment: WorkerEnvironment) -> None:
        """Connect at a path. Raises `OSError`."""
        super().__init__(path, CODEC, Hello(environment.worker, environment.round))
        self._left_out: Interval | None = None
        """The last interval that was left out; None once it is sent."""

    def report(self, message: Message) -> None:
        """Send a message, as `AgentChannel.report` does; leave out what `may_be_left_out` while many are unread.

        Workers send such messages for as long as they train. If nodeclient stood still for a while, they would fill the
        channel, and the next message would end it. An interval is not reported again unless it changes, so the last one
        that was left out is sent before the next of these messages.
        """
        if not may_be_left_out(message):
            super().report(message)
        elif self._has_much_room():
            left_out, self._left_out = self._left_out, None
            if left_out is not None:
                super().report(left_out)
            super().report(message)
        elif isinstance(message, Interval):
            self._left_out = message

    def _has_much_room(self) -> bool:
        """Whether a quarter of the socket is full at most: that is when the kernel calls a Unix socket writable."""
        room = select.poll()
        try:
            room.register(self._socket, select.POLLOUT)
        except ValueError:  # it is closed, which `AgentChannel.report` handles
            return True
        return bool(room.poll(0))


def connect_if_offered(environment: WorkerEnvironment) -> KeepChannel | None:
    """Connect to nodeclient; return None if this launcher keeps no state. Raises `KeptStateError` if it fails."""
    path = os.environ.get(KEEP)
    if path is None:
        return None
    try:
        return KeepChannel(path, environment)
    except OSError as error:
        raise KeptStateError(
            f"nodeclient cannot be reached at {path} ({error.strerror}): run the script in the same container as"
            " nodeclient, or start nodeclient with --keep-memory 0"
        ) from error
