"""The messages between `nodeclient up` and `far_end`, the program that it starts on a host: JSON, one object a line.

`up` writes an `Errand` to the program's standard input, a `RunNode` once all hosts are ready, and then the name of each
signal for the node. Empty lines in between show that `up` lives. The program writes one `Arrival` to standard output,
and then the output of the node. One more program brings up the coordinator: it is sent only the errand and the empty
lines, and runs until its standard input ends.

A token is in these lines only, so no list of processes and no log of sshd has it.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

from msgspec import Meta, Struct, json

from coordinatord.protocol.fields import PORT_MAX
from coordinatord.protocol.schema import ERRORS, printable

Token = Annotated[str, Meta(max_length=1024)]


class Message(Struct, frozen=True, tag=True):
    """A message between the two programs."""

    def __repr__(self) -> str:
        """Show no token."""
        return type(self).__name__


class Errand(Message, frozen=True, tag=True):
    """The part that a host is asked to do: to run a node, or to bring up the coordinator."""

    workdir: str | None
    """The directory of its node; None to bring up the coordinator."""


class Arrival(Message, frozen=True, tag=True):
    """A host's program is there: its node can start, or the coordinator serves."""

    release: Annotated[str, printable(64)]
    """The release of nodeclient, which must be that of `up`."""
    address: Annotated[str, printable(64)] = ""
    """The address at which this host's sshd was reached, and at which nodes reach a coordinator on this host. Empty if
    sshd does not say it."""
    peer: Annotated[str, printable(64)] = ""
    """The address of `up`'s host, as sshd sees it. The node on this host reaches a coordinator on `up`'s host by it."""
    problem: Annotated[str, printable(256)] = ""
    """Why the directory cannot be entered; empty if it can be."""
    port: Annotated[int, Meta(ge=0, le=PORT_MAX)] = 0
    """The port of the coordinator."""
    token: Token = ""
    """The coordinator's token for nodes."""


class RunNode(Message, frozen=True, tag=True):
    """The start of a node."""

    arguments: tuple[str, ...]
    """The arguments of nodeclient."""
    token: Token
    """The coordinator's token; empty where it wants none."""


Kind = TypeVar("Kind", bound=Message)


def encode_line(message: Message) -> bytes:
    """Encode one message as a line."""
    return json.encode(message) + b"\n"


def decode_line(line: bytes, kind: type[Kind]) -> Kind | None:
    """Decode a line; None if it is no message of this kind, such as output of a login shell's startup files."""
    try:
        return json.decode(line, type=kind)
    except ERRORS:
        return None
