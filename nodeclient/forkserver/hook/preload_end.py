"""Makes sure that a warm worker ends when its program is over, whatever the program did with its process groups.

A warm worker comes from its last collective to the end of its script sooner than a cold one, since all modules that the
end needs are imported already. Often gloo's threads have not finished that collective by then. `workerlib/gloo.py`
explains what happens then, and prevents it. This module calls it at the right moments.

A worker that ends by an error that its script has not caught ends early: all that the script has made is let go of,
and Python takes nothing else to pieces. With torch, that takes up to a second on a busy host, and the peers wait: the
end of this worker may be the first that its node hears of the loss of another one.
"""

from __future__ import annotations

import _io
import atexit
import ctypes
import fcntl
import functools
import gc
import os
import sys
import weakref
from types import ModuleType
from typing import Any

DISTRIBUTED = "torch.distributed"

DESTROY = "destroy_process_group"

PROGRESS = "COORDINATORD_PROGRESS"
"""The same name as in `workerlib/env.py`, which describes a slot."""

OVER = 24
"""The offset in a slot of the field that says that the program is over."""

WORD_BYTES = 8

_NEVER_S = 1e6
"""How long a thread runs at most while another one waits, unless it waits itself."""


class Ending:
    """The end of a worker; made in the parent before any other module can register a function for the end.

    The function that is registered first is called last: the program is over then, with its threads and its children.
    """

    def __init__(self, gloo: str) -> None:
        """Prepare the end of a worker; `gloo` is the path of workerlib's file."""
        self._gloo = load(gloo)
        self._worker = 0
        self._is_script = False
        self._preloaded = frozenset[str]()
        atexit.register(self._end)

    def begin(self) -> None:
        """Begin in the worker, before its program does: patch torch.distributed, now or when it is imported."""
        self._worker = os.getpid()
        self._preloaded = frozenset(sys.modules)
        self._is_script = sys.argv[0] not in {"", "-", "-c", "-m"}
        if DISTRIBUTED in sys.modules:
            self.attend(sys.modules[DISTRIBUTED])
        else:
            sys.meta_path.insert(0, _Finder(self))

    def attend(self, distributed: ModuleType) -> None:
        """Have gloo's threads finish after each destruction of a process group."""
        original = getattr(distributed, DESTROY, None)
        if original is None:  # torch can be built without process groups
            return

        @functools.wraps(original)
        def destroy(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            self._gloo.let_threads_finish()
            return result

        for module in list(sys.modules.values()):  # modules that have imported the function have it under its name
            if getattr(module, "__dict__", {}).get(DESTROY) is original:
                setattr(module, DESTROY, destroy)

    def _end(self) -> None:
        if os.getpid() != self._worker:  # this is a child that the worker has forked
            return
        if DISTRIBUTED in sys.modules:
            self._gloo.let_threads_finish()  # threads of groups that were not destroyed
        code, slot = _exit_code(), os.environ.get(PROGRESS, "")  # the slot is that of the round that it is in by now
        if slot and self._is_script and code is not None:
            _write_over(slot, code)
        if code == 1:
            _end_early(self._preloaded)


class _Finder:
    """Notices the import of torch.distributed, once; other finders find the module."""

    def __init__(self, ending: Ending) -> None:
        self._ending = ending

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Do as importlib asks; see `importlib.abc.MetaPathFinder`."""
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
                self._ending.attend(module)

            loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _exit_code() -> int | None:
    """Return the exit code of the process, if the script can be seen to have come to its end.

    Python removes `__file__` of a script when it has run it, but not when SystemExit has ended it (pythonrun.c). That
    of a directory or an archive stays.
    """
    if "__file__" in getattr(sys.modules.get("__main__"), "__dict__", {"__file__": ""}):
        return None
    failed = getattr(sys, "last_type", None)
    if failed is None:
        return 0
    return None if issubclass(failed, KeyboardInterrupt) else 1


def _write_over(slot: str, code: int) -> None:
    """Write to the slot that the program is over, so that the node does not wait for ever for the process to end."""
    path, _, begin = slot.rpartition(":")
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            # It is the memory of the node, and not another file.
            if fcntl.fcntl(file, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
                os.pwrite(file, (code + 1).to_bytes(WORD_BYTES, sys.byteorder), int(begin) + OVER)
        finally:
            os.close(file)  # a script that has closed its stdout has given it that number
    except (OSError, ValueError):  # there is no node to read it, or the slot cannot be written
        return


def _end_early(preloaded: frozenset[str]) -> None:
    """End the process with 1 as Python would, but without taking the modules to pieces that were `preloaded`.

    All else is done as Python does it (`Py_FinalizeEx` in pylifecycle.c): it writes what files hold, drops the error
    and the script's modules, and has destructors called. Threads that are still there end with the process, so they are
    not to tell of the names that they miss.

    What C's `exit` calls is left out, the destructors of torch's libraries above all: the end of a cold script with
    torch took 0.145 s, 0.127 s with `exit` alone, and 0.032 s with neither that nor Python's own end (of three each).
    """
    try:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    except Exception:  # noqa: BLE001 - no stream, or one that is broken: Python has an exit code for that
        return
    sys.setswitchinterval(_NEVER_S)
    threading: Any = sys.modules.get("threading")
    if threading is not None:
        threading.excepthook = _say_nothing
    _write_files()
    for name in ("last_exc", "last_traceback", "last_value", "last_type"):
        vars(sys).pop(name, None)
    alive: list[Any] = [
        sys.modules.pop(name) for name in list(sys.modules) if name == "__main__" or name not in preloaded
    ]
    rest = [weakref.ref(module) for module in alive if isinstance(module, ModuleType)]
    del alive
    gc.collect()
    for module in filter(None, (reference() for reference in reversed(rest))):
        for name in sorted(vars(module), key=lambda name: not name.startswith("_")):
            if name != "__builtins__":
                vars(module)[name] = None
    gc.collect()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()  # what destructors have written
    ctypes.CDLL(None).fflush(None)  # what C's own streams hold
    os._exit(1)


def _write_files() -> None:
    """Write what the files hold that the script has opened: texts first, since they go to the other files.

    A cycle of garbage closes its files in any order, so that what they hold could be lost.
    """
    files = [found for found in gc.get_objects() if issubclass(type(found), _io._IOBase)]  # noqa: SLF001
    for file in sorted(files, key=lambda file: not issubclass(type(file), _io._TextIOBase)):  # noqa: SLF001
        try:
            file.flush()
        except Exception:  # noqa: BLE001, S112 - it is closed, or its destructor tells of it
            continue


def _say_nothing(_: object) -> None:
    """Take the place of `threading.excepthook`."""


def load(path: str) -> Any:
    """Return the module of a file, without a trace in the interpreter."""
    module = type(sys)(f"preload_{path}")
    type(__loader__)(module.__name__, path).exec_module(module)  # type: ignore[name-defined]  # as of any module
    return module
