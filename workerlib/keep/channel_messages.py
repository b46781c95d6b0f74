"""What a worker and its nodeclient say to each other about kept state; standard library only, since both import it.

They hold a Unix SOCK_SEQPACKET connection: each packet is one JSON object of at most `PACKET_BYTES`, and arenas travel
beside it as file descriptors. A worker finds the socket by the environment variable `workerlib.env.KEEP`, and begins
with `Hello`. Each side checks what it gets by `decode`: a packet that is not one of the messages below ends the
connection.

| from | message | answered by |
|---|---|---|
| worker | `Hello` | |
| worker | `Reserve` | `Reserved` with a descriptor, or `RefusedMemory` |
| worker | `AskRestore` | `ResumeFrom`, with a descriptor for each of its parts, once all of them are on this host |
| nodeclient | `SaveNow` | `Saved` or `NotSaved` |
| nodeclient | `HaltAt` | `Halted` before the step is named, then `Saved` or `NotSaved`, or `Checkpointed` |
| worker | `Saved`, after each save at an interval too | |
| worker | `Interval` | |
| worker | `Checkpointing` | |
| worker | `Checkpointed`, after each checkpoint that the script has written | |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from workerlib.packets import PacketCodec

DESCRIPTORS_MAX = 64
"""The descriptors that go with one packet; the kernel takes 253 at most (SCM_MAX_FD)."""

StepOrNone = int
"""A step; -1 where there is none yet."""


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message of a worker: which one it is."""

    local_rank: int
    round: int
    pid: int


@dataclass(frozen=True, slots=True)
class Reserve:
    """A worker asks for an arena whose places have at least these bytes."""

    generation: int
    small: int
    shard: int
    """The part of the big state that it keeps; see `arena.Commit`."""
    shards: int


@dataclass(frozen=True, slots=True)
class Reserved:
    """The arena comes with this packet."""

    disk_every_s: float = 0.0
    """How often a step is written to a disk; 0 for never. What all ranks have alike is then saved in training too."""


@dataclass(frozen=True, slots=True)
class RefusedMemory:
    """There is no memory for the arena, and why; training goes on without."""

    why: str


@dataclass(frozen=True, slots=True)
class AskRestore:
    """A worker asks for what it resumes from."""


@dataclass(frozen=True, slots=True)
class Part:
    """What the arena of one descriptor holds of the resume point."""

    rank: int
    big: bool
    small: bool
    pending: bool


@dataclass(frozen=True, slots=True)
class ResumeFrom:
    """What the round resumes from. More packets follow if `more`; step -1 says that there is nothing."""

    round: int
    step: StepOrNone
    world_size: int
    parts: tuple[Part, ...]
    more: bool = False


NOTHING = ResumeFrom(0, -1, 0, ())
"""The round begins from nothing, as all of its workers do."""


@dataclass(frozen=True, slots=True)
class SaveNow:
    """The round is over: save the big state now, if a step is whole.

    In a `planned` stop a script that calls `should_stop` goes on to a step of its choice instead, and the state of that
    step is saved when it leaves its `with` block.
    """

    number: int
    """The answer repeats it. So it is told from the answer to an earlier request, or from a save at an interval."""
    planned: bool = False
    late: bool = False
    """The script had the time to come to a step of its choice, and has not: save, and let training go on to it."""


BEFORE_NAMED = -1
"""Stands for a step that is not chosen yet: all workers of the round are to keep the same one."""


@dataclass(frozen=True, slots=True)
class HaltAt:
    """The round ends on purpose: stand still at the end of this step, and save it.

    With `BEFORE_NAMED`: at the end of the step that is on, until another `HaltAt` names one.
    """

    number: int
    """The answer repeats it."""
    step: StepOrNone


@dataclass(frozen=True, slots=True)
class Halted:
    """The worker stands still at the end of this step, or will; it goes on only when a later one is named."""

    step: int
    asked: int
    """The number of the `HaltAt` that this answers."""


@dataclass(frozen=True, slots=True)
class Saved:
    """The big state of a step is whole in the arena."""

    step: int
    seconds: float
    length: int
    asked: int = 0
    """The number of the `SaveNow` that this answers; 0 for a save that nobody asked for."""


@dataclass(frozen=True, slots=True)
class NotSaved:
    """Nothing could be saved, and why."""

    why: str
    asked: int = 0
    """The number of the `SaveNow` that this answers; 0 for a save that nobody asked for."""
    put_off: bool = False
    """The script first goes on to a step of its choice. nodeclient asks again if it does not come to that."""


def at_own_step(number: int) -> NotSaved:
    """Return the answer of a script that calls `should_stop` to a request with this number."""
    return NotSaved("the script ends at a step of its choice, and saves that", number, put_off=True)


@dataclass(frozen=True, slots=True)
class Interval:
    """The worker saves every so many steps from now on, each of which takes so many seconds; 0 steps: only at a break.

    `skipped` saves found no place that they might overwrite.
    """

    steps: int
    seconds: float
    skipped: int


@dataclass(frozen=True, slots=True)
class Checkpointing:
    """The script asks before each step whether a checkpoint is wanted: at a planned end it writes one of its own."""


@dataclass(frozen=True, slots=True)
class Checkpointed:
    """The script has written a checkpoint of a step."""

    step: int
    asked: int = 0
    """The number of the `HaltAt` that this answers; 0 for a checkpoint that nobody asked for."""


Message = (
    Hello
    | Reserve
    | Reserved
    | RefusedMemory
    | AskRestore
    | ResumeFrom
    | SaveNow
    | HaltAt
    | Halted
    | Saved
    | NotSaved
    | Interval
    | Checkpointing
    | Checkpointed
)

_KINDS: dict[str, type[Any]] = {
    "hello": Hello,
    "reserve": Reserve,
    "reserved": Reserved,
    "refused": RefusedMemory,
    "restore": AskRestore,
    "resume": ResumeFrom,
    "save": SaveNow,
    "halt": HaltAt,
    "halted": Halted,
    "saved": Saved,
    "not_saved": NotSaved,
    "interval": Interval,
    "checkpointing": Checkpointing,
    "checkpointed": Checkpointed,
}

CODEC = PacketCodec[Message](_KINDS, Part, DESCRIPTORS_MAX)

encode = CODEC.encode

decode = CODEC.decode
