"""Lets a program die by SIGKILL at a line of our own code: no timer ever hits the moment between two stores to memory.

As a program, it becomes another one: `python -m tests.support.dying PLACE LINES PROGRAM ARGUMENTS...`
"""

import os
import runpy
import signal
import sys
import threading
from types import FrameType
from typing import Any

PLACES: dict[str, tuple[str, ...]] = {
    "small": ("workerlib/keeping/small_state.py", "workerlib/contract/arena.py"),
    "save": ("workerlib/keeping/generations.py", "workerlib/contract/arena.py"),
    "restore": ("workerlib/keeping/restoring.py", "workerlib/keeping/pieces.py", "workerlib/keeping/kept_objects.py"),
    "worker": ("workerlib/keeping/", "workerlib/contract/"),
    "arenas": ("nodeclient/keeping/parts/arena", "nodeclient/keeping/parts/digests.py"),
    "transfer": ("nodeclient/keeping/parts/part_",),
    "restoration": (
        "nodeclient/keeping/restoration.py",
        "nodeclient/keeping/parts/landing.py",
        "nodeclient/keeping/parts/part_fetch.py",
    ),
    "agent": ("nodeclient/keeping/",),
    "persist": ("nodeclient/keeping/disk/",),
}
"""What belongs to a place: parts of the paths of its files."""


def die_within(place: str, lines: int) -> None:
    """Let this process die when it has come to so many lines of a place, in whichever threads."""
    parts, left, known = PLACES[place], [lines], dict[str, bool]()

    def enter(frame: FrameType, _event: str, _argument: Any) -> Any:
        path = frame.f_code.co_filename
        if path not in known:
            known[path] = any(part in path for part in parts)
        return go_on if known[path] else None

    def go_on(_frame: FrameType, event: str, _argument: Any) -> Any:
        if event == "line":
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
        return go_on

    threading.settrace(enter)
    sys.settrace(enter)


if __name__ == "__main__":
    die_within(sys.argv[1], int(sys.argv[2]))
    del sys.argv[:3]
    runpy.run_path(sys.argv[0], run_name="__main__")
