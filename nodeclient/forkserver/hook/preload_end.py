"""Makes sure that a warm worker ends when its program is over, whatever the program did with its process groups.

A warm worker comes from its last collective to the end of its script sooner than a cold one, since all modules that the
end needs are imported already. Often gloo's threads have not finished that collective by then. `workerlib/gloo.py`
explains what happens then, and prevents it. This module calls it at the right moments.
"""

from __future__ import annotations

import atexit
import fcntl
import functools
import os
import sys
from types import ModuleType
from typing import Any

DISTRIBUTED = "torch.distributed"

DESTROY = "destroy_process_group"

PROGRESS = "COORDINATORD_PROGRESS"
"""The same name as in `workerlib/env.py`, which describes a slot."""

OVER = 24
"""The offset in a slot of the field that says that the program is over."""

WORD_BYTES = 8


class Ending:
    """The end of a worker; made in the parent before any other module can register a function for the end.

    The function that is registered first is called last: the program is over then, with its threads and its children.
    """

    def __init__(self, gloo: str) -> None:
        """Prepare the end of a worker; `gloo` is the path of workerlib's file."""
        self._gloo = load(gloo)
        self._worker = 0
        self._is_script = False
        atexit.register(self._end)

    def begin(self) -> None:
        """Begin in the worker, before its program does: patch torch.distributed, now or when it is imported."""
        self._worker = os.getpid()
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
        # It is the memory of the node, and not another file.
        if fcntl.fcntl(file, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
            os.pwrite(file, (code + 1).to_bytes(WORD_BYTES, sys.byteorder), int(begin) + OVER)
    except (OSError, ValueError):  # there is no node to read it, or the slot cannot be written
        return


def load(path: str) -> Any:
    """Return the module of a file, without a trace in the interpreter."""
    module = type(sys)(f"preload_{path}")
    type(__loader__)(module.__name__, path).exec_module(module)  # type: ignore[name-defined]  # as of any module
    return module
