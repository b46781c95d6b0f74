"""Finds out whether the master of a round can be reached at its address, before any worker counts on it.

Each node answers at a port of its own with its node id, and nothing else: so a node that gets somewhere else (a bridge
that every host has, a port that something else listens on) notices that too. What follows from it is the agent's
business.
"""

from __future__ import annotations

import asyncio
import os
import socket

from coordinatord.wire.messages import Assignment
from nodeclient.core.effects import Probe
from nodeclient.core.events import Reached, Unreached

PATIENCE_S = 10.0
"""For all attempts together: a packet that is lost is sent again after 1 s, and once more after 3 s."""

PAUSE_S = 1.0
"""Between attempts, while whatever is on the way may still come up."""

BACKLOG = 4_096
"""Nodes of a large round come within a second; Linux's own limit, somaxconn, is that too."""

ACCEPTS_MAX = 256
"""Answered in one go, so that heartbeats get their turn."""

GREETING_BYTES_MAX = 1_024
"""More than a node id of 128 characters can take; what is longer is no node's answer."""


def _greeting(node: str) -> bytes:
    return f"nodeclient {node}\n".encode()


class ProbeListener:
    """Answers whoever connects with this node's id, until `close`. Must be made in the running loop.

    It reads nothing and keeps no connection, so strangers cost it nothing. Raises `OSError` if there is no port.
    """

    def __init__(self, node: str) -> None:
        self._answer = _greeting(node)
        self._loop = asyncio.get_running_loop()
        dual = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if dual else socket.AF_INET
        self._socket = socket.create_server(("", 0), family=family, backlog=BACKLOG, dualstack_ipv6=dual)
        self._socket.setblocking(False)
        self.port: int = self._socket.getsockname()[1]
        self._loop.add_reader(self._socket, self._accept)

    def close(self) -> None:
        """Answer nobody any more."""
        self._loop.remove_reader(self._socket)
        self._socket.close()

    def _accept(self) -> None:
        for _ in range(ACCEPTS_MAX):
            try:
                connection, _ = self._socket.accept()
            except OSError:  # nobody is left, who came has gone, or there is no descriptor for him: he will try again
                return
            with connection:
                connection.setblocking(False)
                try:
                    connection.send(self._answer)
                except OSError:  # he has gone
                    continue


async def look_for_master(probe: Probe) -> Reached | Unreached:
    """Find out whether the master of a round can be reached."""
    obstacle = await find_obstacle(probe.assignment)
    if obstacle is None:
        return Reached(probe.run, probe.round)
    return Unreached(probe.run, probe.round, obstacle)


async def find_obstacle(part: Assignment, patience_s: float = PATIENCE_S) -> str | None:
    """Return None if the master's node answers at the address of the round, else what is in the way, in words."""
    what = f"it cannot reach {part.master_address}, offered by node {part.master_node} as its address"
    remedy = f"see --advertise-addr of node {part.master_node}"
    why = ""
    try:
        async with asyncio.timeout(patience_s):
            while True:
                try:
                    answer = await _ask(part.master_address, part.master_probe_port)
                except OSError as error:
                    why = (os.strerror(error.errno) if error.errno else str(error)).lower()
                else:
                    if answer == _greeting(part.master_node):
                        return None
                    return f"{what} (somebody else answers there: {_shown(answer)}): {remedy}"
                await asyncio.sleep(PAUSE_S)
    except TimeoutError:
        return f"{what} ({why or 'no answer'}, tried for {patience_s:g} s): {remedy}"


async def _ask(address: str, port: int) -> bytes:
    reader, writer = await asyncio.open_connection(address, port, limit=GREETING_BYTES_MAX)
    try:
        return await reader.readline()
    except ValueError:  # that many bytes without an end of line
        return b"..."
    finally:
        writer.close()


def _shown(answer: bytes) -> str:
    text = answer.decode(errors="replace").strip().removeprefix("nodeclient ")
    return repr(text[:40]) if text else "with nothing"
