"""One fork of the parent interpreter, from the node's side: it waits until it is told which worker it is."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Sequence

from coordinatord.protocol.errors import OperationalError
from nodeclient.workers.spawn import WorkerCommand

FORKED = b"forked"
"""The line with which the parent interpreter says that the process in between has ended."""

ANSWER_BYTES_MAX = 1_024


class ForkServerError(OperationalError):
    """The parent interpreter cannot do its work; the text says why."""


class WaitingFork:
    """A fork that was requested over `link`, the connection to the parent interpreter. It ends when this is closed.

    Its process id and any error arrive over a socket of its own, so nobody has to wait for them meanwhile.
    """

    def __init__(self, link: socket.socket) -> None:
        """Request a fork. Raises `OSError`."""
        self._socket, theirs = socket.socketpair()
        try:
            with theirs:
                socket.send_fds(link, [b"."], [theirs.fileno()])
        except OSError:
            self.close()
            raise

    def become(self, command: WorkerCommand, streams: Sequence[int], until: float) -> int:
        """Let the fork be a worker; return its process id, as that of a child.

        `streams` are its stdin, stdout and stderr. It has `until`, in the monotonic clock, to be there. Raises
        `OSError`, `EOFError` and `ForkServerError`; close this object then, and there is no worker.
        """
        pid = self._await_pid(until)
        look = os.WEXITED | os.WSTOPPED | os.WNOHANG | os.WNOWAIT
        if os.waitid(os.P_PID, pid, look) is not None:  # raises unless it is our child
            # A frozen fork would take the request, and never begin. It would not end with its socket either.
            os.kill(pid, signal.SIGKILL)
            raise EOFError("it ended or is frozen")
        request = {
            "argv": [as_bytes(word) for word in command.argv],
            "environ": {as_bytes(name): as_bytes(value) for name, value in command.environ.items()},
            "cpus": None if command.cpus is None else sorted(command.cpus),
            "node": os.getpid(),
        }
        text = json.dumps(request).encode() + b"\n"
        self._socket.settimeout(_left(until))
        sent = socket.send_fds(self._socket, [text], list(streams))
        if sent < len(text):  # a fork that has it all is the worker: not even an empty send may fail then
            self._socket.sendall(text[sent:])
        return pid

    def close(self) -> None:
        """Close the socket: a fork that was not told everything by then ends."""
        self._socket.close()

    def _await_pid(self, until: float) -> int:
        """Wait until the fork is a child of this process; return its process id."""
        pid, is_child, unread = 0, False, b""
        while not (pid and is_child):
            self._socket.settimeout(_left(until))
            if not (received := self._socket.recv(ANSWER_BYTES_MAX)):
                raise EOFError("it ended")
            *lines, unread = (unread + received).split(b"\n")
            for line in lines:
                if line.isdigit():
                    pid = int(line)
                elif line == FORKED:
                    is_child = True
                else:
                    raise ForkServerError(line.decode(errors="replace"))
        return pid


def as_bytes(text: str) -> str:
    """Return the bytes of a text in the system's encoding, each as a character; see `hook/preload_parent.py`."""
    return os.fsencode(text).decode("latin-1")


def _left(until: float) -> float:
    return max(0.001, until - time.monotonic())
