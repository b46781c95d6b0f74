"""The end of a link on a host: it becomes the node, or brings up the coordinator.

Its command line has nothing but its name, so that every login shell reads it alike; the rest comes over standard input.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from coordinatord.protocol.errors import OperationalError
from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.runtime import __version__, logs
from nodeclient.access.endpoint import Endpoint
from nodeclient.access.keyring import VARIABLE, AccessSettings
from nodeclient.access.secured_attempt import token_for_node
from nodeclient.host.ports import LOOPBACK
from nodeclient.output.descriptors import READ_BYTES
from nodeclient.remote.link_messages import (
    LINE_BYTES_MAX,
    SILENCE_S,
    Arrival,
    Errand,
    RunNode,
    ServeCoordinator,
    Serving,
    decode_line,
    encode_line,
)
from nodeclient.shell.embedded_coordinator import coordinator_for_others


class LinkError(OperationalError):
    """No errand came: the connection broke, or somebody has started this program by hand."""

    def __init__(self) -> None:
        super().__init__("nothing came on standard input: only `nodeclient up` can use this program")


class _Link:
    """What `nodeclient up` writes to this program."""

    def __init__(self) -> None:
        """Take standard input, and leave an empty one for workers."""
        self._fd = os.dup(0)
        self._rest = b""
        """What follows the last line that was taken."""
        with open(os.devnull, "rb") as empty:  # noqa: PTH123 - its descriptor is wanted
            os.dup2(empty.fileno(), 0)

    def next_line(self) -> bytes:
        """Wait for the next line that is not empty, and return it; empty if `nodeclient up` is gone."""
        while True:
            line, end, rest = self._rest.partition(b"\n")
            if end:
                self._rest = rest
                if line:
                    return line
            elif not (chunk := self._read()) or len(self._rest) > LINE_BYTES_MAX:
                return b""
            else:
                self._rest += chunk

    def _read(self) -> bytes:
        if not select.select([self._fd], [], [], SILENCE_S)[0]:
            return b""
        try:
            return os.read(self._fd, READ_BYTES)
        except OSError:
            return b""

    def pass_on_signals(self) -> None:
        """Send this process the signals that come, and at the end SIGTERM, on which a node lets its workers save.

        After another signal there is no SIGTERM: a second one would leave workers no time to save.
        """
        end: signal.Signals | None = signal.SIGTERM
        while name := self.next_line().decode(errors="replace"):
            with suppress(KeyError):
                os.kill(os.getpid(), signal.Signals[name])
                end = None
        if end is not None:
            os.kill(os.getpid(), end)


def receive_task() -> int | None:
    """Receive a task: serve as the coordinator's host and return the exit code, or return None to run as a node.

    In that case it has set this process's arguments and environment. Raises `LinkError`, and errors of the coordinator.
    """
    link = _Link()
    errand: Errand | None = decode_line(link.next_line(), Errand)
    if errand is None:
        raise LinkError
    _send(_arrive(errand))
    match decode_line(link.next_line(), RunNode | ServeCoordinator):
        case RunNode(arguments, token):
            sys.argv[1:] = arguments
            os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"
            if token:
                os.environ[VARIABLE] = token
            threading.Thread(target=link.pass_on_signals, name="link", daemon=True).start()
            return None
        case ServeCoordinator():
            logs.configure("info", "nodeclient")
            return asyncio.run(_serve(link))
        case _:  # `nodeclient up` is gone, since another host is not ready
            return ExitCode.UNAVAILABLE


def _arrive(errand: Errand) -> Arrival:
    peer, _, address, _ = (os.environ.get("SSH_CONNECTION", "").split() + [""] * 4)[:4]  # see ssh(1)
    problem = ""
    try:
        os.chdir(errand.workdir)
    except OSError as error:
        problem = (
            f"its directory {errand.workdir} cannot be entered ({error.strerror}): share it, copy it there, or name"
            " another one by --workdir"
        )
    return Arrival(__version__, address, peer, problem)


async def _serve(link: _Link) -> int:
    async with coordinator_for_others() as port:
        access = AccessSettings(config_home=os.environ.get("XDG_CONFIG_HOME", ""))
        token = await asyncio.to_thread(token_for_node, access, Endpoint(LOOPBACK, port))
        _send(Serving(port, token))
        await asyncio.to_thread(link.next_line)  # its end, for signals come to nodes only
    return ExitCode.OK


def _send(message: Struct) -> None:
    os.write(1, b"\n" + encode_line(message))  # a login shell may have left a line without its end
