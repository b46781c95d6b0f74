"""Answers nodeclient's questions about this worker: where it stands, and when it arrived in its last collectives.

Standard library only, from Python 3.10 on. A worker holds a Unix SOCK_SEQPACKET connection to its nodeclient, whose
path is in the environment (`STACKS`). Its first packet is a JSON object with `local_rank` and `signal`, and with it
comes the read end of a pipe. There are two ways to ask, neither of which the script notices:

* A packet on the connection. A thread that does nothing else answers with a JSON object.
  The answer to `WHERE` has `threads`, each with its name and its frames (file, line, function; the innermost first). It
  has `collectives`, by process group, from torch's flight recorder: the one that the worker waits in, or the last one
  that is done, or only their number if the worker gets on. If it does not get on, the answer also has `network_bytes`,
  the bytes that its connections have sent and received.
  The answer to `ARRIVALS` and a number has `arrivals`: when the worker arrived in so many of its last collectives.
* The signal, if there is no answer because code in C holds the interpreter's lock. faulthandler then writes the stacks
  to the pipe, without that lock. Meanwhile no thread runs Python, so no stack changes.

`workerlib` calls `start` when it is imported, and so does the hook of `--preload`, which loads this file by its path.
"""

from __future__ import annotations

import _socket  # what Python's own class connects is taken for the script's, see `in_place.group_sockets`
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
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from itertools import islice
from typing import Any

STACKS = "COORDINATORD_STACKS"
"""The same name as in `env`. It is removed from the environment, so that no child takes it for its own."""

TCP_COUNTERS = (120, 128)
"""The offsets in Linux's struct tcp_info of the bytes that the peer has acknowledged, and of the received bytes."""

DESCRIPTORS_LOOKED_AT = 4_096
"""How many descriptors, from 0, are searched for connections."""

WHERE = b"?"
"""The question where the worker stands."""

ARRIVALS = b"arrivals "
"""The question when the worker arrived in its last collectives; their number follows."""

PACKET_BYTES = 65_536

DESCRIPTORS_MAX = 1

DESCRIPTOR_MIN = 200
"""The lowest number of this module's own descriptors; a limit on open files is rarely below 256."""

SIGNAL = signal.SIGRTMAX - 3
"""A realtime signal without a known use: profilers and debuggers take the first ones or the very last."""

THREADS_MAX = 32

FRAMES_MAX = 150
"""The most frames of a thread that are sent: enough to reach those of the script behind those of libraries."""

OUTERMOST = 5
"""How many of these frames are the outermost ones, if the stack is longer."""

GROUPS_MAX = 32

GROUP_NAME_MAX = 8
"""The most characters of a group's name, which is a number, or the digits of a hash."""

ENTRIES_MAX = 64
"""How many of the last entries of a recorder are read: those of several groups, back to what is pending."""

PENDING_MAX = 512
"""The same if a group has many pending entries: parsing these takes a hundredth of a second."""

ENTRY = '{"collective_seq_id":'
"""The beginning of an entry, whose keys are in order."""

COUNTERS_APART_S = 0.02
"""The time between two reads of the counters; those of a worker with longer steps seem to stand, and more is read."""

RECORDERS = {"_dump_nccl_trace_json": "dump_nccl_trace_json", "_dump_fr_trace_json": "fr_trace_json"}
"""The functions that dump torch's flight recorders (NCCL; gloo and others), each with its name in torch's server for
workers (torch/csrc/distributed/c10d/control_plane). They are not public: a torch may have one, both or none of them."""

C10D = "torch._C._distributed_c10d"

_over: set[tuple[str, str]] = set()
"""The recorder and the number of each process group of earlier rounds: a later group may have the same name."""

_held: list[Any] = []
"""The connection and the two ends of the pipe, for the round that this process is in."""

_hooked = False
"""Whether the functions for forks and for the end of the process are registered."""

_dumping = _thread.allocate_lock()
"""Held while torch's code runs without the interpreter's lock, and for ever once this process comes to its end."""

DUMP_WITHIN_S = 10.0
"""How long the end of a process waits for a dump, which takes a tenth of a second; longer on a busy host."""


def start() -> None:
    """Begin to answer, if the environment names a socket. No error here ends the script."""
    global _hooked  # noqa: PLW0603 - one process has one responder
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
        if not _hooked:
            os.register_at_fork(after_in_child=_withdraw)
            atexit.register(_await_dump)
            _hooked = True
        _close()
        _held[:] = connection, reader, writer
        _thread.start_new_thread(_serve, (connection,))
    except (OSError, ValueError, KeyError, RuntimeError):
        return  # nodeclient is gone, or the system refuses; nodeclient then has only what /proc shows


def begin_round() -> None:
    """Answer in another round from now on, without the process groups of earlier rounds."""
    _over.update((recorder, number) for recorder in RECORDERS for number in _counters(sys.modules.get(C10D), recorder))
    start()


def _withdraw() -> None:
    """Release everything in a forked child: the thread and the connection are those of its parent.

    A child of that child calls this function as well, and finds nothing held, so that it closes no files of others.
    """
    global _dumping  # noqa: PLW0603 - as above
    _dumping = _thread.allocate_lock()
    faulthandler.unregister(SIGNAL)
    _close()


def _await_dump() -> None:
    """Wait for a dump that is under way, and let none begin: this process ends.

    During its finalization, Python ends each thread that requests its lock. In torch's code that does not end the
    thread alone: C++ calls `std::terminate`, and a worker that has done its work dies of SIGABRT.
    """
    _dumping.acquire(timeout=DUMP_WITHIN_S)


def _close() -> None:
    """Close the connection and the pipe, if they are held."""
    connection, *pipe = _held or [None]
    _held.clear()
    if connection is not None:
        connection.close()
    for end in pipe:
        with suppress(OSError):  # a child may have closed all of its descriptors
            os.close(end)


def _high(low: int) -> int:
    """Move a descriptor to a high number: scripts may rely on the low numbers that they get. Raises `OSError`."""
    try:
        return fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, DESCRIPTOR_MIN)
    finally:
        os.close(low)


def _serve(connection: socket.socket) -> None:
    """Answer questions until nodeclient closes the connection."""
    try:
        while question := connection.recv(PACKET_BYTES):
            answer = _arrivals(question) if question.startswith(ARRIVALS) else _answer()
            connection.send(answer, socket.MSG_NOSIGNAL)
    except OSError:
        return


def _answer() -> bytes:
    """Return the answer; if it does not fit a packet, with fewer threads, or else with fewer groups."""
    answer: dict[str, Any] = {"threads": (threads := _threads()), "collectives": (collectives := _collectives())}
    if collectives and all(collective["state"] != "moves" for collective in collectives):
        answer["network_bytes"] = _network_bytes()
    while len(packet := json.dumps(answer).encode()) > PACKET_BYTES:
        part = threads if len(threads) > 1 else collectives if len(collectives) > 1 else threads or collectives
        del part[len(part) // 2 :]
    return packet


def _network_bytes() -> int:
    """Return how many bytes the TCP connections of this process have sent and received.

    The kernel counts bytes when the peer acknowledges them, and not when they are written. So the number shows whether
    data of a collective moves out of the kernel's buffers, and leaves out the traffic of other processes.
    """
    total = 0
    for descriptor in range(DESCRIPTORS_LOOKED_AT):
        with suppress(OSError):  # there is no such descriptor, or it is another kind of socket
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                copy = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, DESCRIPTOR_MIN)
                with closing(_socket.socket(fileno=copy)) as connection:
                    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_COUNTERS[-1] + 8)
                    total += sum(int.from_bytes(info[at : at + 8], sys.byteorder) for at in TCP_COUNTERS)
    return total


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
        places.append((code.co_filename, frame.f_lineno or 0, getattr(code, "co_qualname", code.co_name)))
        frame = frame.f_back
    if len(places) > FRAMES_MAX:
        del places[FRAMES_MAX - OUTERMOST : -OUTERMOST]
    return places


def _collectives() -> list[dict[str, Any]]:
    """Return where this worker is in each process group, with those first in which it waits; none if that is not known.

    The counters cost 20 microseconds, and all entries a twentieth of a second. So the entries are not read if the
    counters of any recorder show that the worker gets on.
    """
    c10d = sys.modules.get(C10D)
    before = {recorder: _counters(c10d, recorder) for recorder in RECORDERS}
    if not any(before.values()):
        return []
    time.sleep(COUNTERS_APART_S)  # noqa: TID251 - this thread waits for nothing else
    moves = any(_counters(c10d, recorder) != counters for recorder, counters in before.items())
    found: list[dict[str, Any]] = []
    for recorder, counters in before.items():
        with suppress(Exception):  # its interface is not public, so it may have changed in any way
            if counters:
                entries = [] if moves else _pending_entries(_dump(c10d, recorder), recorder)
                found += _counted(counters) if moves else _by_group(entries)
    return sorted(found, key=lambda collective: collective["state"] != "waits")


def _counters(c10d: Any, recorder: str) -> dict[str, Any]:
    """Return how many collectives a recorder counts, by process group; none if torch has no such recorder."""
    try:
        status = json.loads(getattr(c10d, recorder)(False))["pg_status"]
        return {number: counters for number, counters in status.items() if (recorder, number) not in _over}
    except Exception:  # noqa: BLE001 - its interface is not public, so it may have changed in any way
        return {}


def _dump(c10d: Any, recorder: str) -> str:
    """Return the content of a recorder; only if there is no other way, with Python's lock, which stops the script."""
    if _dumping.acquire(blocking=False):
        try:
            return _dump_beside(c10d, recorder)
        except Exception:  # noqa: BLE001, S110 - this torch has no such handlers
            pass
        finally:
            _dumping.release()
    return str(getattr(c10d, recorder)(True).decode())


def _dump_beside(c10d: Any, recorder: str) -> str:
    """Return the content of a recorder, while the script goes on; the caller holds `_dumping`.

    The handlers of torch's server for workers can be called without that server. They run without the interpreter's
    lock for a tenth of a second, so the script does not pause.
    """
    contents: list[str] = []
    request = type("Request", (c10d._Request,), {"body": lambda _: b"", "params": lambda _: {}})  # noqa: SLF001
    setters = {"set_content": lambda _, content, __: contents.append(content), "set_status": lambda _, __: None}
    response = type("Response", (c10d._Response,), setters)  # noqa: SLF001 - none of it is public
    c10d._get_handler(RECORDERS[recorder])(request(), response())  # noqa: SLF001 - as above
    return contents[0]


def _counted(status: dict[str, dict[str, str]]) -> list[dict[str, Any]]:
    """Return how many collectives were begun in each group of a worker that gets on."""
    return [
        {"group": name, "number": counters["last_enqueued_collective"], "state": "moves"}
        for name, counters in list(status.items())[:GROUPS_MAX]
    ]


def _pending_entries(text: str, recorder: str) -> list[dict[str, Any]]:
    """Return the last entries of a recorder, as far back as each group among them has one that is over."""
    found: list[dict[str, Any]] = []
    pending: set[str] = set()
    for entry in islice(_backwards(text, recorder), PENDING_MAX):
        if len(found) >= ENTRIES_MAX and not pending:
            break
        found.append(entry)
        if not entry["is_p2p"]:
            (pending.discard if entry["retired"] else pending.add)(entry["process_group"][0])
    return found[::-1]


def _backwards(text: str, recorder: str) -> Iterator[dict[str, Any]]:
    """Yield the entries of this round in the content of a recorder, the last one first; it may have a megabyte."""
    decoder, at = json.JSONDecoder(), len(text)
    while (at := text.rfind(ENTRY, 0, at)) >= 0:
        entry = decoder.raw_decode(text, at)[0]
        if (recorder, str(entry.get("pg_id"))) in _over:
            return
        yield entry


def _by_group(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the first collective of each group that is not over, or else its last one, without `send` and `recv`."""
    chosen: dict[str, dict[str, Any]] = {}
    for entry in entries:
        name = entry["process_group"][0]
        if not entry["is_p2p"] and chosen.get(name, {"retired": True})["retired"]:
            chosen[name] = entry
    return [
        {
            "group": _group(*entry["process_group"]),
            "members": _members(entry["process_group"][0]),
            "number": entry["collective_seq_id"],
            "state": "done" if entry["retired"] else "waits",
            "operation": entry["profiling_name"],
            "sizes": entry["input_sizes"],
            "types": entry["input_dtypes"],
            "age_s": (time.time_ns() - entry["time_created_ns"]) / 1e9,
        }
        for entry in list(chosen.values())[:GROUPS_MAX]
    ]


def _group(name: str, description: str) -> str:
    """Return a name for a group. A description is enough only for the default group: others may share one."""
    if description == "default_pg":
        return description
    return f"{'group' if description in {'', 'undefined'} else description} {name[:GROUP_NAME_MAX]}"


def _members(name: str) -> int:
    """Return how many ranks a group has; 0 if that is not known."""
    try:
        return int(sys.modules[C10D]._resolve_process_group(name).size())  # noqa: SLF001 - not public
    except Exception:  # noqa: BLE001 - it may have changed in any way
        return 0


def _arrivals(question: bytes) -> bytes:
    """Return when this worker arrived in its last collectives, by process group; none if that is not known."""
    c10d, most = sys.modules.get(C10D), int(question.removeprefix(ARRIVALS))
    found: list[dict[str, Any]] = []
    for recorder in RECORDERS:
        with suppress(Exception):  # its interface is not public, so it may have changed in any way
            if _counters(c10d, recorder):
                with _dumping:
                    text = _dump_beside(c10d, recorder)
                found += _series([*islice(_backwards(text, recorder), most)][::-1])
    found.sort(key=lambda series: -len(series["times_ns"]))
    return json.dumps({"arrivals": found[:GROUPS_MAX]}).encode()


def _series(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the arrivals of each group in its last collectives, as far back as their numbers have no gap.

    A group with two backends counts the collectives of each backend by itself, so it is two groups here.
    """
    groups: dict[str, dict[str, Any]] = {}
    for entry in entries:
        if entry["is_p2p"]:
            continue
        name, number = entry["process_group"][0], entry["collective_seq_id"]
        series = groups.get(name)
        if series is not None and number == series["first"] + len(series["times_ns"]) - 1:
            continue  # several operations may be one collective
        if series is None or number != series["first"] + len(series["times_ns"]):
            backend, group = entry["profiling_name"].partition(":")[0], _group(*entry["process_group"])
            series = groups[name] = {"group": f"{backend} {group}", "first": number, "times_ns": []}
        series["times_ns"].append(entry["time_created_ns"])
    return list(groups.values())
