"""A bearer of a token who is refused without end neither fills the log nor takes all descriptors."""

import errno
import os
import socket
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

import pytest

from coordinatord.protocol.codec import encode
from coordinatord.protocol.messages import Desired
from coordinatord.server.sessions import node_sessions, refusal_log, tls_listener
from coordinatord.server.sessions.connection_limits import ConnectionLimits
from tests.coordinatord.server.conftest import Start
from tests.support.raw_session import connect, join, until
from tests.support.raw_websocket import WHOLE, message, request, wire
from tests.support.secured import TRUSTING, secured, serving

FEW = ConnectionLimits(pending=8, joining=8, requests=8, nodes=3)

MANY = 12

LINES = 3


def malformed(number: int) -> bytes:
    """Return a message of a type that nobody knows, another one for each number."""
    return message(b"\x81\xa4type\xa4no%02d" % number)


def lines_of(event: str, caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.__dict__.get("event") == event]


@pytest.mark.parametrize(
    ("event", "sent"),
    [
        pytest.param("peer_refused", malformed, id="before the join"),
        pytest.param("node_refused", lambda n: message(encode(join(f"n{n}", nodes=2 + n))), id="by the machine"),
        pytest.param(
            "message_malformed", lambda n: message(encode(join(f"n{n}", job="theirs"))) + malformed(n), id="after it"
        ),
    ],
)
async def test_refusals_of_one_bearer_are_so_many_lines_and_others_notice_nothing(
    start: Start, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, event: str, sent: Any
) -> None:
    monkeypatch.setattr(refusal_log, "LINES_MAX", LINES)
    monkeypatch.setattr(node_sessions, "CLOSE_WITHIN_S", 0.01)
    async with start() as server, connect(server.url, join("honest")) as node:
        await node.receive(Desired)
        for number in range(MANY):
            async with wire(server.url, request() + sent(number)) as peer:
                await peer.upgraded()
                await peer.end()
        lines = lines_of(event, caplog)
        assert len(lines) == LINES, lines
        assert [line.endswith("; more like this is not logged for now") for line in lines] == [False, False, True]
        await node.beat()
        await node.receive(Desired)


async def test_who_was_refused_and_does_not_close_takes_the_place_of_nobody(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_sessions, "CLOSE_WITHIN_S", 3_600.0)
    async with start(limits=FEW) as server, AsyncExitStack() as stack:
        refused = [await stack.enter_async_context(wire(server.url, request() + malformed(n))) for n in range(MANY)]
        for peer in refused[: MANY - FEW.closing]:
            await peer.upgraded()
            await peer.end()
        assert server.sessions.size <= FEW.closing
        async with connect(server.url, join("honest")) as node:
            await node.receive(Desired)


Listener = TypeVar("Listener", bound=socket.socket)


def listening(made: Listener) -> Listener:
    made.bind(("127.0.0.1", 0))
    made.listen()
    return made


class Exhausted(socket.socket):
    """A listening socket of a process that has no descriptor left."""

    tried = 0

    def accept(self) -> tuple[socket.socket, Any]:
        """Fail as the system does."""
        self.tried += 1
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


async def test_that_no_descriptor_is_left_is_said_once_a_minute(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_listener, "PAUSE_S", 0.001)
    listener = listening(Exhausted())
    async with serving(secured(tmp_path), listener=listener) as server:
        with socket.create_connection(("127.0.0.1", server.port)):
            await until(lambda: listener.tried >= 5)
    assert len(lines_of("accept_paused", caplog)) == 1


class Broken(socket.socket):
    """A listening socket whose first connections break before they are accepted."""

    errors = iter((errno.EPROTO, errno.ENETDOWN, errno.EPERM))

    def accept(self) -> tuple[socket.socket, Any]:
        """Fail as the system does, and then accept."""
        for number in self.errors:
            raise OSError(number, os.strerror(number))
        return super().accept()


async def test_a_connection_that_breaks_before_it_is_accepted_is_no_bug(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    listener = listening(Broken())
    async with serving(secured(tmp_path), listener=listener) as server, wire(server.url, WHOLE, tls=TRUSTING) as peer:
        assert b" 200 OK" in await peer.answer()
    assert not list(listener.errors), "all of them came"
    assert not [record for record in caplog.records if record.exc_info], "an error that nobody takes ends the program"
