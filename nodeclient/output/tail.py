"""The end of what a worker wrote to stderr; what it says of the cause is for `nodeclient.diagnosis` to find out."""

from __future__ import annotations

TAIL_BYTES = 64 * 1024
"""Kept of each worker: room for a deep traceback and the stacks of C++ below it, and for a progress bar redrawn
a few hundred times."""


class Tail:
    """Keeps the last bytes of a stream; they may be read by another thread."""

    wants_quiet = False

    def __init__(self) -> None:
        self.data = b""
        """Replaced, never changed in place."""

    def write(self, chunk: bytes) -> None:
        """Take the next bytes."""
        self.data = (self.data + chunk)[-TAIL_BYTES:]

    def quiet(self) -> None:
        """Nothing is held back."""

    def end(self) -> None:
        """Nothing is held back."""
