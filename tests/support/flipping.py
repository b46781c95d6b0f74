"""Lets a bit flip in an agent that keeps state: no timer ever hits the moment before a digest is compared.

As a program, it becomes another one: `python -m tests.support.flipping PLACE COUNT PROGRAM ARGUMENTS...`. The bit flips
at occasion number COUNT, and the program writes a line that begins with `FLIPPED`. The occasions are, by place:

* `memory`: a generation whose digest was noted is about to be compared with it, here or on its way to another node. Of
  a small state there is often no other copy. Without it a training goes on as well, but not to the last bit.
* `wire`: bytes have come from another node, and their tag has not been checked yet.
"""

import random
import runpy
import sys
import threading
from types import FrameType
from typing import Any

from nodeclient.keeping.parts.digests import Digests
from nodeclient.keeping.parts.part_fetch import _receive_into
from nodeclient.keeping.parts.part_messages import Kind
from nodeclient.keeping.parts.part_server import _send_part

PLACES = ("memory", "wire")

FLIPPED = "a bit was flipped in"
"""The beginning of the line that the agent writes then."""


class Flipping:
    """Flips a bit of this process at the occasion of a place with the number `count`, in any thread."""

    def __init__(self, place: str, count: int) -> None:
        self._place = place
        self._left = count
        self._chance = random.Random(count)  # noqa: S311 - chaos, no secret

    def begin(self) -> None:
        """Wait for the occasion from now on."""
        enter = {"memory": self._in_memory, "wire": self._on_wire}[self._place]
        threading.settrace(enter)
        sys.settrace(enter)

    def _flip(self, data: memoryview) -> None:
        self._left -= 1
        if not self._left:
            at = self._chance.randrange(len(data))
            data[at] ^= 1 << self._chance.randrange(8)
            sys.stderr.write(f"{FLIPPED} {self._place}: byte {at:,} of {len(data):,}\n")
            sys.stderr.flush()

    def _in_memory(self, frame: FrameType, _event: str, _argument: Any) -> None:
        held = None
        if frame.f_code is Digests.check.__code__ and frame.f_back is not None:
            held = frame.f_back.f_locals["held"]
        elif frame.f_code is _send_part.__code__:
            held = frame.f_locals["held"]
        if held is not None and held.kind is Kind.BIG and held.place.digest(held.commit) is not None:
            self._flip(held.place.data[: held.commit.length])

    def _on_wire(self, frame: FrameType, _event: str, _argument: Any) -> Any:
        if frame.f_code is not _receive_into.__code__:
            return None
        received: memoryview = frame.f_locals["memory"]

        def go_on(_frame: FrameType, event: str, _argument: Any) -> Any:
            if event == "return":
                self._flip(received)
            return go_on

        return go_on


if __name__ == "__main__":
    Flipping(sys.argv[1], int(sys.argv[2])).begin()
    del sys.argv[:3]
    runpy.run_path(sys.argv[0], run_name="__main__")
