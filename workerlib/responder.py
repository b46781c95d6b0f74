"""Answers nodeclient's question where this worker stands; standard library only, from Python 3.10 on.

A worker holds a Unix SOCK_SEQPACKET connection to its nodeclient, whose path is in the environment (`STACKS`). It
begins with a JSON object, `local_rank` and `signal`, and the read end of a pipe comes with it. There are two ways to
ask, neither of which the script notices:

* A packet on the connection. A thread that does nothing else answers with a JSON object: `threads`, each with its name
  and its frames (file, line, function; the innermost first), and `collectives`, by process group, from torch's flight
  recorder.
* The signal, if there is no answer because code in C holds the interpreter's lock. faulthandler then writes the stacks
  to the pipe, without that lock. While nobody can run Python, no stack changes under its hands.

`workerlib` calls `start` when it is imported; so does the hook of `nodeclient --preload`, which loads this file by its
path.
"""

from __future__ import annotations

import _thread
import faulthandler
import fcntl
import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

STACKS = "COORDINATORD_STACKS"
"""The same name as in `env`. It is removed from the environment, so that no child takes it for its own."""

PACKET_BYTES = 65_536

DESCRIPTORS_MAX = 1

DESCRIPTOR_MIN = 200
"""The lowest number of a descriptor of ours; a limit on open files is rarely below 256."""

SIGNAL = signal.SIGRTMAX - 3
"""A realtime signal that nothing is known to use: profilers and debuggers take the first ones or the very last."""

THREADS_MAX = 32

FRAMES_MAX = 40
"""The frames of a thread that are sent: with paths of usual length, those of ten threads fit a packet."""

OUTERMOST = 5
"""The frames from the beginning of a longer stack that are among them: those of the script."""

GROUPS_MAX = 32

RECORDERS = ("_dump_nccl_trace_json", "_dump_fr_trace_json")
"""Functions of torch's flight recorder, which are not public: a torch may have one, both or none of them."""

C10D = "torch._C._distributed_c10d"


def start() -> None:
    """Begin to answer, if a nodeclient that asks has started this process; nothing here ever fails the script."""
    path = os.environ.pop(STACKS, None)
    if path is None:
        return
    try:
        connection = socket.socket(fileno=_high(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).detach()))
        connection.connect(path)
        # The read end stays open here too: a write to a pipe that nobody reads would end the process by SIGPIPE.
        reader, writer = map(_high, os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC))
        free = signal.getsignal(SIGNAL) is signal.SIG_DFL
        if free:
            faulthandler.register(SIGNAL, file=writer, all_threads=True)
        hello = {"local_rank": int(os.environ["LOCAL_RANK"]), "signal": int(SIGNAL) if free else 0}
        socket.send_fds(connection, [json.dumps(hello).encode()], [reader])
        os.register_at_fork(after_in_child=partial(_withdraw, connection, [reader, writer]))
        _thread.start_new_thread(_serve, (connection,))
    except (OSError, ValueError, KeyError, RuntimeError):
        return  # nodeclient is gone, or the system refuses: whoever asks gets what /proc shows


def _withdraw(connection: socket.socket, pipe: list[int]) -> None:
    """Leave nothing of this in a child that was forked: the thread is its parent's, and so is the connection.

    A child of that child has the same function to call. It finds nothing left: the numbers may be other files' by then.
    """
    faulthandler.unregister(SIGNAL)
    if not pipe:
        return
    connection.close()
    while pipe:
        with suppress(OSError):  # it may have closed all that it had
            os.close(pipe.pop())


def _high(low: int) -> int:
    """Move a descriptor out of the way: scripts may count on the numbers that they get. Raises `OSError`."""
    try:
        return fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, DESCRIPTOR_MIN)
    finally:
        os.close(low)


def _serve(connection: socket.socket) -> None:
    """Answer until nodeclient has gone."""
    try:
        while connection.recv(PACKET_BYTES):
            connection.send(_answer(), socket.MSG_NOSIGNAL)
    except OSError:
        return


def _answer() -> bytes:
    """Return the answer, with fewer threads and groups if it does not fit a packet."""
    threads, collectives = _threads(), _collectives()
    while len(packet := json.dumps({"threads": threads, "collectives": collectives}).encode()) > PACKET_BYTES:
        del threads[len(threads) // 2 :], collectives[len(collectives) // 2 :]
    return packet


def _threads() -> list[dict[str, Any]]:
    """Return the stacks of all threads but this one, that of the main thread first."""
    threading = sys.modules.get("threading")
    names, main = {}, 0
    if threading is not None:
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        main = threading.main_thread().ident or 0
    frames = sys._current_frames()  # noqa: SLF001 - documented, for this use
    frames.pop(_thread.get_ident(), None)
    order = sorted(frames, key=lambda ident: ident != main)
    return [{"name": names.get(ident, "thread"), "frames": _places(frames[ident])} for ident in order[:THREADS_MAX]]


def _places(frame: Any) -> list[tuple[str, int, str]]:
    """Return file, line and function of each frame, the innermost first."""
    places: list[tuple[str, int, str]] = []
    while frame is not None:
        code = frame.f_code
        places.append((code.co_filename, frame.f_lineno or 0, code.co_name))
        frame = frame.f_back
    if len(places) > FRAMES_MAX:
        del places[FRAMES_MAX - OUTERMOST : -OUTERMOST]
    return places


def _collectives() -> list[dict[str, Any]]:
    """Return where this worker is in each process group; an empty list if this torch does not tell."""
    c10d = sys.modules.get(C10D)
    dumps = (getattr(c10d, name, None) for name in RECORDERS)
    return next(filter(None, map(_read, filter(None, dumps))), [])


def _read(dump: Callable[[], bytes]) -> list[dict[str, Any]]:
    """Return what a recorder has; an empty list if it is another than those that are known."""
    try:
        return _by_group(json.loads(dump()))
    except Exception:  # noqa: BLE001 - its interface is not public, so it may have changed in any way
        return []


def _by_group(trace: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the last collective of each group, with how many were begun and completed."""
    last = {}
    for entry in trace["entries"]:
        last[entry["process_group"][0]] = entry
    found = []
    for group, entry in list(last.items())[:GROUPS_MAX]:
        status = trace.get("pg_status", {}).get(group, {})
        completed = entry["collective_seq_id"] - (not entry.get("retired", True))
        found.append(
            {
                "group": str(entry["process_group"][1]),
                "enqueued": int(status.get("last_enqueued_collective", entry["collective_seq_id"])),
                "completed": int(status.get("last_completed_collective", completed)),
                "operation": str(entry["profiling_name"]),
                "sizes": entry.get("input_sizes", []),
                "types": entry.get("input_dtypes", []),
            }
        )
    return found
