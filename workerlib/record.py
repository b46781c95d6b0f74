"""Writes an uncaught exception into the launcher's error file: torch's `@record` without torch.

The environment variable TORCHELASTIC_ERROR_FILE names the file, and torch defines its format
(torch/distributed/elastic/multiprocessing/errors/error_handler.py).
"""

from __future__ import annotations

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

ERROR_FILE_VARIABLE = "TORCHELASTIC_ERROR_FILE"

P = ParamSpec("P")
R = TypeVar("R")


def record(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate the main function of a training script, so that an exception that leaves it is reported with its cause.

    This is for scripts that write no traceback to stderr, where nodeclient finds one by itself. The exception goes on
    as it would have. `SystemExit` is not reported. If TORCHELASTIC_ERROR_FILE is not set, nothing is written. From the
    first call on, a crash of native code (SIGSEGV and the like) leaves a Python traceback on stderr.
    """

    @wraps(function)
    def recorded(*args: P.args, **kwargs: P.kwargs) -> R:
        with suppress(Exception):  # faulthandler cannot write to a stderr that is no file
            faulthandler.enable(all_threads=True)
        try:
            return function(*args, **kwargs)
        except Exception as error:
            path = os.environ.get(ERROR_FILE_VARIABLE)
            if path:
                _write(Path(path), error)
            raise

    return recorded


def _write(path: Path, error: Exception) -> None:
    trace = error.__traceback__.tb_next if error.__traceback__ else None  # without this module's own frame
    content = {
        "message": {
            "message": _describe(error),
            "extraInfo": {
                "py_callstack": "".join(traceback.format_exception(type(error), error, trace)),
                "timestamp": str(int(time.time())),  # noqa: TID251  # for people, and torch compares it
            },
        }
    }
    # A temporary file is renamed, so that a reader never finds half of the content. No error here may replace the
    # worker's own.
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
    except Exception:  # noqa: BLE001  # an exception's own __str__ may be what is broken
        return type(error).__name__
