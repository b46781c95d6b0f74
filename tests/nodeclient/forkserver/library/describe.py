"""All that a process can see of itself, as plain data: what must be the same however a worker was started.

A script calls `everything` with a copy of its own globals, taken before it did anything else.
"""

import _thread
import asyncio
import atexit
import builtins
import contextvars
import ctypes
import decimal
import faulthandler
import fcntl
import gc
import io
import locale
import logging
import multiprocessing
import os
import re
import resource
import signal
import site
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
import tracemalloc
import warnings
from pathlib import Path
from types import FrameType
from typing import Any

PRCTL = {"PDEATHSIG": 2, "CHILD_SUBREAPER": 37}
"""Those of linux/prctl.h that are read through a pointer."""

PRCTL_RETURNED = {
    "DUMPABLE": 3,
    "KEEPCAPS": 7,
    "SECUREBITS": 27,
    "TIMERSLACK": 30,
    "NO_NEW_PRIVS": 39,
    "THP_DISABLE": 42,
}
"""Those of linux/prctl.h that are returned."""

STATUS = re.compile(
    r"(Umask|TracerPid|Uid|Gid|Groups|NStgid|Threads|Sig|Shd|Cap|NoNewPrivs|Seccomp:|Cpus_allowed_list)"
)
"""Lines of proc_pid_status(5) that say what a process is, and not how much it uses."""

VARIES = {"SigQ", "NStgid"}

RESPONDS = "beacon" in sys.modules
"""It is a warm worker, which answers where it stands: by a thread, a signal, and descriptors with high numbers."""

FUNCTIONS_AT_EXIT = 2
"""Those of a warm worker: one sees to the end of its program, the other has the responder finish."""

RESPONDERS_FILES = 200
"""The lowest of these descriptors."""

RESPONDERS_SIGNALS = 1 << signal.SIGRTMAX - 4 | 1 << 32
"""The bits of the signal for faulthandler and of the one that the C library handles in a process with threads."""

PER_RUN = {"COORDINATORD_JOB", "COORDINATORD_RUN", "COORDINATORD_MARK", "MASTER_PORT", "TORCHELASTIC_RUN_ID"}
PER_RUN_TOO = {
    *("TORCHELASTIC_ERROR_FILE", "COORDINATORD_PROGRESS", "COORDINATORD_KEEP", "COORDINATORD_STACKS"),
    "COORDINATORD_ROUNDS",
    "TESTED_PROGRAM_TOKEN",
}

_LIBC = ctypes.CDLL(None)
_LIBC.getenv.restype = ctypes.c_char_p


def plain(value: object) -> str:
    """Return a text for a value, without what differs from one process to the next."""
    ordered = sorted(value) if isinstance(value, frozenset) else value
    return re.sub(r"0x[0-9a-f]+", "0x", repr(ordered))


def everything(main: dict[str, object]) -> dict[str, object]:
    """Describe this process and its interpreter; `main` are the globals of the script as it found them."""
    return {
        "main": {name: plain(value) for name, value in main.items()},
        "frames": _frames(),
        "sys": {name: plain(value) for name, value in vars(sys).items() if name not in _OF_IMPORTS},
        "finders": [plain(finder) for finder in sys.meta_path if type(finder).__module__ != _OF_THE_HOOK],
        "modules": {name: str(getattr(module, "__file__", None)) for name, module in sys.modules.items()},
        "importers": list(sys.path_importer_cache),
        "interpreter": _interpreter(),
        "streams": {name: _stream(getattr(sys, name)) for name in ("stdin", "stdout", "stderr")},
        "signals": _signals(),
        "process": _process(),
        "files": files(),
        "environ": environ(),
        "shown": _shown(),
        "inherited": _inherited(),
    }


_OF_IMPORTS = {"modules", "path_importer_cache", "meta_path"}

_OF_THE_HOOK = "preload_end"
"""What sees to the end of a warm worker, with a finder that waits for torch."""


def _frames() -> list[str]:
    """Return the code that led here; the depth that is left follows from it."""
    frame: FrameType | None = sys._getframe(2)
    found = []
    while frame is not None:
        found.append(f"{frame.f_code.co_filename} {frame.f_code.co_name}")
        frame = frame.f_back
    return found


def _interpreter() -> dict[str, object]:
    thread = threading.main_thread()
    process = multiprocessing.current_process()
    return {
        "builtins": sorted(vars(builtins)),
        "site": {name: plain(value) for name, value in vars(site).items() if name.isupper()},
        "warnings": plain(warnings.filters),
        "showwarning": plain(warnings.showwarning),
        "gc": [gc.isenabled(), gc.get_threshold(), gc.get_debug(), plain(gc.callbacks)],
        "hooks": [
            plain(getattr(sys, name)) for name in ("excepthook", "displayhook", "unraisablehook", "breakpointhook")
        ],
        "tracing": [plain(sys.gettrace()), plain(sys.getprofile()), tracemalloc.is_tracing()],
        "limits": [sys.getrecursionlimit(), sys.getswitchinterval(), sys.getdlopenflags(), _depth()],
        "atexit": atexit._ncallbacks() - FUNCTIONS_AT_EXIT * RESPONDS,
        "faulthandler": faulthandler.is_enabled(),
        "locale": [locale.setlocale(locale.LC_ALL), locale.getpreferredencoding(), locale.getencoding()],
        "encodings": [sys.getdefaultencoding(), sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()],
        "time": [time.tzname, time.get_clock_info("monotonic").resolution],
        "temporary": tempfile.gettempdir(),
        "thread": [thread.name, thread.ident == threading.get_ident(), thread.native_id == os.getpid(), thread.daemon],
        "threads": [
            threading.active_count(),
            max(0, _thread._count() - RESPONDS),  # the thread that answers may not have begun to run
            threading.stack_size(),
            len(threading.enumerate()),
        ],
        "multiprocessing": [
            process.name,
            process.pid == os.getpid(),
            plain(multiprocessing.parent_process()),
            multiprocessing.get_start_method(allow_none=True),
            len(process.authkey),
            multiprocessing.active_children(),
        ],
        "asyncio": [
            plain(asyncio.events._event_loop_policy),  # type: ignore[attr-defined]  # to ask for it makes one
            sys.get_asyncgen_hooks() == (None, None),
        ],
        "context": len(contextvars.copy_context()),
        "decimal": repr(decimal.getcontext()),
        "logging": [plain(logging.root), plain(logging.root.handlers), logging.getLevelName(logging.root.level)],
        "socket": socket.getdefaulttimeout(),
        "exception": plain(sys.exc_info()),
    }


def _depth() -> int:
    """Return how many calls are left until the recursion limit."""
    depth = 0

    def fall() -> None:
        nonlocal depth
        depth += 1
        fall()

    try:
        fall()
    except RecursionError:
        return depth
    return -1


def _stream(stream: io.TextIOWrapper) -> dict[str, object]:
    raw: Any = getattr(stream.buffer, "raw", stream.buffer)
    return {
        "text": plain(stream),
        "buffer": [plain(stream.buffer), sys.getsizeof(stream.buffer)],
        "raw": plain(raw),
        "modes": [stream.line_buffering, stream.write_through, stream.encoding, stream.errors, stream.isatty()],
        "newlines": [plain(stream.newlines), stream._CHUNK_SIZE],  # type: ignore[attr-defined]
        "closefd": raw.closefd,
        "original": stream is getattr(sys, f"__{stream.name.strip('<>')}__"),
        "seekable": stream.seekable(),
    }


def _signals() -> dict[str, object]:
    return {
        "handlers": {signum: plain(signal.getsignal(signum)) for signum in sorted(signal.valid_signals())},
        "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "pending": sorted(signal.sigpending()),
        "wakeup": signal.set_wakeup_fd(-1),
        "timers": [
            signal.getitimer(which) for which in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
        ],
    }


def _process() -> dict[str, object]:
    own = os.getpid()
    status = Path("/proc/self/status").read_text().splitlines()
    task = Path(f"/proc/self/task/{own}")
    return {
        "leads": [os.getsid(0) == own, os.getpgid(0) == own, os.getpgrp() == own],
        "cwd": str(Path.cwd()),
        "status": [_unasked(line) for line in status if STATUS.match(line) and line.partition(":")[0] not in VARIES],
        "prctl": {name: _prctl(option) for name, option in PRCTL.items()},
        "prctl returned": {name: _LIBC.prctl(option, 0, 0, 0, 0) for name, option in PRCTL_RETURNED.items()},
        "name": Path("/proc/self/comm").read_text(),
        "command": Path("/proc/self/cmdline").read_bytes().decode(errors="surrogateescape").split("\0"),
        "program": str(Path("/proc/self/exe").readlink()),
        "terminal": Path("/proc/self/stat").read_text().rpartition(")")[2].split()[4],
        "children": (task / "children").read_text() if (task / "children").exists() else "",
        "children's time": resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime,
        "cpus": sorted(os.sched_getaffinity(0)),
        "scheduling": [os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)],
        "oom": Path("/proc/self/oom_score_adj").read_text(),
        "core": Path("/proc/self/coredump_filter").read_text(),
        "groups": [Path("/proc/self/cgroup").read_text(), os.getgroups()],
        "namespaces": [str(path.readlink()) for path in sorted(Path("/proc/self/ns").iterdir())],
        "limits": {
            name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name[:7] == "RLIMIT_"
        },
    }


def _unasked(line: str) -> str:
    """Return a line of a status as it would be if nothing answered where the process stands."""
    name, _, value = line.partition(":")
    if name == "Threads":
        return f"{name}:{int(value) - RESPONDS}"
    return f"{name}:{int(value, 16) & ~RESPONDERS_SIGNALS:016x}" if name == "SigCgt" else line


def _prctl(option: int) -> int:
    value = ctypes.c_int()
    _LIBC.prctl(option, ctypes.byref(value), 0, 0, 0)
    return value.value


def files() -> list[list[object]]:
    """Return the descriptors that are open: what they are, and in which way they are open."""
    descriptors: list[list[object]] = []
    for name in sorted(os.listdir("/proc/self/fd"), key=int):  # noqa: PTH208 - its own descriptor must be closed again
        if int(name) >= RESPONDERS_FILES:
            continue
        try:
            target = str(Path(f"/proc/self/fd/{name}").readlink())
            flags = fcntl.fcntl(int(name), fcntl.F_GETFL), fcntl.fcntl(int(name), fcntl.F_GETFD)
            mode = stat.S_IFMT(os.fstat(int(name)).st_mode)
        except OSError:
            continue  # that of the listing itself
        if target.startswith("/memfd:coordinatord-steps"):
            continue  # only a cold worker needs it
        descriptors.append([int(name), re.sub(r"\d+", "N", target), mode, *flags])
    return descriptors


def environ() -> dict[str, str]:
    """Return the environment without what differs from one run to the next."""
    return {name: value for name, value in os.environ.items() if name not in PER_RUN | PER_RUN_TOO}


def _shown() -> list[str]:
    """Return the environment as others see it."""
    shown = Path("/proc/self/environ").read_bytes().decode(errors="surrogateescape").split("\0")
    return sorted(variable for variable in shown if variable.partition("=")[0] not in PER_RUN | PER_RUN_TOO | {""})


def _inherited() -> dict[str, object]:
    """Return where the C library and a program that is started find another environment than Python does."""
    found = subprocess.run(["env", "-0"], stdout=subprocess.PIPE, check=True).stdout.split(b"\0")  # noqa: S607
    return {
        "programs": sorted(set(found) ^ {name + b"=" + value for name, value in os.environb.items()} - {b""}) == [b""],
        "C": [name.decode() for name, value in os.environb.items() if _LIBC.getenv(name) != value],
    }
