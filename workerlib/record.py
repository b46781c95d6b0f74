"""`record`: writes an uncaught exception into the launcher's error file, as torch's `@record` does, without torch.

The environment variable TORCHELASTIC_ERROR_FILE names the file, and torch defines its format
(torch/distributed/elastic/multiprocessing/errors/error_handler.py).
"""

from __future__ import annotations

import atexit
import faulthandler
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar
from weakref import ref

from workerlib import responder

ERROR_FILE_VARIABLE = "TORCHELASTIC_ERROR_FILE"

P = ParamSpec("P")
R = TypeVar("R")


def record(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate the main function of a training script, so that an exception that leaves it is reported.

    A script needs this only if it writes no traceback to stderr, where nodeclient finds it. The exception is raised
    again. `SystemExit` is not reported. If TORCHELASTIC_ERROR_FILE is not set, nothing is written. From the first call
    on, a crash of native code (SIGSEGV and the like) writes a Python traceback to stderr.
    """

    @wraps(function)
    def recorded(*args: P.args, **kwargs: P.kwargs) -> R:
        responder.begin()  # so that nodeclient can ask where this worker waits
        with suppress(Exception):  # faulthandler cannot write to a stderr that is no file
            faulthandler.enable(all_threads=True)
        try:
            return function(*args, **kwargs)
        except Exception as error:
            _write(error, final=False)
            raise

    return recorded


def declare_final(error: Exception) -> None:
    """Have the error file say that a restart would not help, if this error ends this process.

    The script may handle the error and go on, so the file is written when the process ends. The class of the error must
    be defined in Python, since an object of it is referenced weakly.
    """
    atexit.register(_write_if_last, ref(error))  # the error itself would keep the script's objects alive


def _write_if_last(error: ref[Exception]) -> None:
    last = getattr(sys, "last_value", None)
    if isinstance(last, Exception) and error() is last:
        _write(last, final=True)


def _write(error: Exception, *, final: bool) -> None:
    file = os.environ.get(ERROR_FILE_VARIABLE)
    if not file:
        return
    path, trace = Path(file), error.__traceback__
    if trace is not None and not final:
        trace = trace.tb_next  # without the frame of `recorded`
    content = {
        "message": {
            "message": _describe(error),
            "extraInfo": {
                "py_callstack": "".join(traceback.format_exception(type(error), error, trace)),
                "timestamp": str(int(time.time())),  # noqa: TID251  # for people, and torch compares it
                "final": final,
            },
        }
    }
    # A temporary file is renamed, so that no reader finds half of the content. An error here must not replace the
    # worker's error.
    temporary = path.with_name(f".{path.name[:100]}.{os.getpid()}")
    try:
        temporary.write_text(json.dumps(content))
        temporary.replace(path)
    except OSError as write_error:
        sys.stderr.write(f"workerlib.record: {path} cannot be written: {write_error.strerror}\n")
        with suppress(OSError):
            temporary.unlink()


def _describe(error: Exception) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001  # the exception's own __str__ may be broken
        return type(error).__name__
