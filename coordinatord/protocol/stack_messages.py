"""The messages by which a coordinator asks where a node's workers stand, for a person or to find a hang.

Most messages have a whole state. These are a question and its answer: one `Stacks` answers each `AskStacks`, and a
session, the connection of a node, has at most one of them in flight. A worker's sample has its Python stacks, and its
*places*: how far it is in each of its process groups. Thousands of workers may answer at once, so both are packed into
less than a kilobyte by the functions below. `find_position` finds the line of the script in a stack.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from coordinatord.protocol.fields import (
    COUNTER_MAX,
    STEP_MAX,
    Count,
    Counter,
    Line,
    LocalRank,
    Name,
    Pid,
    RequestNumber,
    Seconds,
    Sentence,
)
from coordinatord.protocol.schema import Strict, printable
from coordinatord.protocol.text import clip

WORKERS_ASKED_MAX = 64
"""The most workers in one answer: more than any common host has. A larger node gets several questions."""

STACK_BYTES_MAX = 720
"""The most bytes of one worker's stacks that are accepted. Nodes of this release send less, later ones perhaps more."""

PACKED_BYTES_MAX = 620
"""The most bytes of one worker's stacks, `places`, `stands_at` and `waits_for` together: the answers of a thousand
workers are less than a megabyte."""

BRIEF_BYTES_MAX = 400
"""The most bytes of stacks and `stands_at` in a brief sample, which no person reads: the innermost frames show whether
the worker makes progress, and the outermost ones where the script is."""

PLACES_BYTES_MAX = 240
"""The most bytes of one worker's places in its groups, some 16 each: Megatron has 13 groups with four kinds of
parallelism."""

FRAME_MAX = 160
"""The most characters of one frame: a function, a file and a line."""

WAITS_FOR_MAX = 64
"""The most characters of the name of an awaited thing: a word or two, the name of a program, and its process id."""

OUTERMOST = 3
"""The number of outermost frames that a shortened stack keeps: they show where the script began."""

ELLIPSIS = "..."
"""Stands for the frames that are left out."""


class StackOrigin(StrEnum):
    """How the stacks of a worker were obtained."""

    WORKER = "worker"
    """The worker has answered."""
    SIGNAL = "signal"
    """faulthandler wrote the stacks on a signal, because the worker did not answer: C code has Python's lock."""
    NONE = "none"


class CollectiveState(StrEnum):
    """A worker's progress in a collective."""

    WAITS = "waits"
    """It has begun the collective, which is not over."""
    DONE = "done"
    """The last collective that it has begun is over."""
    MOVES = "moves"
    """The worker makes progress: it began or completed one during the sample."""


class Collective(Strict, frozen=True):
    """A worker's operation in a process group, by torch's flight recorder: a collective, or an exchange with a peer."""

    group: Annotated[str, printable(32)]
    """The process group, such as `default_pg`, or `mesh_tp 3` for one of several with that description."""
    number: Annotated[int, Meta(ge=0, le=STEP_MAX)]
    """The number of the collective in that group."""
    state: CollectiveState
    operation: Annotated[str, printable(64)] = ""
    """Its name, such as `gloo:all_reduce`, or `nccl:recv from 12` with the peer's rank; empty if it makes progress."""
    shape: Annotated[str, printable(64)] = ""
    """The input of the worker, such as `1024x3 Float`."""
    age_s: Seconds = 0.0
    """The time since the worker began it."""


class WorkerStacks(Strict, frozen=True):
    """A sample of one worker."""

    rank: Count
    origin: StackOrigin
    stacks: Annotated[bytes, Meta(max_length=STACK_BYTES_MAX)]
    """The Python stacks of its threads, encoded by `pack_stacks`."""
    state: Annotated[str, printable(16)]
    """The kernel's state of the process, in a word; empty if not known."""
    waits_in: Annotated[str, printable(64)]
    """The kernel function in which its main thread waits; empty if not known, or without one."""
    cpus: Annotated[float, Meta(ge=0, le=COUNTER_MAX)]
    """The CPUs that it and its child processes, such as those that load data, used during the sample."""
    collective: Collective | None
    """The first collective that it waits in, or else the last one that is over; None if none is known."""
    problem: Line
    """Why there is no stack; empty if there is one."""
    pid: Pid = 0
    """The sampled process; 0 if there is none."""
    io_bytes: Annotated[int, Meta(ge=0, le=STEP_MAX)] = 0
    """The bytes that it and its child processes have read and written: they show progress on a slow disk."""
    network_bytes: Annotated[int, Meta(ge=0, le=STEP_MAX)] = 0
    """The bytes of its open TCP connections so far; 0 if not known, or if it makes progress."""
    members: Annotated[int, Meta(ge=0, le=COUNTER_MAX)] = 0
    """The number of ranks in the process group of its collective; 0 if not known."""
    places: Annotated[bytes, Meta(max_length=PLACES_BYTES_MAX)] = b""
    """Its places in its other process groups, encoded by `pack_places`."""
    stands_at: Annotated[str, printable(FRAME_MAX)] = ""
    """The position of its main thread, by the whole stack: the function that the script has called, and the script's
    line, such as `get (train.py:41)`; empty if not known."""
    waits_for: Annotated[str, printable(WAITS_FOR_MAX)] = ""
    """A thing outside the job that its main thread waits for, such as `the program rsync (process 4711)`; empty if none
    is seen."""


class AskStacks(Strict, frozen=True, tag=True):
    """Asks for samples of some workers of a round."""

    request: RequestNumber
    run: Name
    round: Counter
    local_ranks: Annotated[tuple[LocalRank, ...], Meta(min_length=1, max_length=WORKERS_ASKED_MAX)]
    brief: bool = False
    """Whether only the main thread of each worker is wanted, in `BRIEF_BYTES_MAX`: no person reads the answer."""


class Stacks(Strict, frozen=True, tag=True):
    """The samples of the workers, in the order of the request."""

    request: RequestNumber
    workers: Annotated[tuple[WorkerStacks, ...], Meta(max_length=WORKERS_ASKED_MAX)]
    problem: Sentence
    """Why there are no stacks; empty if there are."""


Thread = tuple[str, tuple[str, ...]]
"""The name of a thread, and its frames as `function (file:line)`, the innermost first."""


def pack_stacks(threads: Sequence[Thread], most: int = PACKED_BYTES_MAX) -> bytes:
    """Encode the stacks of a worker, the main thread first: a line with its name, a line a frame, and an empty line.

    If the main thread does not fit into `most` bytes, it loses the frames in its middle. The first other thread that
    does not fit is dropped, and so are all after it.
    """
    packed = b""
    for name, frames in threads:
        shown = [clip(frame, FRAME_MAX) for frame in frames]
        kept = len(shown)
        while len(piece := _packed(name, shown, kept)) > most - len(packed) and kept:
            kept -= 1
        is_main = not packed
        if not kept or (kept < len(shown) and not is_main):
            break
        packed += piece
    return packed


def unpack_stacks(packed: bytes) -> tuple[Thread, ...]:
    """Decode the stacks of a worker; damaged bytes are replaced."""
    threads = packed.decode(errors="replace").split("\n\n")
    lines = [[clip(line, FRAME_MAX) for line in thread.split("\n")] for thread in threads if thread]
    return tuple((name, tuple(frames)) for name, *frames in lines)


def _packed(name: str, frames: Sequence[str], kept: int) -> bytes:
    """Encode the stack of a thread with `kept` of its frames."""
    if kept < len(frames):
        outermost = min(OUTERMOST, kept // 2)
        frames = [*frames[: kept - outermost], ELLIPSIS, *frames[len(frames) - outermost :]]
    return "\n".join((clip(name, FRAME_MAX), *frames, "", "")).encode()


_PLACE = re.compile(r"([\w.@-]{1,32})([=?!<>])(\d{1,16});", re.ASCII)
"""A place on the wire: the group, the character of its `GroupStage` and a number, such as `41.nccl!1204;`."""

_PEER = re.compile(r"(send to|recv from) (\d{1,16})")

_FOR_ALL = re.compile(r"_?(all_?reduce|all_?gather|reduce_scatter|barrier)")
"""Operations that complete only once all ranks have begun them. Others may complete for some ranks before: a broadcast
for its root, and an `all_to_all` for ranks that exchange nothing."""


class GroupStage(StrEnum):
    """A worker's progress at a place as one character: a `CollectiveState`, and for whom the worker waits."""

    DONE = "="
    """The last collective that the worker has begun is over."""
    WAITS = "?"
    """The worker has begun the collective, which is not over."""
    WAITS_FOR_ALL = "!"
    """The same, in a collective that completes only once all of the group have begun it."""
    SENDS = ">"
    """The worker sends to a peer, which has not received it."""
    RECEIVES = "<"
    """The worker receives from a peer, which has not sent."""


PAIRED = {GroupStage.SENDS: GroupStage.RECEIVES, GroupStage.RECEIVES: GroupStage.SENDS}
"""The stages of an exchange, each with that of the peer."""


class GroupPlace(Struct, frozen=True):
    """A worker's place in one process group, with one of its backends."""

    group: str
    """The last word of `Collective.group`, and the backend, such as `41.nccl`: each backend counts its own collectives.
    As `41.`, without a backend, the worker has begun no collective of the group."""
    stage: GroupStage
    number: int
    """The number of the collective, or the rank of the peer."""

    @property
    def level(self) -> int:
        """A number that grows by 1 when the worker begins or completes a collective; meaningless for an exchange."""
        return 2 * self.number - (self.stage is not GroupStage.DONE)


def place_of(collective: Collective) -> GroupPlace | None:
    """Return the place of a worker in a collective; None if its peer is not known, or if it makes progress."""
    if collective.state is CollectiveState.MOVES:
        return None
    backend, _, operation = collective.operation.rpartition(":")
    group = f"{collective.group.rpartition(' ')[2]}.{backend}"
    if operation.startswith(("send", "recv")):
        peer = _PEER.fullmatch(operation)
        stage = GroupStage.SENDS if operation.startswith("send") else GroupStage.RECEIVES
        return None if peer is None else GroupPlace(group, stage, int(peer[2]))
    if collective.state is CollectiveState.DONE:
        return GroupPlace(group, GroupStage.DONE, collective.number)
    return GroupPlace(
        group, GroupStage.WAITS_FOR_ALL if _FOR_ALL.match(operation) else GroupStage.WAITS, collective.number
    )


def pack_places(collectives: Sequence[Collective]) -> bytes:
    """Encode the places of a worker in these collectives, except the first, which has its own field in the message.

    `collectives` begin with those in which the worker waits, the oldest first. At most three places of a group can show
    a hang. The first exchange and the first collective hold the worker up now. The first collective for all shows
    whether it is overtaken (see `wait_graph`). Other places are left out, and so are places beyond the limit.
    """
    packed = b""
    seen: set[tuple[str, str]] = set()
    for index, collective in enumerate(collectives):
        place = place_of(collective)
        if place is None:
            continue
        firsts = {(place.group, "exchange" if place.stage in PAIRED else "collective")}
        if place.stage is GroupStage.WAITS_FOR_ALL:
            firsts.add((place.group, "collective for all"))
        can_show_hang = not firsts <= seen
        seen |= firsts
        text = f"{place.group}{place.stage}{place.number};"
        fits = _PLACE.fullmatch(text) and len(packed) + len(text) <= PLACES_BYTES_MAX
        if index > 0 and can_show_hang and fits:
            packed += text.encode()
    return packed


def unpack_places(packed: bytes) -> tuple[GroupPlace, ...]:
    """Decode the places of a worker; invalid ones are dropped."""
    return tuple(
        GroupPlace(group, GroupStage(stage), int(number))
        for group, stage, number in _PLACE.findall(packed.decode(errors="replace"))
    )


Frame = tuple[str, str, str]
"""A function, its file and a line."""

_RUNNER = re.compile(r"<frozen runpy>|(?:.*/)?runpy\.py|(?:.*/)?nodeclient/forkserver/.*")
"""The files that run a script. Of nodeclient, only this folder: a user's folder may be called nodeclient, too."""

_GO_BETWEEN = re.compile(r"(?:.*\.)?(?:wrapper|decorate_context|_wrapped_call_impl|_call_impl)")
"""Functions that only call another one: those of torch's decorators, and those that call the forward of a module."""


def find_position(frames: Sequence[Frame]) -> Frame | None:
    """Return the function that the script has called, with the file and the line of the call; None without a frame.

    The innermost frame comes first. The script's files are the one that was started, and those in its folder. Without
    a frame in these files, the innermost frame is returned.
    """
    script = _find_script(frames)
    folder = script.rpartition("/")[0]
    for index, (name, file, line) in enumerate(frames):
        if script and (file == script or (folder and file.startswith(f"{folder}/"))):
            called = [function for function, _, _ in reversed(frames[:index]) if function != ELLIPSIS]
            named = (function for function in called if not _GO_BETWEEN.fullmatch(function))
            return next(named, called[0] if called else name), file, line
    return frames[0] if frames else None


def _find_script(frames: Sequence[Frame]) -> str:
    """Return the file of the outermost module, or of the one that a `_RUNNER` has started; empty if not known."""
    for index, (name, file, _) in enumerate(frames):
        is_outermost = index == len(frames) - 1 or _runs_scripts(frames[index + 1][1])
        if name == "<module>" and is_outermost and not _runs_scripts(file):
            return file
    return ""


def _runs_scripts(file: str) -> bool:
    return _RUNNER.fullmatch(file) is not None
