"""Turns a fork of the parent interpreter into a worker that looks like one that was started cold.

A fork keeps much of its parent that exec would give a process anew. All of that is dealt with here, in one place.
"""

from __future__ import annotations

import ctypes
import io
import os
import signal
import sys
import threading
from typing import Any

MARK_VARIABLE = "COORDINATORD_MARK"
"""The same name as in `nodeclient.workers.process_tree`."""

BLOCK_MAX = 1 << 23
"""The largest size of a block in bytes that Python assumes for a file from 3.14 on; see `open` in its _pyio.py."""

OMP = "OMP_NUM_THREADS"

PR_SET_PDEATHSIG = 1
"""The value in linux/prctl.h."""

ENV_START = 47
"""The field of /proc/self/stat with the beginning of the environment, counted after the name; see proc_pid_stat(5)."""


class Line:
    """A socket to the node, over which a worker sends its process id and is let go."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def wait_for_go(self) -> None:
        """Send this process's id, and wait until the node knows it; end if the node has given this worker up."""
        os.write(self._descriptor, b"%d\n" % os.getpid())
        if os.read(self._descriptor, 1) != b"!":
            os._exit(1)
        os.close(self._descriptor)


def become_worker(request: dict[str, Any], streams: list[int], line: Line) -> None:
    """Turn this process into the worker of a request.

    The request has `argv`, the environment that it is `given` and the `environ` that it has after the imports, `cpus`
    (or null), and `node`, the process id of its parent to be.
    """
    os.setsid()
    _take_environment(request["environ"], request["cpus"])
    _show_environment(request["given"])
    line.wait_for_go()
    # Its life is bound to the node's only now: before it was the node's child, it would have died with the process in
    # between.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != request["node"]:
        os._exit(1)
    _take_streams(streams)
    _take_arguments(request["argv"])
    _look_again()
    _differ()
    _thaw_globals()


def _take_arguments(argv: list[str]) -> None:
    """Put in the worker's own arguments; those before them are the same in all workers."""
    own = len(sys.argv) - 1
    sys.argv[1:] = argv[len(argv) - own :]
    sys.orig_argv[:] = argv


def _take_environment(environ: dict[str, str], cpus: list[int] | None) -> None:
    before = _threads()
    os.environ.clear()
    os.environ.update(environ)
    if cpus is not None:
        os.sched_setaffinity(0, cpus)
    if _threads() != before and "torch" in sys.modules:
        # Otherwise torch keeps the number that OpenMP read when it was imported.
        sys.modules["torch"].set_num_threads(_threads())


def _show_environment(given: dict[str, str]) -> None:
    """Write the environment over the parent's where /proc shows it: the mark first, the rest as far as there is room.

    No system call does that. The node has made room. Nothing reads the old environment any more, since `os.environ` has
    moved all variables elsewhere.
    """
    with open("/proc/self/stat", "rb") as file:  # noqa: PTH123 - see `preload_parent`
        fields = file.read().rpartition(b")")[2].split()
    start, end = int(fields[ENV_START]), int(fields[ENV_START + 1])
    shown = b""
    for name in (MARK_VARIABLE, *given):
        variable = os.fsencode(f"{name}={given[name]}") + b"\0"
        if len(shown) + len(variable) <= end - start and not (shown and name == MARK_VARIABLE):
            shown += variable
    ctypes.memmove(start, shown.ljust(end - start, b"\0"), end - start)


def _threads() -> int:
    """Return how many threads OpenMP would start in a process of its own."""
    given = os.environ.get(OMP, "")
    return int(given) if given.isdecimal() and int(given) else len(os.sched_getaffinity(0))


def _take_streams(descriptors: list[int]) -> None:
    """Put in the worker's own streams."""
    for target, descriptor in enumerate(descriptors):
        was_terminal = os.isatty(target)
        os.dup2(descriptor, target, inheritable=True)
        os.close(descriptor)
        _begin_anew((sys.__stdin__, sys.__stdout__, sys.__stderr__)[target], target, was_terminal)


def _begin_anew(stream: Any, descriptor: int, was_terminal: bool) -> None:
    """Let a standard stream see what it is connected to now.

    At its start Python decides by what a stream is connected to (`create_stdio` in pylifecycle.c). Here that has
    changed. The stream must stay the same object, since modules may have kept it when they were imported. What modules
    have set on it must stay as well.
    """
    binary = stream.buffer
    unbuffered = isinstance(sys.__stdout__.buffer, io.FileIO)  # type: ignore[union-attr]  # there is a stdout
    raw: Any = io.FileIO(descriptor, "rb" if descriptor == 0 else "wb", closefd=False)
    raw.name = stream.name
    line_buffering = stream.line_buffering
    if line_buffering == _by_lines(descriptor, was_terminal, unbuffered):
        line_buffering = _by_lines(descriptor, raw.isatty(), unbuffered)
    if isinstance(binary, io.FileIO):
        binary = raw
    else:
        type(binary).__init__(binary, raw, _buffer_bytes(raw))
    io.TextIOWrapper.__init__(
        stream,
        binary,
        encoding=stream.encoding,
        errors=stream.errors,
        newline="\n",
        line_buffering=line_buffering,
        write_through=stream.write_through,
    )


def _buffer_bytes(raw: Any) -> int:
    """Return the size of the buffer that `io.open` gives a file by default."""
    block: int = raw._blksize  # noqa: SLF001 - `io.open` asks it as well
    return block if sys.version_info < (3, 14) else max(min(block, BLOCK_MAX), io.DEFAULT_BUFFER_SIZE)


def _by_lines(descriptor: int, terminal: bool, unbuffered: bool) -> bool:
    """Return whether Python writes a stream line by line by default."""
    return not unbuffered and (terminal or descriptor == 2)  # noqa: PLR2004 - stderr


def _look_again() -> None:
    """Forget the directories that the parent read, or missed, when it imported its modules; they are read again."""
    for path, finder in list(sys.path_importer_cache.items()):
        if finder is None:
            del sys.path_importer_cache[path]
        elif hasattr(finder, "invalidate_caches"):
            finder.invalidate_caches()


def _differ() -> None:
    """Renew what each process has for itself; `random` does so itself in every fork."""
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()
    # Python leaves it unchanged at a fork, and no public name sets it.
    threading.main_thread()._set_native_id()  # type: ignore[attr-defined]  # noqa: SLF001
    if "multiprocessing.process" in sys.modules:
        sys.modules["multiprocessing.process"].current_process().authkey = os.urandom(32)


def _thaw_globals() -> None:
    """Let the garbage collector see the globals of the program again, which the parent has frozen with everything else.

    Otherwise objects that they hold would survive to the end of Python, and their destructors would not be called. To
    unfreeze everything would do the same, but the end of each worker would take as long as a cold one's: with torch
    three times.
    """
    for name in ("PyObject_GC_UnTrack", "PyObject_GC_Track"):  # out of the frozen generation, and into the youngest
        function = getattr(ctypes.pythonapi, name)
        function.argtypes, function.restype = [ctypes.py_object], None
        function(sys.modules["__main__"].__dict__)
