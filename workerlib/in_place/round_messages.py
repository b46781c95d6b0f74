"""What a worker and its nodeclient say to each other about rounds in place; standard library only, for both sides.

They hold a Unix SOCK_SEQPACKET connection as long as the worker lives, of packets as `packets` has them. A worker finds
the socket by the environment variable `workerlib.env.ROUNDS`.

| from | message | answered by |
|---|---|---|
| worker | `CanStay`, once | |
| nodeclient | `AskToLeave` | `Left` or `Refusing`; or not in time, and then the worker is ended |
| worker | `Failed`, if a collective has failed | |
| worker | `Left`, when it is asked to leave, or has failed | |
| worker | `Refusing`, if it ends by itself, or finds out when it has left that it cannot stay | |
| nodeclient | `NextRound`, with the descriptors of stdout and stderr | |
"""

from __future__ import annotations

from dataclasses import dataclass

from workerlib.packets import PacketCodec

STREAMS = 2
"""The descriptors that come with `NextRound`."""


@dataclass(frozen=True, slots=True)
class CanStay:
    """This worker can go into another round as the same process."""

    local_rank: int
    round: int
    pid: int


@dataclass(frozen=True, slots=True)
class AskToLeave:
    """The round is over: get out of it, and wait for the next one."""

    round: int
    planned: bool = False
    """Nothing has gone wrong: a script that saves at a step of its own choice has the time for it."""


@dataclass(frozen=True, slots=True)
class Failed:
    """A collective has failed in the worker, which leaves the round for that."""

    round: int
    error: str
    lines: tuple[str, ...]
    """The traceback of that error."""


@dataclass(frozen=True, slots=True)
class Left:
    """The worker is out of the round: its process groups are gone, and its main thread waits for the next one."""

    round: int


@dataclass(frozen=True, slots=True)
class Refusing:
    """The worker cannot go into another round, and why: it is to be ended as workers usually are, or ends by itself."""

    round: int
    why: str


@dataclass(frozen=True, slots=True)
class NextRound:
    """The worker has a place in another round."""

    round: int
    environ: dict[str, str | None]
    """The variables that change in its environment; None for one that is removed."""


RoundMessage = CanStay | AskToLeave | Failed | Left | Refusing | NextRound

ROUND_CODEC = PacketCodec[RoundMessage](
    {
        "staying": CanStay,
        "leave": AskToLeave,
        "failed": Failed,
        "left": Left,
        "refusing": Refusing,
        "next": NextRound,
    }
)
