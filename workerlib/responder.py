"""Answers nodeclient's questions about this worker: where it stands, and when it arrived in its last collectives.

By the answers to the first question the coordinator finds the worker that all others wait for, and `nodeclient stacks`
shows it. By those to the second one it finds the worker that makes all steps slow.

The worker connects to a Unix SOCK_SEQPACKET socket of nodeclient, whose path is in the environment (`STACKS`). Its
first packet is a JSON object with `local_rank`, the worker's number on its node, and `signal`. The read end of a pipe
comes with it. nodeclient asks in two ways, neither of which the script notices:

* It sends `WHERE`, or `ARRIVALS` and a number, and a thread of this module answers with a JSON object.
  The answer to `WHERE` has `threads`, each with its name and its frames (file, line, function; the innermost first). It
  has `collectives` by process group, as `recorders.collectives` returns them. If the worker makes no progress, the
  answer also has `network_bytes`, the bytes that its connections have sent and received.
  The answer to `ARRIVALS` has `arrivals`, as `recorders.arrivals` returns them for that many collectives.
* It sends the signal, if there is no answer because C code holds the interpreter's lock. faulthandler then writes the
  stacks to the pipe, without that lock. Meanwhile no thread runs Python, so no stack changes.

The functions of `workerlib` call `begin`. Workers of `nodeclient --preload` have a hook, which loads this file and
`recorders` by their paths, and calls `start`: their Python need not have this package. So this file uses only the
standard library, from Python 3.10 on.
"""

from __future__ import annotations

import _socket  # `reuse.group_sockets` wraps `socket.socket`, to find the script's sockets, and not `_socket.socket`
import _thread
import atexit
import faulthandler
import fcntl
import json
import os
import signal
import socket
import stat
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

ADDRESS_BYTES_MAX = 107
"""The longest path in the address of a Unix socket (unix(7))."""

STACKS = "COORDINATORD_STACKS"
"""The same name as in `env`. It is removed from the environment, so that no child uses it."""

TCP_COUNTERS = (120, 128)
"""The offsets in Linux's struct tcp_info of the bytes that the peer has acknowledged, and of the received bytes."""

DESCRIPTORS_SEARCHED = 4_096
"""How many descriptors, from 0, are searched for connections."""

WHERE, ARRIVALS = b"?", b"arrivals "
"""The two questions; the number of collectives follows the second one."""

PACKET_BYTES = 65_536

DESCRIPTORS_MAX = 1
"""The descriptors that come with the first packet."""

DESCRIPTOR_MIN = 200
"""The lowest number of this module's own descriptors: high, since scripts may rely on the low ones that they get, and
below 256, since a limit on open files is rarely lower."""

SIGNAL = signal.SIGRTMAX - 3
"""A realtime signal without a known use: profilers and debuggers use the first ones or the very last."""

THREADS_MAX = 32

FRAMES_MAX = 150
"""The most frames of a thread that are sent: enough to reach those of the script behind those of libraries."""

OUTERMOST = 5
"""How many of these frames are the outermost ones, if the stack is longer."""

_open: list[Any] = []
"""The connection and the two ends of the pipe, for the round that this process is in."""

_recorders: Any = None
"""The module `recorders`; None before `start` is called."""

_has_hooks = False
"""Whether the functions for forks and for the end of the process are registered."""


def begin() -> None:
    """Begin to answer, if nodeclient has started this process and this is its first use of `workerlib`."""
    if STACKS in os.environ:
        from workerlib.contract import recorders  # noqa: PLC0415 - only where nodeclient may ask for it

        start(recorders)


def start(recorders: Any) -> None:
    """Begin to answer, if the environment names a socket; `recorders` is the module of this name.

    No error here ends the script.
    """
    global _has_hooks, _recorders  # noqa: PLW0603 - one process has one responder
    _recorders = recorders
    _close()
    try:
        with connected_socket(os.environ.pop(STACKS)) as low:
            _open.append(connection := socket.socket(fileno=_high(low.fileno())))
        # The read end stays open here too: a write to a pipe that nobody reads would end the process by SIGPIPE.
        pipe = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            _open.extend(map(_high, pipe))
        finally:
            for end in pipe:
                os.close(end)
        _, reader, writer = _open
        free = signal.getsignal(SIGNAL) is signal.SIG_DFL
        if free:
            faulthandler.register(SIGNAL, file=writer, all_threads=True)
        hello = {"local_rank": int(os.environ["COORDINATORD_WORKER"]), "signal": int(SIGNAL) if free else 0}
        socket.send_fds(connection, [json.dumps(hello).encode()], [reader])
        if not _has_hooks:
            os.register_at_fork(after_in_child=_close_in_child)
            atexit.register(recorders.await_dump)  # else a dump could abort the process at its end
            _has_hooks = True
        _thread.start_new_thread(_serve, (connection,))
    except (OSError, ValueError, KeyError, RuntimeError):
        _close()  # no socket, no nodeclient, or the system refuses: nodeclient reads /proc instead


def connected_socket(path: str) -> socket.socket:
    """Return a SOCK_SEQPACKET socket that is connected to nodeclient at a path. Raises `OSError`."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        with address(path) as short:
            connection.connect(short)
    except OSError:
        connection.close()
        raise
    return connection


@contextmanager
def address(path: str) -> Iterator[str]:
    """Yield the path of a Unix socket, or a short one to the same file if an address has no room for it (unix(7)).

    Raises `OSError`.
    """
    if len(os.fsencode(path)) <= ADDRESS_BYTES_MAX:
        yield path
        return
    folder, name = os.path.split(path)
    place = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{place}/{name}"
    finally:
        os.close(place)


def begin_round() -> None:
    """Answer in another round from now on, and leave out the process groups of earlier rounds."""
    from workerlib.contract import recorders  # noqa: PLC0415 - as above

    recorders.begin_round()
    begin()  # nodeclient has set `STACKS` again for this round


def _close_in_child() -> None:
    """Close everything in a forked child, since its parent has the thread and answers.

    A child of that child calls this function as well, and finds nothing open, so that it closes no other files.
    """
    _recorders.reset_in_child()
    _close()


def _close() -> None:
    if _open:
        faulthandler.unregister(SIGNAL)
        connection, *pipe = _open
        _open.clear()
        connection.close()
        for end in pipe:
            with suppress(OSError):  # a child may have closed all of its descriptors
                os.close(end)


def _high(low: int) -> int:
    """Return a copy of a descriptor with a number from `DESCRIPTOR_MIN` on. Raises `OSError`."""
    return fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, DESCRIPTOR_MIN)


def _serve(connection: socket.socket) -> None:
    """Answer questions until nodeclient closes the connection."""
    try:
        while question := connection.recv(PACKET_BYTES):
            answer = _arrivals(question) if question.startswith(ARRIVALS) else _answer()
            connection.send(answer, socket.MSG_NOSIGNAL)
    except OSError:
        return


def _answer() -> bytes:
    """Return the answer to `WHERE`; to fit into a packet it has fewer threads, and then fewer groups."""
    answer: dict[str, Any] = {
        "threads": (threads := _threads()),
        "collectives": (collectives := _recorders.collectives()),
    }
    if collectives and all(collective["state"] != "moves" for collective in collectives):
        answer["network_bytes"] = _network_bytes()  # two answers then show whether a collective still moves data
    while len(packet := json.dumps(answer).encode()) > PACKET_BYTES:
        part = threads if len(threads) > 1 else collectives if len(collectives) > 1 else threads or collectives
        del part[len(part) // 2 :]
    return packet


def _network_bytes() -> int:
    """Return how many bytes the TCP connections of this process have sent and received.

    The kernel counts bytes when the peer acknowledges them, and not when they are written. So the number shows whether
    data of a collective leaves the kernel's buffers.
    """
    total = 0
    for descriptor in range(DESCRIPTORS_SEARCHED):
        with suppress(OSError):  # there is no such descriptor, or it is another kind of socket
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                with closing(_socket.socket(fileno=_high(descriptor))) as connection:
                    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_COUNTERS[-1] + 8)
                    total += sum(int.from_bytes(info[at : at + 8], sys.byteorder) for at in TCP_COUNTERS)
    return total


def _threads() -> list[dict[str, Any]]:
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
        places.append((code.co_filename, frame.f_lineno or 0, getattr(code, "co_qualname", code.co_name)))
        frame = frame.f_back
    if len(places) > FRAMES_MAX:
        del places[FRAMES_MAX - OUTERMOST : -OUTERMOST]
    return places


def _arrivals(question: bytes) -> bytes:
    return json.dumps({"arrivals": _recorders.arrivals(int(question.removeprefix(ARRIVALS)))}).encode()
