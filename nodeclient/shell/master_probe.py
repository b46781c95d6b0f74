"""Finds out whether the master of a round, the node of rank 0, can be reached before any worker is started.

Without this, workers would wait for an address that leads nowhere until a timeout of minutes. Each node listens at a
port for probes, and answers with its node id. So a node notices if it has connected to another program, or to an
address that every host has, such as a bridge's. The agent decides what follows.
"""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import suppress

from coordinatord.protocol.messages import Assignment
from nodeclient.core.effects import Probe
from nodeclient.core.events import Reached, Unreached
from nodeclient.host.ports import Acceptor, listening_socket

PAUSE_S = 1.0
"""The pause between attempts, while the master's node may still be coming up."""

BACKLOG = 4_096
"""The backlog: all nodes of a large round connect within a second. Linux's own limit, somaxconn, is the same."""

GREETING_BYTES_MAX = 1_024
"""More than a node id of 128 characters takes; a longer answer is no node's."""


def _greeting(node: str) -> bytes:
    return f"nodeclient {node}\n".encode()


class ProbeListener:
    """Answers each connection with this node's id, until `close`. Create it in the running loop.

    It reads nothing and closes each connection at once, so strangers cost next to nothing. Raises `OSError` without a
    free port.
    """

    def __init__(self, node: str, address: str = "") -> None:
        """Answer at an `address` of this host; at all of them if it is empty."""
        self._answer = _greeting(node)
        listener = listening_socket(address, BACKLOG)
        self.port: int = listener.getsockname()[1]
        self._acceptor = Acceptor(listener, self._greet)

    def close(self) -> None:
        """Stop answering."""
        self._acceptor.close()

    def _greet(self, connection: socket.socket, _: object) -> None:
        with connection, suppress(OSError):  # the peer has gone
            connection.send(self._answer)


async def probe_master(probe: Probe) -> Reached | Unreached:
    """Find out whether the master of a round can be reached."""
    obstacle = await find_obstacle(probe.assignment, probe.patience_s)
    if obstacle is None:
        return Reached(probe.run, probe.round)
    return Unreached(probe.run, probe.round, obstacle)


async def find_obstacle(assignment: Assignment, patience_s: float) -> str | None:
    """Return what is wrong, for the user; None if the master's node answers at the address of the round."""
    problem = f"{assignment.master_address}, offered by node {assignment.master_node} as its address, cannot be reached"
    remedy = f"see --advertise-addr of node {assignment.master_node}"
    why = ""
    try:
        async with asyncio.timeout(patience_s):
            while True:
                try:
                    answer = await _ask(assignment.master_address, assignment.master_probe_port)
                except (OSError, UnicodeError) as error:
                    why = _in_words(error)
                else:
                    if answer == _greeting(assignment.master_node):
                        return None
                    if answer:
                        return f"{problem} (another program answers there: {_shown(answer)}): {remedy}"
                    why = "a program accepts there and sends nothing"  # perhaps a proxy, whose other side is not up yet
                await asyncio.sleep(PAUSE_S)
    except TimeoutError:
        return f"{problem} ({why or 'no answer'}, tried for {patience_s:g} s): {remedy}"


async def _ask(address: str, port: int) -> bytes:
    reader, writer = await asyncio.open_connection(address, port, limit=GREETING_BYTES_MAX)
    try:
        return await reader.readline()
    except ValueError:  # GREETING_BYTES_MAX without an end of line
        return b"..."
    finally:
        writer.close()


def _in_words(error: OSError | UnicodeError) -> str:
    if isinstance(error, UnicodeError):
        return "it is no host name"
    if isinstance(error, socket.gaierror) or not error.errno:  # gaierror has numbers of its own
        return str(error.strerror or error).lower()
    return os.strerror(error.errno).lower()


def _shown(answer: bytes) -> str:
    return repr(answer.decode(errors="replace").strip().removeprefix("nodeclient ")[:40])
