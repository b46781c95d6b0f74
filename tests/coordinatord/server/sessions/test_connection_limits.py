"""There are so many connections of each kind and no more; of one address too; and others notice nothing."""

import errno
import os
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
from msgspec import structs

from coordinatord.core.rounds.policy import Policy
from coordinatord.protocol.access_token import Role
from coordinatord.protocol.codec import encode
from coordinatord.protocol.messages import Desired, Goal, RefusalCode, Refused
from coordinatord.runtime.websocket.frames import BINARY, CONTINUATION, PING, framed
from coordinatord.server import app
from coordinatord.server.sessions import connections, node_sessions, tls_listener
from coordinatord.server.sessions.connection_limits import PENDING_MAX, ConnectionLimits, PendingConnections
from coordinatord.server.sessions.node_sessions import FRAMES_AT_ONCE
from tests.coordinatord.server.conftest import Start
from tests.support.programs import TIMEOUT_S
from tests.support.raw_session import IDLE, connect, get, join, until
from tests.support.raw_websocket import HALF, MASK, WHOLE, Wire, message, request, wire
from tests.support.secured import TRUSTING, goal, refusal, secured, serving, session

FEW = ConnectionLimits(pending=4, joining=4, requests=8, nodes=3)

FEW_OF_ADDRESS = 8
"""How many connections of one address may have shown nothing where there are no nodes: three quarters of eleven."""

FEW_JOINING = 5
"""How many sessions of one address may be without a `Join` then: three quarters of seven."""


@asynccontextmanager
async def wires(url: str, number: int, data: bytes = b"") -> AsyncIterator[list[Wire]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(wire(url, data)) for _ in range(number)]


async def test_of_too_many_who_ask_nothing_those_go_whose_address_has_the_most(start: Start) -> None:
    async with (
        start(limits=FEW) as server,
        wires(server.url, FEW_OF_ADDRESS + 2, HALF) as flood,
        connect(server.url, join("a")) as node,
    ):
        await node.receive_goal(Goal.RUN)
        for gone in flood[:3]:
            await gone.end()
        flood[-1].send(b"\r\n")
        assert b"200 OK" in await flood[-1].answer()


async def test_nodes_that_come_at_once_do_not_take_each_others_places(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "SESSIONS_AT_ONCE", 2)
    many = 5 * FEW.pending
    async with start(limits=structs.replace(FEW, nodes=many)) as server:
        waiting = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(many)]
        for number, client in enumerate(waiting):  # nothing of this is seen before the loop goes on
            client.sendall(request() + message(encode(join(f"node-{number}", nodes=many))))
        await until(lambda: server.driver.machine.sessions == many)
        for client in waiting:
            client.close()


async def test_a_session_without_a_join_makes_room_for_a_newer_one(start: Start) -> None:
    async with start(limits=FEW) as server, wires(server.url, FEW_JOINING + 1, request()) as waiting:
        said = await refusal(waiting[0])
        assert (said.code, said.retry) == (RefusalCode.MALFORMED, True)
        waiting[-1].send(message(encode(join("a"))))
        assert await goal(waiting[-1]) is Goal.RUN


async def test_who_was_refused_and_does_not_close_takes_the_place_of_nobody(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_sessions, "CLOSE_WITHIN_S", 3_600.0)
    async with start(limits=FEW) as server, wires(server.url, 12, request() + message(b"nonsense")) as refused:
        for peer in refused[: -FEW.closing]:
            await peer.upgraded()
            await peer.end()
        assert server.sessions.size <= FEW.closing
        async with connect(server.url, join("honest")) as node:
            await node.receive(Desired)


async def test_an_address_has_so_many_connections_over_http_and_sessions_are_none_of_them(start: Start) -> None:
    async with start(limits=FEW) as server, connect(server.url, join("a")) as node:
        async with wires(server.url, FEW.requests_per_address, WHOLE) as kept, wire(server.url, WHOLE) as other:
            for client in kept:
                assert b"200 OK" in await client.answer()
            said = await other.answer()
            assert b" 503 " in said
            assert b"connections over HTTP from 127.0.0.1 already, the limit: close some" in said
            await other.end()
            kept[0].send(WHOLE)
            assert b"200 OK" in await kept[0].answer()
            await node.beat()
            await node.receive(Desired)
        await until(lambda: len(server.driver.machine.jobs) == 1)
        assert (await get(f"{server.url}/healthz"))[0] == 200


async def test_all_together_have_so_many_connections_over_http(start: Start) -> None:
    only = structs.replace(FEW, requests=1)
    async with start(limits=only) as server, wire(server.url, WHOLE) as kept, wire(server.url, WHOLE) as other:
        assert b"200 OK" in await kept.answer()
        assert b"there are 1 connections over HTTP already, the limit" in await other.answer()
        await other.end()


async def test_a_node_beyond_the_descriptors_is_refused_for_now(start: Start) -> None:
    async with start(limits=structs.replace(FEW, nodes=1)) as server, connect(server.url, join("a")) as node:
        await node.receive_goal(Goal.RUN)
        async with connect(server.url, join("b")) as other:
            said = await other.receive(Refused)
            assert (said.code, said.retry) == (RefusalCode.LIMIT, True)
            assert "may have 1 nodes with its limit of open files: raise LimitNOFILE" in said.message
        await node.beat()
        await node.receive(Desired)


HEARTBEAT = message(encode(structs.replace(IDLE, beat=True)))
PIECE = bytes((CONTINUATION,)) + framed(CONTINUATION, b"", MASK)[1:]


@pytest.mark.parametrize(
    ("first", "flood"),
    [
        pytest.param(b"", HEARTBEAT, id="messages"),
        pytest.param(b"", framed(PING, b"", MASK), id="pings"),
        pytest.param(bytes((BINARY,)) + PIECE[1:], PIECE, id="pieces"),
    ],
)
async def test_a_node_that_sends_without_end_is_refused_and_others_are_answered(
    start: Start, first: bytes, flood: bytes
) -> None:
    async with start() as server, connect(server.url, join("a")) as node:
        await node.receive_goal(Goal.RUN)
        opening = request() + message(encode(join("b", job="other", nodes=2)))
        async with wire(server.url, opening + first + flood * (2 * FRAMES_AT_ONCE)) as peer:
            said = await refusal(peer)
            assert (said.code, said.retry) == (RefusalCode.LIMIT, True)
            assert "more than 25 messages a second" in said.message
            await node.beat()
            await node.receive(Desired)
        await until(lambda: server.driver.machine.sessions == 1)


async def test_a_connection_over_http_that_rests_for_too_long_is_closed(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "IDLE_S", 0.05)
    async with start() as server, wire(server.url, WHOLE) as peer:
        assert b"200 OK" in await peer.answer()
        await peer.end()


# TLS


async def test_of_too_many_half_agreements_on_tls_the_oldest_goes_and_a_node_comes_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (connections, tls_listener):
        monkeypatch.setattr(module, "REQUEST_WITHIN_S", 2 * TIMEOUT_S)  # none ends for its age
    ours = secured(tmp_path)
    async with serving(ours, limits=FEW) as server, wires(server.url, FEW_OF_ADDRESS + 4, b"\x16\x03\x01") as half:
        for gone in half[:4]:
            await gone.end()
        async with wire(server.url, session(ours.token(), join("a")), tls=TRUSTING) as node:
            assert await goal(node) is Goal.RUN


async def test_tls_that_is_not_agreed_on_in_time_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls_listener, "REQUEST_WITHIN_S", 0.05)
    async with serving(secured(tmp_path)) as server, wire(server.url, b"\x16") as half, wire(server.url) as silent:
        for gone in (half, silent):
            await gone.end()


async def test_who_speaks_no_tls_is_sent_away_at_once(tmp_path: Path) -> None:
    async with serving(secured(tmp_path)) as server, wire(server.url, WHOLE) as clear:
        assert b" 400 " in await clear.answer()
        await clear.end()


async def test_who_shows_no_token_keeps_no_connection(tmp_path: Path) -> None:
    asked = WHOLE.replace(b"/healthz", b"/v1/jobs")
    async with serving(secured(tmp_path)) as server, wire(server.url, asked, tls=TRUSTING) as peer:
        assert b" 401 " in await peer.answer()
        await peer.end()


async def test_strangers_make_room_for_others_over_http_and_for_whoever_has_a_token(tmp_path: Path) -> None:
    ours = secured(tmp_path)
    asked = HALF + f"Authorization: Bearer {ours.token(Role.ADMIN).text}\r\n\r\n".encode()
    async with serving(ours, limits=FEW) as server, AsyncExitStack() as stack:

        async def kept(number: int, data: bytes) -> Wire:
            where = wire(server.url, data, tls=TRUSTING, source=f"127.0.0.{number}")
            peer = await stack.enter_async_context(where)
            assert b" 200 OK" in await peer.answer()
            return peer

        strangers = [await kept(2 + number // 2, WHOLE) for number in range(FEW.requests)]
        admin = await kept(10, asked)
        await strangers[0].end()
        await kept(11, WHOLE)
        await strangers[2].end()
        for number in range(FEW.requests):
            await kept(20 + number, WHOLE)
        strangers[-1].send(WHOLE)
        await strangers[-1].end()
        admin.send(asked)
        assert b" 200 OK" in await admin.answer()


async def test_who_has_a_token_makes_room_for_nobody(tmp_path: Path) -> None:
    ours = secured(tmp_path)
    asked = HALF + f"Authorization: Bearer {ours.token(Role.ADMIN).text}\r\n\r\n".encode()
    async with serving(ours, limits=FEW) as server, AsyncExitStack() as stack:
        for _ in range(FEW.requests_per_address):
            kept = await stack.enter_async_context(wire(server.url, asked, tls=TRUSTING))
            assert b" 200 OK" in await kept.answer()
        for data in (WHOLE, asked):
            other = await stack.enter_async_context(wire(server.url, data, tls=TRUSTING))
            assert b"from 127.0.0.1 already, the limit: close some" in await other.answer()
            await other.end()


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
    assert [record.__dict__["event"] for record in caplog.records] == ["accept_paused"]


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


# Numbers


@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_ten_thousand_nodes_of_one_address_come_in_at_once_and_leave_room_for_others() -> None:
    given_up: list[int] = []
    most = ConnectionLimits.of(1 << 19).pending
    unproven = PendingConnections[int](1e9, lambda: most, given_up.append)
    for number in range(10_000):
        unproven.add(number, "10.0.0.1")
    assert given_up == []
    for number in range(10_000, 30_000):
        unproven.add(number, "10.0.0.1")
    assert len(unproven) == PENDING_MAX * 3 // 4
    before = len(given_up)
    for number in range(4_000):
        unproven.add(-1 - number, f"10.1.{number >> 8}.{number & 255}")
    assert len(given_up) == before
    for number in range(4_000, 5_000):
        unproven.add(-1 - number, f"10.1.{number >> 8}.{number & 255}")
    assert len(unproven) == PENDING_MAX, "of all addresses together"
    assert min(given_up) >= 0, "those of the one address with the most have gone"


@pytest.mark.parametrize("nodes", [0, 1, 5_000, 11_000])
def test_who_comes_has_the_places_that_nodes_leave_and_no_others(nodes: int) -> None:
    limits = ConnectionLimits.of(20_000)
    assert min(limits.pending_max(0), limits.joining_max(0)) * 3 // 4 >= 10_000, "so many may come of one address"
    joining = limits.joining_max(nodes)
    silent = limits.pending_max(nodes + joining)
    assert joining >= limits.joining
    assert silent >= limits.pending
    assert silent + joining + nodes + limits.requests <= 20_000


@pytest.mark.parametrize("descriptors", [8, 256, 1_024, 4_096, 65_536, 1 << 20])
def test_all_kinds_of_connections_fit_into_the_descriptors(descriptors: int) -> None:
    limits = ConnectionLimits.of(descriptors)
    assert min(structs.astuple(limits)) >= 1
    assert sum(structs.astuple(limits)) <= max(8, descriptors)
    if descriptors >= 1 << 16:
        assert limits.nodes >= Policy().nodes_max
