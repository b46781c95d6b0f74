"""Peers that break the rules of WebSockets, or only stretch them, harm nobody else and cost a bounded memory."""

import asyncio
import math

import pytest

from coordinatord.protocol.codec import encode
from coordinatord.protocol.messages import FRAME_BYTES_MAX, Goal, RefusalCode
from coordinatord.runtime.websocket.frames import BINARY, CLOSE, PING, PONG, CloseCode, framed
from coordinatord.runtime.websocket.web_socket import UNSENT_BYTES_MAX
from coordinatord.server.sessions import node_sessions
from tests.coordinatord.server.conftest import Start
from tests.support.raw_session import connect, get, join, until
from tests.support.raw_websocket import MASK, message, request, wire

JOIN = encode(join("a", nodes=2))

ENDS = {
    "not masked": (framed(BINARY, JOIN), CloseCode.PROTOCOL_ERROR),
    "too long": (message(bytes(FRAME_BYTES_MAX + 1)), CloseCode.TOO_BIG),
    "a close": (framed(CLOSE, b"\x03\xe8bye", MASK), CloseCode.NORMAL),
    "a close without a code": (framed(CLOSE, b"", MASK), CloseCode.NORMAL),
    "a close with half a code": (framed(CLOSE, b"\x03", MASK), CloseCode.NORMAL),
    "a code that nobody may send": (framed(CLOSE, (1005).to_bytes(2), MASK), CloseCode.NORMAL),
}
"""What a peer sends that ends its session, and the code that it hears."""


@pytest.mark.parametrize("first", [b"", message(JOIN)], ids=["as the first message", "of a node"])
async def test_what_ends_a_session_is_said_by_a_code(start: Start, first: bytes) -> None:
    async with start() as server:
        for case, (data, code) in ENDS.items():
            async with wire(server.url, request() + first) as peer:
                await peer.upgraded()
                if first:
                    await peer.frame()
                peer.send(data)
                assert await peer.frame() == (CLOSE, code.to_bytes(2)), case
                peer.half_close()
                await peer.end()
        assert (await get(f"{server.url}/healthz"))[0] == 200


@pytest.mark.parametrize(
    ("first", "event"),
    [(b"", "peer_refused"), (message(JOIN), "message_malformed")],
    ids=["as the first message", "of a node"],
)
async def test_a_rule_that_is_broken_is_logged_since_the_peer_hears_a_code_alone(
    start: Start, caplog: pytest.LogCaptureFixture, first: bytes, event: str
) -> None:
    async with start() as server, wire(server.url, request() + first) as peer:
        await peer.upgraded()
        peer.send(framed(0x40 | BINARY, JOIN, MASK))
        await until(lambda: any(record.levelname == "WARNING" for record in caplog.records))
        assert server.driver._record_writer._counters.refused[RefusalCode.MALFORMED] == 1
    [record] = [record for record in caplog.records if record.levelname == "WARNING"]
    assert record.__dict__["event"] == event
    assert record.message.endswith("a frame begins with 0xc2: no extension was agreed on")


async def test_a_peer_that_does_not_answer_a_close_is_cut_off(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_sessions, "CLOSE_WITHIN_S", 0.05)
    async with start() as server, wire(server.url, request() + framed(BINARY, b"x") + bytes(100)) as peer:
        await peer.upgraded()
        await peer.end()
        assert len(server.sessions._close_timeouts) == 0


async def test_the_end_of_the_server_waits_for_no_peer_for_long(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_sessions, "CLOSE_WITHIN_S", 0.05)
    async with (
        start() as server,
        wire(server.url, request() + message(JOIN)) as node,
        wire(server.url, request()) as new,
    ):
        await node.upgraded()
        await new.upgraded()
        await until(lambda: server.driver.machine.sessions == 1)
        server.sessions.close()
        for peer in (node, new):
            await peer.end()


async def test_a_peer_that_sends_nothing_more_is_gone(start: Start) -> None:
    async with start() as server, wire(server.url, request() + message(JOIN)) as peer:
        await peer.upgraded()
        await until(lambda: server.driver.machine.sessions == 1)
        peer.half_close()
        await peer.end()
        await until(lambda: not server.driver.machine.sessions)


async def test_a_flood_of_pings_that_nobody_reads_costs_one_pong(start: Start) -> None:
    flood = framed(PING, bytes(125), MASK) * 100
    async with start() as server, wire(server.url, request() + message(JOIN), buffer_bytes=4096) as peer:
        await until(lambda: server.driver.machine.sessions == 1)
        [session] = server.sessions._joined.values()
        session._reader.allowed = math.inf
        while session._pong is None:
            peer.send(flood)
            await asyncio.sleep(0)
        peer.send(flood + framed(PING, b"last", MASK))
        await until(lambda: session._pong == b"last")
        assert session._transport.get_write_buffer_size() <= UNSENT_BYTES_MAX + len(flood), "asyncio counts what it has"
        async with connect(server.url, join("b", nodes=2)) as other:
            await other.receive_goal(Goal.RUN)
        await peer.upgraded()
        kinds = set()
        while (found := await peer.frame()) != (PONG, b"last"):
            assert found is not None
            kinds.add(found[0])
        assert kinds - {BINARY} == {PONG}, "the first word may not have been on its way when the flood began"
        found = await peer.frame()
        assert found is not None
        assert found[0] == BINARY, "the latest word comes last"
