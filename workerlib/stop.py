"""Notices that the node asked this worker to stop (SIGTERM); standard library only.

What the workers then agree on among themselves is in `init`.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType

Handler = Callable[[int, FrameType | None], object] | int | None


class StopRequest:
    """The local half of a planned stop: whether SIGTERM arrived since `listen` was first called."""

    def __init__(self) -> None:
        self.received = False
        self._listening = False
        self._previous: Handler = None

    def listen(self) -> None:
        """Note SIGTERM from now on instead of dying of it; further calls do nothing.

        Raises `RuntimeError` outside the main thread, where Python does not let a handler be installed.
        """
        if self._listening:
            return
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError(
                "should_stop() was first called outside the main thread, where no SIGTERM "
                "handler can be installed: call it from the main thread"
            )
        self._previous = signal.signal(signal.SIGTERM, self._note)
        self._listening = True

    def close(self) -> None:
        """Put the handler back that `listen` replaced; a no-op if it replaced none."""
        if self._listening:
            # None stands for a handler that was not installed from Python, which Python cannot put back.
            previous = signal.SIG_DFL if self._previous is None else self._previous
            signal.signal(signal.SIGTERM, previous)
            self._listening = False

    def _note(self, _signum: int, _frame: FrameType | None) -> None:
        self.received = True
