"""The messages between `nodeclient up` and its program on a host: JSON, one object a line.

`up` writes to the program's standard input: an `Errand`, then one of the tasks, then names of signals. Empty lines in
between show that it lives. The program answers on standard output with an `Arrival`, and `Serving` where it brings up
the coordinator. After that its output is that of the node. A token is in these lines only, so no list of processes and
no log of sshd has it.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct, json

from coordinatord.protocol.fields import Port
from coordinatord.protocol.schema import ERRORS, printable

BEAT_S = 5.0
"""How often `up` shows that it lives."""

SILENCE_S = 30.0
"""The silence after which a host takes `up` for gone, since the end of a cut connection may be noticed much later."""

LINE_BYTES_MAX = 1024 * 1024
"""The limit of a message: the kernel allows a command line of 2 MiB, and people write a hundredth of that."""

Path = Annotated[str, Meta(min_length=1, max_length=4096)]
Words = Annotated[tuple[Annotated[str, Meta(max_length=128 * 1024)], ...], Meta(max_length=10_000)]
"""Arguments of a program. One argument has at most 128 KiB (execve(2))."""


class Errand(Struct, frozen=True, tag=True):
    """The first line to a host: what the host needs to have."""

    workdir: Path


class Arrival(Struct, frozen=True, tag=True):
    """The answer of a host's program: it is there, and whether a node can start."""

    release: Annotated[str, printable(64)]
    """The release of nodeclient."""
    address: Annotated[str, printable(64)] = ""
    """The address at which sshd was reached; empty without one."""
    peer: Annotated[str, printable(64)] = ""
    """The address from which it was reached."""
    problem: Annotated[str, printable(8192)] = ""
    """What the host lacks; empty if nothing."""


class RunNode(Struct, frozen=True, tag=True):
    """The task of a training host."""

    arguments: Words
    """Those of nodeclient."""
    token: Annotated[str, Meta(max_length=1024)]
    """The coordinator's token; empty where it wants none."""

    def __repr__(self) -> str:
        """Show no secret."""
        return f"{type(self).__name__}(...)"


class ServeCoordinator(Struct, frozen=True, tag=True):
    """The task of the coordinator's host."""


class Serving(Struct, frozen=True, tag=True):
    """The answer to `ServeCoordinator`."""

    port: Port
    token: Annotated[str, Meta(min_length=1, max_length=1024)]

    def __repr__(self) -> str:
        """Show no secret."""
        return f"{type(self).__name__}(...)"


def encode_line(message: Struct) -> bytes:
    """Encode one message as a line."""
    return json.encode(message) + b"\n"


def decode_line(line: bytes, kind: Any) -> Any:
    """Decode a line; None if it is no message of this kind, such as output of a login shell's own files."""
    try:
        return json.decode(line, type=kind)
    except ERRORS:
        return None
