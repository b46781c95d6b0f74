"""Waits until the threads of gloo are idle, before a process group is destroyed or Python ends.

Each gloo process group has threads that run its collectives. After a collective such a thread releases Python objects,
which needs the interpreter's lock: such as the context of a backward pass, which torch 2.13 puts into the thread-local
state that a collective takes along (`torch/autograd/graph.py`). If C++ code that holds the lock, such as the `Reducer`
of a DDP model, destroys the group just then, that code waits for the thread and the thread for the lock, for ever. If
Python ends just then, the process aborts.

`Context.close` calls `let_threads_finish`. For a script that has no context, `should_stop` registers the call for the
end of Python. Workers of `nodeclient --preload` get it by a hook, which loads this file by its path: their Python need
not have this package. So it uses only the standard library, from Python 3.10 on.
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
import threading
import time

NAME = "pt_gloo_runloop"
"""torch's name of these threads (ProcessGroupGloo.cpp). Those of torch 2.4 have none, but hold no Python objects."""

FUTEX = {"202", "98"}
"""The numbers of the system call futex, on x86-64 and on arm64."""

TIMEOUT_AT = 4
"""The index in /proc/PID/syscall of the address of futex's timeout: its fourth argument, after the number of the call.
The address is 0 if there is no timeout."""

CHECK_EVERY_S = 0.001
"""The pause between two checks of the threads."""

RELEASE_S = 0.05
"""The wait if the kernel does not show the threads: ten times `sys.getswitchinterval`."""

FINISH_S = 5.0
"""The longest wait: a thread that takes longer is in a collective that the script has not waited for."""

FINISH_AFTER_ERROR_S = 0.5
"""The limit after an uncaught exception: the peers may hang in a collective until this process has ended."""


def let_threads_finish() -> None:
    """Wait, without the interpreter's lock, until gloo's threads are idle, but no longer than `FINISH_S`."""
    until = time.monotonic() + (FINISH_AFTER_ERROR_S if hasattr(sys, "last_value") else FINISH_S)
    pause = threading.Event()
    try:
        # Two checks are needed: a thread that waits for another one's lock seems idle in the first, and when that one
        # has become idle too, it goes on, which the second check sees.
        while not (_are_idle() and _are_idle()) and time.monotonic() < until:
            pause.wait(CHECK_EVERY_S)
    except OSError:  # the kernel does not show system calls
        pause.wait(RELEASE_S)


@functools.cache  # registers once
def finish_before_exit() -> None:
    """Call `let_threads_finish` when Python ends."""
    atexit.register(let_threads_finish)


def _are_idle() -> bool:
    """Return whether all threads of gloo are idle. Raises `OSError`.

    An idle thread waits for work without a timeout. A thread that waits for a peer, or for the interpreter, has one.
    """
    for task in os.listdir("/proc/self/task"):  # noqa: PTH208 - the hook avoids whatever would be imported
        try:
            if _read(task, "comm") != [NAME]:
                continue
            call = _read(task, "syscall")
        except (FileNotFoundError, ProcessLookupError):  # the thread has ended
            continue
        if call[0] not in FUTEX or int(call[TIMEOUT_AT], 16):
            return False
    return True


def _read(task: str, name: str) -> list[str]:
    with open(f"/proc/self/task/{task}/{name}", encoding="ascii", errors="replace") as file:  # noqa: PTH123 - as above
        return file.read().split()
