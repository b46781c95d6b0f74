"""What a worker or faulthandler says, made fit for a message. Pure, and nothing of it is trusted."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

from coordinatord.protocol.arrival_messages import AGE_US_MAX, ARRIVALS_MAX, GROUPS_MAX, GroupArrivals, pack_ages
from coordinatord.protocol.errors import OperationalError
from coordinatord.protocol.fields import COUNTER_MAX, DURATION_S_MAX, STEP_MAX
from coordinatord.protocol.frozen_class import frozen
from coordinatord.protocol.stack_messages import FRAME_MAX, Collective, CollectiveState, Thread
from coordinatord.protocol.stack_place import find_place
from coordinatord.protocol.text import clip

NAME_MAX = 64

_LIBRARIES = re.compile(r".*/(?:site-packages|dist-packages|lib/python3\.\d+)/")

_THREAD = re.compile(r"(?:Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):")

_FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')

_IMPORTS = "<frozen importlib"

_RESPONDER = "workerlib/responder.py"


class StrangeAnswerError(OperationalError):
    """A worker's answer is not what it should be: it may be any program of this user."""


def read_hello(packet: bytes) -> tuple[int, int]:
    """Return the local rank and the signal that a worker names in its first packet. Raises `StrangeAnswerError`."""
    try:
        hello = json.loads(packet)
        return int(hello["local_rank"]), int(hello["signal"])
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise StrangeAnswerError("it is no worker of this round") from error


@frozen
class WorkerAnswer:
    """What a worker has answered."""

    threads: tuple[Thread, ...] = ()
    collective: Collective | None = None
    """The collective that it waits in, or else the last one of its first group."""
    members: int = 0
    """How many ranks the group of that has; 0 if it is not known."""
    places: int = 0
    """A number that stands for where it is in all of its groups; 0 if it is not known."""
    network_bytes: int = 0
    """What has come and gone on its connections; 0 if it is not known."""
    stands_at: str = ""
    """Where the script is in its main thread; empty if it is not known."""


def read_answer(packet: bytes, folder: str) -> WorkerAnswer:
    """Read a worker's answer; paths within `folder` are given from there. Raises `StrangeAnswerError`."""
    try:
        answer = json.loads(packet)
        threads = tuple(
            (clip(str(thread["name"]), NAME_MAX), _frames(thread["frames"], folder)) for thread in answer["threads"]
        )
        stands_at = _stands_at(answer["threads"][0]["frames"], folder) if threads else ""
        found = [
            (_collective(entry), min(_whole(entry.get("members", 0)), COUNTER_MAX)) for entry in answer["collectives"]
        ]
        network_bytes = _whole(answer.get("network_bytes", 0))
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError) as error:
        raise StrangeAnswerError("the worker's answer is not what workerlib sends: is it another release?") from error
    if not found:
        return WorkerAnswer(threads, network_bytes=network_bytes, stands_at=stands_at)
    waiting = [each for each in found if each[0].state is CollectiveState.WAITS]
    collective, members = (waiting or found)[0]
    places = _places(collective for collective, _ in found)
    return WorkerAnswer(threads, collective, members, places, network_bytes, stands_at)


def _places(collectives: Iterable[Collective]) -> int:
    """Return a number that is another one when a worker gets on in any of its groups."""
    places = sorted((collective.group, collective.number, collective.state.value) for collective in collectives)
    return zlib.crc32(json.dumps(places).encode())


def read_arrivals(packet: bytes, now_s: float) -> tuple[GroupArrivals, ...]:
    """Return when a worker arrived in the last collectives of its groups, before `now_s` of the host's clock.

    Raises `StrangeAnswerError`.
    """
    try:
        groups = [_arrivals(group, now_s) for group in json.loads(packet)["arrivals"][:GROUPS_MAX]]
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError) as error:
        raise StrangeAnswerError("the worker's answer is not what workerlib sends: is it another release?") from error
    return tuple(group for group in groups if group.ages)


def _arrivals(entry: dict[str, Any], now_s: float) -> GroupArrivals:
    """Return those of one group that can be told: the last ones, and not those of more than an hour ago."""
    ages = [now_s - float(at) / 1e9 for at in entry["times_ns"]]
    beyond = max(0, len(ages) - ARRIVALS_MAX)
    dropped = next((index for index in range(beyond, len(ages)) if ages[index] * 1e6 <= AGE_US_MAX), len(ages))
    first = _whole(entry["first"]) + dropped
    return GroupArrivals(clip(str(entry["group"]), 32) or "?", min(first, STEP_MAX), pack_ages(ages[dropped:]))


def read_dump(text: str, folder: str) -> WorkerAnswer:
    """Return the stacks that faulthandler has written, that of the main thread first; it writes that last."""
    threads: list[tuple[str, list[tuple[str, str, str]]]] = []
    for line in text.splitlines():
        if _THREAD.match(line):
            threads.append(("thread", []))
        elif threads and (frame := _FRAME.match(line)):
            threads[-1][1].append((frame[1], frame[2], frame[3]))
    own = [frames for _, frames in threads if frames and not frames[0][0].endswith(_RESPONDER)]
    names = ["MainThread", *("thread" for _ in own)]
    ordered = [*own[-1:], *own[:-1]]
    shown = tuple((name, _frames(frames, folder)) for name, frames in zip(names, ordered, strict=False))
    return WorkerAnswer(shown, stands_at=_stands_at(ordered[0], folder) if ordered else "")


def _frames(places: Iterable[Sequence[object]], folder: str) -> tuple[str, ...]:
    """Return the frames as they are shown; those of imports in between are left out, as in tracebacks."""
    return tuple(_shown(place, folder) for place in places if not str(place[0]).startswith(_IMPORTS))


def _shown(place: Sequence[object], folder: str) -> str:
    path, line, function = map(str, place)
    return clip(f"{function} ({_shorter(path, folder)}:{line})", 400)


def _shorter(path: str, folder: str) -> str:
    return path.removeprefix(f"{folder}/") if path.startswith(f"{folder}/") else _LIBRARIES.sub("", path)


def _stands_at(places: Iterable[Sequence[object]], folder: str) -> str:
    """Return where the script is. A library's path is told from it by its beginning, so it alone is made shorter."""
    frames = [(str(function), _LIBRARIES.sub("", str(path)), str(line)) for path, line, function in places]
    found = find_place(frames)
    if found is None:
        return ""
    function, path, line = found
    return clip(f"{function} ({_shorter(path, folder)}:{line})", FRAME_MAX)


def _collective(entry: dict[str, Any]) -> Collective:
    shape = ", ".join(_tensors(entry.get("sizes", ()), entry.get("types", ())))
    return Collective(
        group=clip(str(entry["group"]), 32),
        number=_whole(entry["number"]),
        state=CollectiveState(entry["state"]),
        operation=clip(str(entry.get("operation", "")), 64),
        shape=clip(shape, 64),
        age_s=round(min(max(0.0, float(entry.get("age_s", 0))), DURATION_S_MAX), 1),
    )


def _whole(number: object) -> int:
    return min(max(0, int(str(number))), STEP_MAX)


def _tensors(sizes: Sequence[Iterable[object]], types: Sequence[object]) -> list[str]:
    words = ["x".join(map(str, size)) or "1" for size in sizes]
    return [f"{word} {kind}" for word, kind in zip(words, types, strict=False)] if types else words
