"""Parses the answers of workers' responders, and the output of faulthandler, into the parts of messages.

Pure. No input is trusted: it may come from any program of this user.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from coordinatord.protocol.arrival_messages import AGE_US_MAX, ARRIVALS_MAX, GROUPS_MAX, GroupArrivals, pack_ages
from coordinatord.protocol.errors import OperationalError
from coordinatord.protocol.fields import COUNTER_MAX, DURATION_S_MAX, STEP_MAX
from coordinatord.protocol.stack_messages import (
    FRAME_MAX,
    Collective,
    CollectiveState,
    StackOrigin,
    Thread,
    find_position,
    pack_places,
)
from coordinatord.protocol.text import clip

NAME_MAX = 64
"""The limit of a thread's name in characters."""

_LIBRARIES = re.compile(r".*/(?:site-packages|dist-packages|lib/python3\.\d+)/")
"""The part of a library's path that is not shown."""

_THREAD = re.compile(r"(?:Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):")
_FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')
"""The lines of faulthandler."""

_IMPORTS = "<frozen importlib"
"""The file of a frame of the import system."""

_DEBUGGER = re.compile(
    r"bdb\.py (?:.*\.)?(?:trace_dispatch|dispatch_\w+)"
    r"|(?:pdb|IPython/core/debugger)\.py (?:.*\.)?interaction"
    r"|(?:.*/)?pydevd\.py (?:.*\.)?(?:_?do_wait_suspend|_wait_for_attach)"
    r"|(?:remote_pdb|rpdb/__init__)\.py (?:.*\.)?__init__"
    r"|(?:code|IPython/terminal/\w+)\.py (?:.*\.)?interact"
)
"""Functions of a thread in a debugger or a prompt: of the standard library (pdb, bdb, code), of IPython, of pydevd
(debugpy, PyCharm), and of debuggers that wait for a client. A thread that a debugger only traces is in none."""

_RESPONDER = "workerlib/responder.py"
"""The module of workerlib whose thread takes the stacks and answers."""

_AGENT_CHANNEL = re.compile(r"(?:.*/)?workerlib/agent_channel\.py")
"""The module of workerlib whose threads wait for nodeclient."""

_MALFORMED = (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError)
"""The errors of reading an answer that is not of the expected form."""

_NOT_OURS = "the worker's answer is not what workerlib sends: is it another release?"


class MalformedAnswerError(OperationalError):
    """A worker's answer is malformed."""


def read_hello(packet: bytes) -> tuple[int, int]:
    """Parse a worker's first packet: its local rank and its stack-dump signal. Raises `MalformedAnswerError`."""
    try:
        hello = json.loads(packet)
        return int(hello["local_rank"]), int(hello["signal"])
    except _MALFORMED as error:
        raise MalformedAnswerError("it is no worker of this round") from error


class WorkerAnswer(Struct, frozen=True):
    """The stacks and the collectives of a worker at one moment, or why there are none."""

    threads: tuple[Thread, ...] = ()
    collective: Collective | None = None
    """The first collective that it waits in, or else one in which it gets on, or else the last one that is over."""
    members: int = 0
    """The number of ranks in the group of that collective; 0 if not known."""
    places: bytes = b""
    """Its other places in its groups, encoded by `pack_places`, which leaves out that of `collective`."""
    network_bytes: int = 0
    """The bytes that its connections have sent and received; 0 if not known."""
    stands_at: str = ""
    """The position of the script in its main thread; empty if not known."""
    is_debugged: bool = False
    """Whether one of its threads is in a debugger or a prompt of Python."""
    origin: StackOrigin = StackOrigin.NONE
    """How the stacks were taken. `stack_service`, which asks for them, fills it in."""
    problem: str = ""
    """Why there are no stacks."""


def read_answer(packet: bytes, folder: str) -> WorkerAnswer:
    """Parse the answer of a worker's responder; paths within `folder` become relative to it.

    Raises `MalformedAnswerError`.
    """
    try:
        answer = json.loads(packet)
        given = answer["threads"] or ()
        # The main thread comes first.
        shown = [*given[:1], *(thread for thread in given[1:] if not _awaits_nodeclient(thread["frames"]))]
        threads = tuple((clip(str(thread["name"]), NAME_MAX), _frames(thread["frames"], folder)) for thread in shown)
        is_debugged = any(_is_debugged(thread["frames"]) for thread in given)
        stands_at = _script_position(shown[0]["frames"], folder) if shown else ""
        located = locate(answer["collectives"])
        network_bytes = _number(answer.get("network_bytes", 0))
    except _MALFORMED as error:
        raise MalformedAnswerError(_NOT_OURS) from error
    return replace(located, threads=threads, network_bytes=network_bytes, stands_at=stands_at, is_debugged=is_debugged)


def locate(collectives: Iterable[dict[str, Any]]) -> WorkerAnswer:
    """Return an answer with only the places of a worker in its collectives, which `recorders.in_order` has sorted.

    Raises an error of any kind if a collective is malformed.
    """
    found = [(_collective(entry), min(_number(entry.get("members", 0)), COUNTER_MAX)) for entry in collectives]
    if not found:
        return WorkerAnswer()
    found.sort(key=lambda pair: pair[0].state is not CollectiveState.WAITS)
    collective, members = found[0]
    return WorkerAnswer((), collective, members, pack_places([collective for collective, _ in found]))


def read_arrivals(packet: bytes, now_s: float) -> tuple[GroupArrivals, ...]:
    """Parse a worker's last arrivals into ages at `now_s`, a time of the host. Raises `MalformedAnswerError`."""
    try:
        groups = [_arrivals(group, now_s) for group in json.loads(packet)["arrivals"][:GROUPS_MAX]]
    except _MALFORMED as error:
        raise MalformedAnswerError(_NOT_OURS) from error
    return tuple(group for group in groups if group.ages)


def _arrivals(entry: dict[str, Any], now_s: float) -> GroupArrivals:
    """Return the arrivals of one group that fit a message: the last ones within an hour."""
    ages = [now_s - float(at) / 1e9 for at in entry["times_ns"]]  # the oldest first
    excess = max(0, len(ages) - ARRIVALS_MAX)
    dropped = next((index for index in range(excess, len(ages)) if ages[index] * 1e6 <= AGE_US_MAX), len(ages))
    first = _number(entry["first"]) + dropped
    return GroupArrivals(clip(str(entry["group"]), 32) or "?", min(first, STEP_MAX), pack_ages(ages[dropped:]))


def read_dump(text: str, folder: str) -> WorkerAnswer:
    """Parse faulthandler's stacks, and move that of the main thread from the end to the front.

    The responder's own thread is left out, as from a responder's answer.
    """
    threads: list[list[Sequence[str]]] = []
    for line in text.splitlines():
        if _THREAD.match(line):
            threads.append([])
        elif threads and (frame := _FRAME.match(line)):
            threads[-1].append(frame.groups())
    others = [frames for frames in threads if frames and not frames[0][0].endswith(_RESPONDER)]
    names = ["MainThread", *("thread" for _ in others)]
    ordered = [*others[-1:], *(frames for frames in others[:-1] if not _awaits_nodeclient(frames))]
    shown = tuple((name, _frames(frames, folder)) for name, frames in zip(names, ordered, strict=False))
    stands_at = _script_position(ordered[0], folder) if ordered else ""
    return WorkerAnswer(shown, stands_at=stands_at, is_debugged=any(map(_is_debugged, others)))


def _is_debugged(frames: Iterable[Sequence[object]]) -> bool:
    return any(_DEBUGGER.fullmatch(f"{_LIBRARIES.sub('', str(path))} {function}") for path, _, function in frames)


def _awaits_nodeclient(frames: Sequence[Sequence[object]]) -> bool:
    """Whether this is workerlib's thread that waits for nodeclient, which tells nothing about the script."""
    return len(frames) > 1 and frames[0][2] == "recv_fds" and _AGENT_CHANNEL.fullmatch(str(frames[1][0])) is not None


def _frames(frames: Iterable[Sequence[object]], folder: str) -> tuple[str, ...]:
    """Return the frames as text, without those of the import system, as in tracebacks."""
    shown = (map(str, frame) for frame in frames if not str(frame[0]).startswith(_IMPORTS))
    return tuple(clip(_frame_text(function, path, line, folder), FRAME_MAX) for path, line, function in shown)


def _frame_text(function: str, path: str, line: str, folder: str) -> str:
    is_below = path.startswith(f"{folder}/")
    return f"{function} ({path.removeprefix(f'{folder}/') if is_below else _LIBRARIES.sub('', path)}:{line})"


def _script_position(frames: Iterable[Sequence[object]], folder: str) -> str:
    """Return the line of the script. Library paths are shortened first: they may be below the script's folder."""
    found = find_position(
        [(str(function), _LIBRARIES.sub("", str(path)), str(line)) for path, line, function in frames]
    )
    return "" if found is None else clip(_frame_text(*found, folder), FRAME_MAX)


def _collective(entry: dict[str, Any]) -> Collective:
    shape = ", ".join(_tensors(entry.get("sizes", ()), entry.get("types", ())))
    return Collective(
        group=clip(str(entry["group"]), 32),
        number=_number(entry["number"]),
        state=CollectiveState(entry["state"]),
        operation=clip(str(entry.get("operation", "")), 64),
        shape=clip(shape, 64),
        age_s=round(min(max(0.0, float(entry.get("age_s", 0))), DURATION_S_MAX), 1),
    )


def _number(number: object) -> int:
    return min(max(0, int(str(number))), STEP_MAX)


def _tensors(sizes: Sequence[Iterable[object]], types: Sequence[object]) -> list[str]:
    words = ["x".join(map(str, size)) or "1" for size in sizes]
    return [f"{word} {kind}" for word, kind in zip(words, types, strict=False)] if types else words
