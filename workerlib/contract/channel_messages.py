"""The messages between a worker and its nodeclient about kept state; standard library only.

Kept state is training state that outlives the worker, in memory that nodeclient owns: an *arena*, see `arena`. At the
beginning of a round, these messages hand over the arenas with the state to resume from, and the worker's own arena.
From then on a worker saves steps without being asked. If the round breaks, nodeclient sends `SaveNow`. If it ends on
purpose, nodeclient first sends `HaltAt`, so that all workers save the same step; `planned_end` has the exchange.

The worker connects to the Unix SOCK_SEQPACKET socket that the environment variable `workerlib.contract.env.KEEP` names,
and begins with `Hello`. `packets` has the form of a packet; arenas come with it as file descriptors.

| from | message | answered by |
|---|---|---|
| worker | `Hello` | |
| worker | `Reserve` | `Reserved` with a descriptor, or `RefusedMemory`, perhaps with one for the small state |
| worker | `AskRestore` | `ResumeFrom`, with a descriptor for each of its parts, once all of them are on this host |
| worker | `FirstState` | `Comparison`, once it is known |
| worker | `Unkept` | |
| worker | `Pageable` | |
| worker | `Unstepped` | |
| nodeclient | `Reserved` with a descriptor, of memory that is `lent` | |
| nodeclient | `SaveNow` | `Saved` or `NotSaved` |
| nodeclient | `HaltAt` | `Halted` before the step is named, then `Saved` or `NotSaved`, or `Checkpointed` |
| worker | `Saved`, after each save at an interval too | |
| worker | `Interval` | |
| worker | `Checkpointing` | |
| worker | `Checkpointed`, after each checkpoint that the script has written | |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from workerlib.contract.packets import PacketCodec

DESCRIPTORS_MAX = 64
"""The descriptors that go with one packet: more parts take more packets. The kernel takes 253 at most (SCM_MAX_FD)."""

StepOrNone = int
"""A step; -1 if there is none."""


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message of a worker, which identifies it."""

    local_rank: int
    """The number of the worker on its node, also where LOCAL_RANK is 0 for all (`WorkerEnvironment.worker`)."""
    round: int


@dataclass(frozen=True, slots=True)
class Reserve:
    """A worker asks for an arena."""

    generation: int
    """The least bytes of a place for the big state."""
    small: int
    """The least bytes of a place for the small state."""
    shard: int
    """The number of the shard of the big state that it keeps; see `arena.Commit`."""
    shards: int


@dataclass(frozen=True, slots=True)
class Reserved:
    """The arena comes with this packet."""

    disk_every_s: float = 0.0
    """How often a step is written to a disk, 0 for never. If it is, state that several ranks share is saved at
    intervals, too: else it is saved only when a round ends."""
    lent: bool = False
    """The arena is that of an ended worker with the same shard: save the big state there, and no small one."""


@dataclass(frozen=True, slots=True)
class RefusedMemory:
    """There is no memory for the arena, and training goes on without it.

    If there is memory for the small state only, an arena for that comes with this packet.
    """

    why: str


@dataclass(frozen=True, slots=True)
class AskRestore:
    """A worker asks for the state that it resumes from."""


@dataclass(frozen=True, slots=True)
class Part:
    """The part of the step to resume from that is in one arena: of which rank it is, and which states it has."""

    rank: int
    big: bool
    small: bool
    """Whether it has the small state at the end of the step."""
    pending: bool
    """Whether it has a small state of the step that was saved before its end; see `arena.PENDING`."""


@dataclass(frozen=True, slots=True)
class ResumeFrom:
    """The state that the round resumes from; with step -1 there is none."""

    round: int
    """The round that did the step."""
    step: StepOrNone
    world_size: int
    """The number of ranks of that round."""
    parts: tuple[Part, ...]
    """The parts whose arenas come with this packet."""
    more: bool = False
    """Whether another packet follows, with more parts."""


NOTHING = ResumeFrom(0, -1, 0, ())
"""The answer for a round whose workers begin without state."""


@dataclass(frozen=True, slots=True)
class FirstState:
    """The digest of the state after the first step of a round that began from nothing, see `tensor_digest`.

    The coordinator compares those of all ranks: only where they are the same may one rank's state stand for another's.
    """

    digest: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """Whether all ranks had the same state after the first step."""

    alike: bool


@dataclass(frozen=True, slots=True)
class Unkept:
    """Training depends on something that is not kept, and is lost with the worker."""

    what: str
    """A noun phrase to use in a sentence: `the state of SGD, which ...`."""


@dataclass(frozen=True, slots=True)
class Pageable:
    """Saves from a GPU go into memory that is not page-locked, which is several times slower."""

    why: str
    """A clause to use in a sentence: `CUDA has refused to lock 134.2 MB: out of memory`."""


@dataclass(frozen=True, slots=True)
class Unstepped:
    """The script trains on this rank and seems never to call `ctx.step`. While training goes on, it may still do so."""

    rank: int


@dataclass(frozen=True, slots=True)
class SaveNow:
    """The round is over: save the big state now, if a step is whole."""

    number: int
    """The number of this request, which the answer repeats."""
    planned: bool = False
    """Whether the round ends on purpose, or broke when such an end was planned. A script that calls `should_stop` then
    goes on to a step of its own choice: its worker answers with `at_own_step`, and saves that step later."""
    late: bool = False
    """Whether such a script has not reached its step in time. It saves now, and training goes on to that step."""


BEFORE_NAMED = -1
"""`HaltAt.step` before the coordinator has named the step that all workers of the round save."""


@dataclass(frozen=True, slots=True)
class HaltAt:
    """The round ends on purpose: stand still at the end of this step, and save it.

    It comes before `SaveNow`, which follows only if the workers do not all save the named step in time.
    With `BEFORE_NAMED`, stand still at the end of the current step until another `HaltAt` names one.
    """

    number: int
    """The number of this request, which the answer repeats."""
    step: StepOrNone


@dataclass(frozen=True, slots=True)
class Halted:
    """The worker goes no further than this step until another `HaltAt` names one."""

    step: int
    asked: int
    """The number of the `HaltAt` that this answers."""


@dataclass(frozen=True, slots=True)
class Saved:
    """The big state of a step is whole in the arena."""

    step: int
    seconds: float
    """How long the save took; 0 if the step was saved before."""
    length: int
    """The bytes that were written; 0 if the step was saved before."""
    asked: int = 0
    """The number of the request that this answers; 0 for a save that nobody asked for."""


@dataclass(frozen=True, slots=True)
class NotSaved:
    """Nothing could be saved."""

    why: str
    """The reason, for people; empty if there is nothing to save."""
    asked: int = 0
    put_off: bool = False
    """The script saves later, at a step of its choice. If it does not reach that in time, nodeclient asks again."""


def at_own_step(number: int) -> NotSaved:
    """Return the answer to a request with this number from a script that calls `should_stop`."""
    return NotSaved("the script ends at a step of its choice, and saves that", number, put_off=True)


@dataclass(frozen=True, slots=True)
class Interval:
    """How often the worker saves from now on without being asked."""

    steps: int
    """The steps between two saves; 0 if it saves only when asked."""
    seconds: float
    """How long the last save took; 0 if none was timed."""
    skipped: int
    """How many saves of this round were left out so far, since no place was free."""


@dataclass(frozen=True, slots=True)
class Checkpointing:
    """The script calls `should_checkpoint`: at a planned end it writes a checkpoint of its own."""


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
    | FirstState
    | Comparison
    | Unkept
    | Pageable
    | Unstepped
    | SaveNow
    | HaltAt
    | Halted
    | Saved
    | NotSaved
    | Interval
    | Checkpointing
    | Checkpointed
)


def may_be_left_out(message: Message) -> bool:
    """Whether nodeclient can do without this message: it has not asked for it, and a later one will replace it."""
    return isinstance(message, Interval) or (isinstance(message, Saved | NotSaved) and not message.asked)


CODEC = PacketCodec[Message](get_args(Message), Part, DESCRIPTORS_MAX)
