"""The end of a link on a host: it becomes the node, or brings up the coordinator.

`nodeclient up` runs it by ssh. Its command line has nothing but its name, since login shells read quotes and variables
in different ways. All else comes over standard input: first an errand, then the start of the node, then signals.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from msgspec import structs

from coordinatord.protocol.errors import OperationalError
from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.protocol.ip_addresses import Endpoint
from coordinatord.runtime import __version__, logs
from nodeclient.access.keyring import VARIABLE, AccessSettings
from nodeclient.host.ports import LOOPBACK
from nodeclient.operate.client import Client
from nodeclient.output.descriptors import READ_BYTES
from nodeclient.remote.link_messages import Arrival, Errand, RunNode, decode_line, encode_line
from nodeclient.shell.embedded_coordinator import FOR_OTHERS, EmbeddedCoordinator

SILENCE_S = 30.0
"""The silence after which `up` counts as gone: it sends empty lines (`bring_up.BEAT_S`), and the end of a cut
connection may be noticed much later."""

LINE_BYTES_MAX = 1024 * 1024
"""The limit of a message, which may have a command line: far more than people write."""


class LinkError(OperationalError):
    """No errand came: the connection broke, or somebody has started this program by hand."""


def receive_errand() -> int | None:
    """Receive an errand: serve as the coordinator's host and return the exit code, or return None to run as a node.

    For a node, it sets this process's arguments and environment. Raises `LinkError`, and errors of the coordinator.
    """
    lines = _lines()
    errand = decode_line(next(lines, b""), Errand)
    if errand is None:
        raise LinkError("nothing came on standard input: only `nodeclient up` can use this program")
    peer, _, address, _ = (os.environ.get("SSH_CONNECTION", "").split() + [""] * 4)[:4]  # see ssh(1)
    arrival = Arrival(__version__, address, peer)
    if errand.workdir is None:  # this is the coordinator's host
        logs.configure("info", "nodeclient")
        return asyncio.run(_serve(lines, arrival))
    try:
        os.chdir(errand.workdir)
    except OSError as error:
        arrival = structs.replace(arrival, problem=f"{error.strerror}")
    _send(arrival)
    start = decode_line(next(lines, b""), RunNode)
    if start is None:  # `up` is gone, for example since another host is not ready
        return ExitCode.UNAVAILABLE
    sys.argv[1:] = start.arguments
    # The PATH that ssh sets may lack this Python. With it in front, `python` in the node's command is this one.
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"
    if start.token:
        os.environ[VARIABLE] = start.token
    threading.Thread(target=_pass_on_signals, args=[lines], name="link", daemon=True).start()
    return None


async def _serve(lines: Iterator[bytes], arrival: Arrival) -> int:
    async with EmbeddedCoordinator("text") as embedded:
        await embedded.start(*FOR_OTHERS, shared=True)  # it serves the nodes on all hosts
        access = AccessSettings(config_home=os.environ.get("XDG_CONFIG_HOME", ""))
        token = await asyncio.to_thread(Client([Endpoint(LOOPBACK, embedded.port)], access).node_token)
        _send(structs.replace(arrival, port=embedded.port, token=token))
        await asyncio.to_thread(next, lines, b"")  # until `up` is gone: only nodes are sent signals
    return ExitCode.OK


def _pass_on_signals(lines: Iterator[bytes]) -> None:
    """Send this process the signals that come, and at the end SIGTERM, on which a node lets its workers save.

    After another signal there is no SIGTERM: a second signal would leave workers no time to save.
    """
    was_told = False
    for name in lines:
        with suppress(KeyError):
            os.kill(os.getpid(), signal.Signals[name.decode(errors="replace")])
            was_told = True
    if not was_told:
        os.kill(os.getpid(), signal.SIGTERM)


def _lines() -> Iterator[bytes]:
    """Take standard input, leave an empty one for workers, and yield its lines until `nodeclient up` is gone."""
    fd, rest = os.dup(0), b""
    with open(os.devnull, "rb") as empty:  # noqa: PTH123 - its descriptor is wanted
        os.dup2(empty.fileno(), 0)
    while len(rest) <= LINE_BYTES_MAX and select.select([fd], [], [], SILENCE_S)[0]:
        try:
            chunk = os.read(fd, READ_BYTES)
        except OSError:
            return
        if not chunk:
            return
        *lines, rest = (rest + chunk).split(b"\n")
        yield from filter(None, lines)


def _send(arrival: Arrival) -> None:
    os.write(1, b"\n" + encode_line(arrival))  # a login shell may have left a line without its end
