"""Lets gloo's threads finish their use of Python objects; standard library only, from Python 3.10 on.

Each gloo process group has threads that run its collectives. A thread that has run one releases Python objects, which
needs the interpreter's lock (torch 2.13 keeps the context of a backward pass with it, `torch/autograd/graph.py`). If
C++ code that holds the lock, such as the `Reducer` of a DDP model, destroys the group just then, that code waits for
the thread and the thread for the lock, for ever. If Python ends just then, the process aborts. Neither can happen once
the threads are idle.

`Context.close` calls `let_threads_finish`, and so does the hook of `nodeclient --preload`, which loads this file by its
path. For a script that has no context, `agreement` registers the call for the end of Python.
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
import threading
import time

NAME = "pt_gloo_runloop"
"""torch's name of these threads (ProcessGroupGloo.cpp), which the kernel shows. Those of torch 2.4 have no name of
their own, but hold no Python objects either."""

FUTEX = {"202", "98"}
"""The numbers of the system call futex, on x86-64 and on arm64."""

TIMEOUT = 4
"""The index of the word in /proc/PID/syscall with the address of futex's timeout: the fourth argument, after the
number."""

LOOK_AGAIN_S = 0.001

RELEASE_S = 0.05
"""The pause where the threads cannot be seen. It is ten times as long as a thread waits at most for the interpreter's
lock (`sys.getswitchinterval`)."""

FINISH_S = 5.0
"""The longest wait: a thread that takes longer is in a collective that the script has not waited for."""

FINISH_AFTER_ERROR_S = 0.5
"""The limit after an uncaught exception: the peers may hang in a collective until this process has ended."""


def let_threads_finish() -> None:
    """Wait, without the interpreter's lock, until gloo's threads are idle; no longer than `FINISH_S`."""
    until = time.monotonic() + (FINISH_AFTER_ERROR_S if hasattr(sys, "last_value") else FINISH_S)
    pause = threading.Event()
    try:
        # Two looks are needed, since a thread that waits for another one's lock seems idle at the first.
        while not (_idle() and _idle()) and time.monotonic() < until:
            pause.wait(LOOK_AGAIN_S)
    except OSError:  # the kernel does not show system calls
        pause.wait(RELEASE_S)


@functools.cache  # registers once
def finish_before_exit() -> None:
    """Call `let_threads_finish` when Python ends."""
    atexit.register(let_threads_finish)


def _idle() -> bool:
    """Return whether all threads of gloo are idle. Raises `OSError`.

    An idle thread waits for work without a timeout. One that waits for a peer, or for the interpreter, has a timeout.
    """
    for task in os.listdir("/proc/self/task"):  # noqa: PTH208 - the hook avoids whatever would be imported
        try:
            if _read(task, "comm") != [NAME]:
                continue
            call = _read(task, "syscall")
        except (FileNotFoundError, ProcessLookupError):  # the thread has ended
            continue
        if call[0] not in FUTEX or int(call[TIMEOUT], 16):
            return False
    return True


def _read(task: str, name: str) -> list[str]:
    with open(f"/proc/self/task/{task}/{name}", encoding="ascii", errors="replace") as file:  # noqa: PTH123 - as above
        return file.read().split()
