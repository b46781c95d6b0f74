"""Turns a fork of the parent interpreter into a worker like one that was started as a new process.

A fork inherits identity, environment, streams and caches that a new process would not have. They are renewed here, some
of them before the node's request already, so that the worker starts soon after it.

This runs in the user's own Python, which may have none of our packages: it imports only the standard library.
"""

from __future__ import annotations

import ctypes
import io
import json
import os
import signal
import socket
import sys
import threading
from typing import Any

MARK_VARIABLE = "COORDINATORD_MARK"
"""The variable with the mark by which a worker is found; the same name as in `nodeclient.workers.process_tree`."""

CHUNK_BYTES = 1 << 16

STREAMS = 3
"""The number of descriptors in a request."""

BLOCK_MAX = 1 << 23
"""The largest buffer of a file from Python 3.14 on, in bytes; see `open` in its _pyio.py."""

OMP = "OMP_NUM_THREADS"

PR_SET_PDEATHSIG = 1
"""The value in linux/prctl.h."""

ENV_START = 47
"""The field of /proc/self/stat with the address of the environment, counted after the name; see proc_pid_stat(5)."""


def become_worker(descriptor: int, inherited: dict[str, str]) -> None:
    """Turn this process into a worker at the node's request.

    `descriptor` is the socket to the node, and `inherited` the parent's initial environment. The request has `argv`,
    `environ`, `cpus` (or null), and `node`, the process id of the node.
    """
    os.setsid()
    libc = ctypes.CDLL(None)
    _renew_identity()
    _thaw_globals()
    request, streams = _await_request(descriptor)
    given = {decoded(name): decoded(value) for name, value in request["environ"].items()}
    _replace_environment(_with_changes_of_imports(given, inherited), request["cpus"])
    _rewrite_proc_environ(given)
    # The kernel is asked to kill this process when its parent ends. Its first parent was an intermediate process, at
    # whose end the node became its parent (see `preload_parent`). The node sends its request only after that.
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != request["node"]:
        os._exit(1)
    _replace_streams(streams)
    _replace_arguments([decoded(word) for word in request["argv"]])
    _forget_directories()


def _await_request(descriptor: int) -> tuple[dict[str, Any], list[int]]:
    """Report this process's id to the node, and wait for its request; return it, with the worker's standard streams.

    End if the node ends, or does not need this worker.
    """
    text, streams = b"", list[int]()
    with socket.socket(fileno=descriptor) as link:
        link.settimeout(None)  # a module may have set a timeout for all new sockets
        try:
            link.sendall(b"%d\n" % os.getpid())
            while not text.endswith(b"\n"):
                chunk, received, _, _ = socket.recv_fds(link, CHUNK_BYTES, STREAMS)
                if not chunk:
                    os._exit(0)
                text += chunk
                streams += received
        except OSError:
            os._exit(0)
    return json.loads(text), streams


def decoded(encoded: str) -> str:
    """Decode a path, argument or variable that came as bytes, each as one character of Latin-1."""
    return os.fsdecode(encoded.encode("latin-1"))


def _with_changes_of_imports(given: dict[str, str], inherited: dict[str, str]) -> dict[str, str]:
    """Return the `given` environment of a worker with the changes that imports have made in the parent.

    A variable whose given value differs from the parent's initial one keeps the given value, because imports might have
    changed it in another way.
    """
    environ = dict(given)
    for name in inherited.keys() | os.environ.keys():
        before, after = inherited.get(name), os.environ.get(name)
        if before == after or given.get(name) != before:
            continue
        if after is None:
            del environ[name]
        else:
            environ[name] = after
    return environ


def _replace_arguments(argv: list[str]) -> None:
    """Replace the program's arguments.

    The parent interpreter was started with the same options of Python, and as many arguments: the last ones of `argv`.
    """
    own = len(sys.argv) - 1
    sys.argv[1:] = argv[len(argv) - own :]
    sys.orig_argv[:] = argv


def _replace_environment(environ: dict[str, str], cpus: list[int] | None) -> None:
    threads_before = _threads()
    os.environ.clear()
    os.environ.update(environ)
    if cpus is not None:
        os.sched_setaffinity(0, cpus)
    if _threads() != threads_before and "torch" in sys.modules:
        # torch has the number that OpenMP read when torch was imported.
        sys.modules["torch"].set_num_threads(_threads())


def _rewrite_proc_environ(given: dict[str, str]) -> None:
    """Overwrite the environment that /proc shows: first the mark, then as many variables as fit.

    No system call does that, so the memory is overwritten. The parent was started with a larger environment for that:
    see `room` in `preload_parent`. Nothing else reads it once `_replace_environment` has set all variables, since these
    then lie elsewhere.
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
    """Return how many threads OpenMP would start in a new process."""
    given = os.environ.get(OMP, "")
    return int(given) if given.isdecimal() and int(given) else len(os.sched_getaffinity(0))


def _replace_streams(descriptors: list[int]) -> None:
    """Replace the parent's standard streams by the worker's own."""
    for target, descriptor in enumerate(descriptors):
        was_terminal = os.isatty(target)
        os.dup2(descriptor, target, inheritable=True)
        os.close(descriptor)
        _initialise_again((sys.__stdin__, sys.__stdout__, sys.__stderr__)[target], target, was_terminal)


def _initialise_again(stream: Any, descriptor: int, was_terminal: bool) -> None:
    """Initialise a standard stream again, because its descriptor is another file, pipe or terminal now.

    Python chose the buffering at its start (`create_stdio` in pylifecycle.c). The stream must stay the same object and
    keep the settings that modules have made, because modules may refer to it.
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
    """Return the default buffer size of `io.open` for a file."""
    block: int = raw._blksize  # noqa: SLF001 - `io.open` uses it as well
    return block if sys.version_info < (3, 14) else max(min(block, BLOCK_MAX), io.DEFAULT_BUFFER_SIZE)


def _by_lines(descriptor: int, terminal: bool, unbuffered: bool) -> bool:
    """Return whether Python buffers a stream by line by default."""
    return not unbuffered and (terminal or descriptor == 2)  # noqa: PLR2004 - stderr


def _forget_directories() -> None:
    """Make imports read all directories again: they may have changed since the parent's imports."""
    for path, finder in list(sys.path_importer_cache.items()):
        if finder is None:
            del sys.path_importer_cache[path]
        elif hasattr(finder, "invalidate_caches"):
            finder.invalidate_caches()


def _renew_identity() -> None:
    """Renew seeds, the thread's id and the authentication key; `random` renews its own seed in every fork."""
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()
    # Python does not renew the native id of the main thread at a fork, and no public function sets it.
    threading.main_thread()._set_native_id()  # type: ignore[attr-defined]  # noqa: SLF001
    if "multiprocessing.process" in sys.modules:
        sys.modules["multiprocessing.process"].current_process().authkey = os.urandom(32)


def _thaw_globals() -> None:
    """Unfreeze the globals of the program for the garbage collector; the parent has frozen all objects.

    Otherwise their objects would survive the end of Python without a call of their destructors. To unfreeze all objects
    would make the end of a worker, with torch, three times as long.
    """
    for name in ("PyObject_GC_UnTrack", "PyObject_GC_Track"):  # from the frozen generation to the youngest one
        function = getattr(ctypes.pythonapi, name)
        function.argtypes, function.restype = [ctypes.py_object], None
        function(sys.modules["__main__"].__dict__)
