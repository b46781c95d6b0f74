"""The messages between a worker and its nodeclient about rounds in place: the process goes into the next round.

Standard library only. The worker connects to the Unix SOCK_SEQPACKET socket that the environment variable
`workerlib.contract.env.ROUNDS` names, and stays connected; `packets` has the form of a packet.

| from | message | answered by |
|---|---|---|
| worker | `Reusable`, the first message | |
| nodeclient | `AskToLeave` | `Left` or `Refusing`; the node ends a worker that does not answer in time |
| worker | `Failed`, if a collective has failed | |
| worker | `Aborting`, and then `Aborted`, if it has communicators of NCCL | |
| worker | `Left`, after `AskToLeave` or `Failed` | |
| worker | `Refusing`, if it ends by itself, or cannot go into the next round after all | |
| nodeclient | `NextRound`, with the descriptors of stdout, of stderr, and of the slots if there are any | |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from workerlib.contract.packets import PacketCodec


@dataclass(frozen=True, slots=True)
class Reusable:
    """The first message of a worker, which identifies it: it can go into another round as the same process."""

    local_rank: int
    """The number of the worker on its node, as in `channel_messages.Hello`."""
    round: int


@dataclass(frozen=True, slots=True)
class AskToLeave:
    """The round is over: leave it, and wait for the next one.

    If state is kept, nodeclient sends this after all workers of the node have answered `channel_messages.SaveNow`, or
    when the time for that is over.
    """

    round: int
    planned: bool = False
    """Whether the stop is planned, so that the script has time to save at a step of its own choice."""


@dataclass(frozen=True, slots=True)
class Failed:
    """A collective has failed in the worker, which leaves the round for that reason."""

    round: int
    error: str
    lines: tuple[str, ...]
    """The traceback of that error."""


@dataclass(frozen=True, slots=True)
class Aborting:
    """The worker aborts its communicators of NCCL, so the node gives it more time to leave the round.

    An abort may take seconds if a peer is gone.
    """

    round: int


@dataclass(frozen=True, slots=True)
class Aborted:
    """The worker has aborted its communicators of NCCL."""

    round: int
    took_s: float


@dataclass(frozen=True, slots=True)
class Left:
    """The worker has left the round: its process groups are gone, and its main thread waits for the next round."""

    round: int


@dataclass(frozen=True, slots=True)
class Refusing:
    """The worker cannot go into another round: the node ends it as usual, unless it ends by itself."""

    round: int
    why: str


@dataclass(frozen=True, slots=True)
class NextRound:
    """The worker has a place in another round."""

    round: int
    environ: dict[str, str | None]
    """The variables that change in its environment; None removes a variable."""


RoundMessage = Reusable | AskToLeave | Failed | Aborting | Aborted | Left | Refusing | NextRound

ROUND_CODEC = PacketCodec[RoundMessage](get_args(RoundMessage))
