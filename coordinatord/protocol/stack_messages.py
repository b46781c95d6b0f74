"""The messages by which a coordinator asks a node where its workers stand: for a person, or since no step is done.

They are no levels as most messages are: each `AskStacks` is answered by one `Stacks`. A session has one of them on its
way at most. `pack_places` writes how far a worker is in each of its process groups, in a few bytes a group, and
`find_place` finds the line of a script at which a stack stands.
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
"""The workers in one answer: more than any common host has. A larger node gets several questions."""

STACK_BYTES_MAX = 720
"""The limit of the stacks of one worker that are accepted; nodes of this release send less."""

PACKED_BYTES_MAX = 620
"""The limit of the stacks of one worker that are sent: the answers about a thousand are less than a megabyte."""

BRIEF_BYTES_MAX = 400
"""The same limit for a brief look: the innermost frames show whether a worker gets on, and the outermost the script."""

PLACES_BYTES_MAX = 240
"""The limit of the places of one worker in its groups, of which each takes some 16 bytes: Megatron has 13 groups with
four kinds of parallelism. They and the stacks keep to the limit of stacks together."""

FRAME_MAX = 160
"""The length of one frame in characters: a function, a file and a line."""

WAITS_FOR_MAX = 64
"""The length of the name of what a worker waits for: a word or two, the name of a program, and its process id."""

OUTERMOST = 3
"""The number of frames that are kept from the beginning of a long stack: where the script began."""

ELLIPSIS = "..."
"""The frame that stands for those left out."""


class StackOrigin(StrEnum):
    """How the stacks of a worker were obtained."""

    WORKER = "worker"
    """The worker has answered."""
    SIGNAL = "signal"
    """The worker did not answer, and faulthandler has written them: code in C holds Python's lock."""
    NONE = "none"
    """There are none."""


class CollectiveState(StrEnum):
    """How far a worker is with a collective."""

    WAITS = "waits"
    """It has begun the collective, which is not over."""
    DONE = "done"
    """The collective is the last one that it has begun, and it is over."""
    MOVES = "moves"
    """The worker gets on: it has begun or ended one while it was looked at."""


class Collective(Strict, frozen=True):
    """What a worker does in a process group, by torch's flight recorder: a collective, or an exchange with one peer."""

    group: Annotated[str, printable(32)]
    """The process group, such as `default_pg`, or `mesh_tp 3` for one of several with that description."""
    number: Annotated[int, Meta(ge=0, le=STEP_MAX)]
    """The number of the collective in that group."""
    state: CollectiveState
    operation: Annotated[str, printable(64)] = ""
    """What it is, such as `gloo:all_reduce`, or `nccl:recv from 12` with the peer's rank; empty if it gets on."""
    shape: Annotated[str, printable(64)] = ""
    """The input of the worker, such as `1024x3 Float`."""
    age_s: Seconds = 0.0
    """How long ago the worker has begun it."""


class WorkerStacks(Strict, frozen=True):
    """Where one worker stands."""

    rank: Count
    origin: StackOrigin
    stacks: Annotated[bytes, Meta(max_length=STACK_BYTES_MAX)]
    """The Python stacks of its threads, as `pack_stacks` writes them."""
    state: Annotated[str, printable(16)]
    """The state of the process as the kernel has it, in a word; empty if it is not known."""
    waits_in: Annotated[str, printable(64)]
    """The function of the kernel in which its main thread waits; empty if it waits in none, or it is not known."""
    cpus: Annotated[float, Meta(ge=0, le=COUNTER_MAX)]
    """How many CPUs it used during the look, with the processes that it has started, such as those that load data."""
    collective: Collective | None
    """The first one that it has begun of those that it waits in, or else the last one that is over."""
    problem: Line
    """Why there is no stack; empty if there is one."""
    pid: Pid = 0
    """The process that was looked at; 0 if there is none."""
    io_bytes: Annotated[int, Meta(ge=0, le=STEP_MAX)] = 0
    """How much it and the processes that it has started have read and written: a worker whose disk is slow gets on."""
    network_bytes: Annotated[int, Meta(ge=0, le=STEP_MAX)] = 0
    """How much its open TCP connections have carried so far; 0 if that is not known, or it trains."""
    members: Annotated[int, Meta(ge=0, le=COUNTER_MAX)] = 0
    """How many ranks the process group of its collective has; 0 if that is not known."""
    places: Annotated[bytes, Meta(max_length=PLACES_BYTES_MAX)] = b""
    """Where it is in its other process groups, as `pack_places` writes it."""
    stands_at: Annotated[str, printable(FRAME_MAX)] = ""
    """Where its main thread stands, by the whole stack: the function that the script has called, with the script's own
    line, such as `get (train.py:41)`; empty if it is not known."""
    waits_for: Annotated[str, printable(WAITS_FOR_MAX)] = ""
    """What its main thread waits for that is no part of the job, such as `the program rsync (process 4711)`; empty if
    nothing is seen."""


class AskStacks(Strict, frozen=True, tag=True):
    """Asks where some workers of a round stand."""

    request: RequestNumber
    run: Name
    round: Counter
    local_ranks: Annotated[tuple[LocalRank, ...], Meta(min_length=1, max_length=WORKERS_ASKED_MAX)]
    brief: bool = False
    """Only the main thread of each worker is wanted, in `BRIEF_BYTES_MAX`: no person reads the answer."""


class Stacks(Strict, frozen=True, tag=True):
    """Where these workers stand, in the order in which they were asked for."""

    request: RequestNumber
    workers: Annotated[tuple[WorkerStacks, ...], Meta(max_length=WORKERS_ASKED_MAX)]
    problem: Sentence
    """Why there are no stacks; empty if there are."""


Thread = tuple[str, tuple[str, ...]]
"""The name of a thread, and its frames as `function (file:line)`, the innermost first."""


def pack_stacks(threads: Sequence[Thread], most: int = PACKED_BYTES_MAX) -> bytes:
    """Write the stacks of a worker, the main thread first: a line with the name of each, a line a frame, an empty line.

    Of a stack that is too long the frames in the middle are left out. A thread that does not fit into `most` bytes is
    left out with all that follow.
    """
    packed = b""
    for name, frames in threads:
        shown = [clip(frame, FRAME_MAX) for frame in frames]
        kept = len(shown)
        while len(piece := _packed(name, shown, kept)) > most - len(packed) and kept:
            kept -= 1
        if not kept or (kept < len(shown) and packed):
            break
        packed += piece
    return packed


def unpack_stacks(packed: bytes) -> tuple[Thread, ...]:
    """Read the stacks of a worker; damaged bytes are replaced."""
    threads = packed.decode(errors="replace").split("\n\n")
    lines = [[clip(line, FRAME_MAX) for line in thread.split("\n")] for thread in threads if thread]
    return tuple((name, tuple(frames)) for name, *frames in lines)


def _packed(name: str, frames: Sequence[str], kept: int) -> bytes:
    """Write the stack of a thread with so many of its frames."""
    if kept < len(frames):
        outermost = min(OUTERMOST, kept // 2)
        frames = [*frames[: kept - outermost], ELLIPSIS, *frames[len(frames) - outermost :]]
    return "\n".join((clip(name, FRAME_MAX), *frames, "", "")).encode()


_PLACE = re.compile(r"([\w.@-]{1,32})([=?!<>])(\d{1,16});", re.ASCII)

_PEER = re.compile(r"(send to|recv from) (\d{1,16})")

_FOR_ALL = re.compile(r"_?(all_?reduce|all_?gather|reduce_scatter|barrier)")
"""Operations that are over for no rank before all have begun them. All others may be over for some of them before:
a broadcast for its root, and an `all_to_all` for ranks that have nothing for each other."""


class GroupStage(StrEnum):
    """How far a worker is at a place."""

    DONE = "="
    """The collective is the last one that the worker has begun, and it is over."""
    WAITS = "?"
    """The worker has begun the collective, which is not over."""
    WAITS_FOR_ALL = "!"
    """The same, and it is over for no worker before all of the group have begun it."""
    SENDS = ">"
    """The worker sends to a peer, which has not received it."""
    RECEIVES = "<"
    """The worker receives from a peer, which has not sent."""


PAIRED = {GroupStage.SENDS: GroupStage.RECEIVES, GroupStage.RECEIVES: GroupStage.SENDS}
"""What a peer does at the other end."""


class GroupPlace(Struct, frozen=True):
    """Where a worker is in one process group, with one of its backends."""

    group: str
    """The group and the backend, such as `41.nccl`: each backend counts its own collectives. No backend is given of a
    group in which the worker has begun none."""
    stage: GroupStage
    number: int
    """The number of the collective; or else the rank of the peer."""

    @property
    def level(self) -> int:
        """A number that grows when the worker begins a collective of the group, and when one is over."""
        return 2 * self.number - (self.stage is not GroupStage.DONE)


def place_of(collective: Collective) -> GroupPlace | None:
    """Return where a worker is that is at this collective; None if its peer is not known, or if it gets on."""
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
    """Write where a worker is at these collectives, less the first one, which a message has by itself.

    Of each group there is the first collective, the first one that waits for all, and the first exchange with a peer.
    What does not fit is left out.
    """
    packed = b""
    told: set[tuple[str, str]] = set()
    for at, collective in enumerate(collectives):
        place = place_of(collective)
        if place is None:
            continue
        kinds = {(place.group, "pair" if place.stage in PAIRED else "any")}
        if place.stage is GroupStage.WAITS_FOR_ALL:
            kinds.add((place.group, "for all"))
        text = f"{place.group}{place.stage}{place.number};"
        fits = _PLACE.fullmatch(text) and len(packed) + len(text) <= PLACES_BYTES_MAX
        if at and fits and not kinds <= told:
            packed += text.encode()
        told |= kinds
    return packed


def unpack_places(packed: bytes) -> tuple[GroupPlace, ...]:
    """Read where a worker is; what no worker writes is left out."""
    return tuple(
        GroupPlace(group, GroupStage(stage), int(number))
        for group, stage, number in _PLACE.findall(packed.decode(errors="replace"))
    )


Frame = tuple[str, str, str]
"""A function, its file and a line."""

_RUNNER = re.compile(r"<frozen runpy>|(?:.*/)?runpy\.py|(?:.*/)?nodeclient/forkserver/.*")
"""The files that run a script. A folder of the user's may be called nodeclient, too."""

_GO_BETWEEN = re.compile(r"(?:.*\.)?(?:wrapper|decorate_context|_wrapped_call_impl|_call_impl)")
"""Functions that only call another one: those of torch's decorators, and those that call the forward of a module."""


def find_place(frames: Sequence[Frame]) -> Frame | None:
    """Return the function that the script has called, with the file and the line of the call; None without a frame.

    The innermost frame comes first. The script's own files are the one that was started, and those beside it or in
    folders beside it. If no frame is in one of these files, the innermost frame is returned.
    """
    script = _find_script(frames)
    folder = script.rpartition("/")[0]
    for at, (name, file, line) in enumerate(frames):
        if script and (file == script or (folder and file.startswith(f"{folder}/"))):
            called = [function for function, _, _ in reversed(frames[:at]) if function != ELLIPSIS]
            telling = (function for function in called if not _GO_BETWEEN.fullmatch(function))
            return next(telling, called[0] if called else name), file, line
    return frames[0] if frames else None


def _find_script(frames: Sequence[Frame]) -> str:
    """Return the file of the script: it was started, or another program runs it. Empty if it is not known."""
    for at, (name, file, _) in enumerate(frames):
        is_outermost = at == len(frames) - 1 or _runs_scripts(frames[at + 1][1])
        if name == "<module>" and is_outermost and not _runs_scripts(file):
            return file
    return ""


def _runs_scripts(file: str) -> bool:
    return _RUNNER.fullmatch(file) is not None
