"""Connects to a store of a round as the plug-in of torchrun does, where a name server is asked and never answers.

A process of its own serves the store: torch asks for the name of an address once in a process. It prints how long the
connecting took, and what a client then reads.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time

from coordinatord.protocol.messages import JobSpec
from nodeclient.host.ports import PortReservation
from nodeclient.torchrun.membership import Membership
from nodeclient.torchrun.parameters import TorchrunConfig
from nodeclient.torchrun.stores import connect, serve

ADDRESS = sys.argv[1]


def serve_until_line(port: int, ready: int) -> None:
    """Serve a store with one key in it."""
    store = serve(port)
    store.set("key", "value")
    os.write(ready, b"!")
    signal.pause()


def main() -> None:
    """Serve in a child, and connect to it."""
    reservation = PortReservation()
    done, ready = os.pipe()
    child = os.fork()
    if child == 0:
        serve_until_line(reservation.port, ready)
    os.read(done, 1)  # until then the name server refuses, at once
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind((ADDRESS, 53))
        began_at = time.monotonic()
        membership = Membership(TorchrunConfig((), "job", "node", JobSpec(1, 1, 0), None, 60.0, ""))
        client = connect(ADDRESS, reservation.port, membership)
        sys.stdout.write(f"{time.monotonic() - began_at:.1f} {client.get('key')!r}\n")
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


main()
