"""Ends a warm worker safely and soon when its program is over, whatever the program did with its process groups.

Safely: a warm worker comes from its last collective to the end of its script so soon that gloo's threads have often not
finished that collective, and a process that ends meanwhile may hang. `workerlib/gloo.py` has the reason, and waits for
these threads. This module calls it at the right moments.

Soon: after an uncaught error a worker destroys only the objects of its script, and not the preloaded modules. With
torch these would take up to a second on a busy host. The end of this worker may be the first sign that another one is
lost, and all others wait for it.
"""

from __future__ import annotations

import _io
import atexit
import ctypes
import fcntl
import functools
import gc
import os
import signal
import sys
import time
import weakref
from types import ModuleType
from typing import Any

DISTRIBUTED = "torch.distributed"
DESTROY = "destroy_process_group"
"""The module and its function that are patched."""

PROGRESS = "COORDINATORD_PROGRESS"
"""The variable with the place of the worker's slot, memory that nodeclient reads, as PATH:OFFSET; the same name as in
`workerlib/contract/env.py`."""

CODE_OFFSET, OVER_OFFSET = 24, 120
"""The offsets in a slot of the exit code, which takes two bytes, and of the time at which the program was over."""

NO_CODE = b"\0\1"
"""The bytes in a slot for an exit code that is not known. A known one is written twice, and these two bytes differ."""

WORD_BYTES = 8

_F_GET_SEALS = 1034
_F_SEAL_SHRINK = 2
"""The numbers in linux/fcntl.h, which `fcntl` lacks in some Pythons: see `workerlib/progress.py`."""

_IONBF = 2
"""The value in stdio.h for a stream without a buffer."""

DESCRIPTOR_MIN = 200
"""The lowest number of a descriptor that is left open, as in `workerlib/responder.py`. If the script has closed its
stdout, a lower number could be that of stdout."""

_NEVER_S = 1e6
"""A switch interval so long that another thread gets Python's lock only while this one waits."""


class Ending:
    """The end of a worker. Create it in the parent, before any other module registers a function with atexit.

    The function that is registered first is called last, after the program, its threads and children have ended.
    """

    def __init__(self, gloo: str) -> None:
        """Prepare the end of a worker; `gloo` is the path of `workerlib/gloo.py`."""
        self._gloo = load(gloo)
        self._worker = 0
        """The process id of the worker; 0 in the parent."""
        self._is_script = False
        """Whether the program is a script: Python shows only of a script how it has ended, see `_exit_code`."""
        self._preloaded = frozenset[str]()
        atexit.register(self._end)

    def prepare(self) -> None:
        """Patch torch.distributed, now or at its import. Call it in the parent once everything is imported.

        In a worker, it would write to a page of each module, and so copy thousands of pages.
        """
        self._preloaded = frozenset(sys.modules)
        # The parent has the command line of its workers. Python replaces `-m` only when it runs the program.
        self._is_script = sys.argv[0] not in {"", "-", "-c", "-m"}
        if DISTRIBUTED in sys.modules:
            self.patch(sys.modules[DISTRIBUTED])
        else:
            sys.meta_path.insert(0, _Finder(self))

    def begin(self) -> None:
        """Record in a fork that this process is the worker, whose end is to be handled; call it before its program."""
        self._worker = os.getpid()

    def patch(self, distributed: ModuleType) -> None:
        """Make each destruction of a process group wait for gloo's threads."""
        original = getattr(distributed, DESTROY, None)
        if original is None:  # torch can be built without process groups
            return

        @functools.wraps(original)
        def destroy(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            self._gloo.let_threads_finish()
            return result

        for module in list(sys.modules.values()):  # the modules that have imported the function
            if getattr(module, "__dict__", {}).get(DESTROY) is original:
                setattr(module, DESTROY, destroy)

    def _end(self) -> None:
        """Report the end of the program, wait for gloo's threads, and end early after an error. Called by atexit."""
        if os.getpid() != self._worker:  # this is the parent, or a child that the worker has forked
            return
        # Python's end destroys the process groups, and so peers fail. The node then sends SIGTERM to all workers. This
        # one ignores it, to end with its own exit code.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        code, slot = _exit_code(), os.environ.get(PROGRESS, "")  # a reused worker has another slot in each round
        if slot:
            _write_end(slot, code if self._is_script else None)
        if DISTRIBUTED in sys.modules:
            self._gloo.let_threads_finish()  # threads of groups that were not destroyed
        if code == 1:
            _end_early(self._preloaded)
        if _leaks_are_reported():
            gc.unfreeze()


class _Finder:
    """Patches torch.distributed at its first import; the other finders find the module."""

    def __init__(self, ending: Ending) -> None:
        self._ending = ending

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Find a module for importlib; see `importlib.abc.MetaPathFinder`."""
        if name != DISTRIBUTED:
            return None
        sys.meta_path.remove(self)
        found = (finder.find_spec(name, path, target) for finder in sys.meta_path)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is not None and spec.loader is not None:
            loader = spec.loader
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                self._ending.patch(module)

            loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _exit_code() -> int | None:
    """Return the exit code of the process: 0 or 1 after the end of the script or an uncaught exception.

    None if not known: Python removes `__file__` from a script's globals when the script is over, but not after
    SystemExit, and never for a directory or an archive (pythonrun.c).
    """
    if "__file__" in getattr(sys.modules.get("__main__"), "__dict__", {"__file__": ""}):
        return None
    failed = getattr(sys, "last_type", None)
    if failed is None:
        return 0
    return None if issubclass(failed, KeyboardInterrupt) else 1


def _write_end(slot: str, code: int | None) -> None:
    """Record in the slot when the program was over, and its exit code, or have the code written when C's `exit` runs.

    From this time, the node knows that the program ended before its peers. With the code, it can kill a process that
    lingers.
    """
    path, _, begin = slot.rpartition(":")
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            # Only the node's memory has this seal; the path may lead to another file now.
            if fcntl.fcntl(file, _F_GET_SEALS) & _F_SEAL_SHRINK:
                os.pwrite(file, NO_CODE if code is None else bytes([code, code]), int(begin) + CODE_OFFSET)
                over_at = time.monotonic_ns().to_bytes(WORD_BYTES, sys.byteorder)
                os.pwrite(file, over_at, int(begin) + OVER_OFFSET)
                if code is None:
                    _write_code_at_exit(file, int(begin) + CODE_OFFSET)
        finally:
            os.close(file)  # if the script has closed its stdout, this file may have that number
    except (OSError, ValueError):  # the node is gone, or the slot cannot be written
        return


def _write_code_at_exit(file: int, offset: int) -> None:
    """Have C's `exit` write its exit code twice into a file, before it calls destructors of native libraries.

    Raises `OSError`. Python is over by then, so a function of C does it: `on_exit` passes the code to `fputc`.
    """
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "on_exit"):  # musl has none
        return
    own = fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, DESCRIPTOR_MIN)
    os.lseek(own, offset, os.SEEK_SET)
    libc.fdopen.restype = ctypes.c_void_p
    if address := libc.fdopen(own, b"w"):
        stream = ctypes.c_void_p(address)
        libc.setvbuf(stream, None, _IONBF, 0)
        for _ in range(2):
            libc.on_exit(libc.fputc, stream)


def _leaks_are_reported() -> bool:
    """Return whether a library with nanobind bindings is loaded, such as triton.

    At the end of Python such a library warns of all its objects that still live. Frozen objects would still live, so
    with such a library they are thawed first. `_thaw_globals` in `preload_worker` says why they stay frozen otherwise.
    """
    return any(kind.__module__ == "nanobind" for kind in type.__subclasses__(type))


def _end_early(preloaded: frozenset[str]) -> None:
    """End the process with 1 as Python would, but without destroying the `preloaded` modules.

    Everything else follows Python (`Py_FinalizeEx` in pylifecycle.c): buffers of files are written, the error and the
    script's modules are dropped, and destructors are called. Running threads end with the process, without writing
    errors about missing names.

    The functions of C's `exit` are skipped, above all the destructors of torch's libraries. The end of a cold script
    with torch took 0.145 s, 0.127 s with only `exit`, and 0.032 s with neither `exit` nor Python's own end (three runs
    each).
    """
    try:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    except Exception:  # noqa: BLE001 - no stream, or one that is broken: Python has an exit code for that
        return
    sys.setswitchinterval(_NEVER_S)  # other threads would run without the modules that are dropped below
    threading: Any = sys.modules.get("threading")
    if threading is not None:
        threading.excepthook = _ignore
    _write_files()
    for name in ("last_exc", "last_traceback", "last_value", "last_type"):
        vars(sys).pop(name, None)
    alive: list[Any] = [
        sys.modules.pop(name) for name in list(sys.modules) if name == "__main__" or name not in preloaded
    ]
    references = [weakref.ref(module) for module in alive if isinstance(module, ModuleType)]
    del alive
    gc.collect()
    for module in filter(None, (reference() for reference in reversed(references))):
        for name in sorted(vars(module), key=lambda name: not name.startswith("_")):
            if name != "__builtins__":
                vars(module)[name] = None
    gc.collect()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()  # destructors may have written
    ctypes.CDLL(None).fflush(None)  # C's own streams have buffers as well
    os._exit(1)


def _write_files() -> None:
    """Flush the files of the script: text files first, because they write to binary ones.

    A garbage cycle closes its files in any order, which could lose their buffers.
    """
    files = [candidate for candidate in gc.get_objects() if issubclass(type(candidate), _io._IOBase)]  # noqa: SLF001
    for file in sorted(files, key=lambda file: not issubclass(type(file), _io._TextIOBase)):  # noqa: SLF001
        try:
            file.flush()
        except Exception:  # noqa: BLE001, S112 - it is closed, or its destructor reports the error
            continue


def _ignore(_: object) -> None:
    """Replace `threading.excepthook`, and write nothing."""


def load(path: str) -> Any:
    """Load the module in a file, without an entry in `sys.modules`."""
    module = type(sys)(f"preload_{path}")
    type(__loader__)(module.__name__, path).exec_module(module)  # type: ignore[name-defined]  # every module has one
    return module
