"""Nodes' sessions over real sockets: who is let in or refused, which node receives what, and peers that break rules."""

import asyncio
import math
import os
import socket

import pytest

from coordinatord.protocol.codec import encode
from coordinatord.protocol.messages import FRAME_BYTES_MAX, PROTOCOL_VERSION, Desired, Goal, Phase, RefusalCode, Refused
from coordinatord.runtime import __version__
from coordinatord.runtime.websocket.frames import BINARY, CLOSE, PING, PONG, CloseCode, framed
from coordinatord.runtime.websocket.web_socket import UNSENT_BYTES_MAX
from coordinatord.server.app import Server
from coordinatord.server.sessions import node_sessions
from coordinatord.server.sessions.node_sessions import JOINS_AT_ONCE, JOINS_PER_S, JoinThrottle
from tests.coordinatord.server.conftest import Start
from tests.support.programs import TIMEOUT_S
from tests.support.raw_session import Peer, connect, get, join, until
from tests.support.raw_websocket import MASK, message, request, wire


async def test_what_the_messages_of_nodes_take_in_the_flight_recorder_is_known(start: Start) -> None:
    async with start() as server, connect(server.url, join("a", nodes=2)) as a:
        await a.receive(Desired)
        joined = server.driver._recorder._bytes
        assert joined >= len(encode(join("a", nodes=2)))
        await a.beat()
        await a.receive(Desired)
        assert server.driver._recorder._bytes > joined


async def test_a_heartbeat_is_answered_and_a_plain_report_is_not(start: Start) -> None:
    async with start() as server, connect(server.url, join("a", nodes=2)) as a:
        first = await a.receive(Desired)
        await a.report(Phase.IDLE, first)
        await a.beat()
        await a.receive(Desired)
        await a.socket.ping(b"after")
        frame = await a.socket.receive(timeout=TIMEOUT_S)
        assert frame.data == b"after", "only one answer"


async def test_a_text_frame_is_refused(start: Start) -> None:
    async with start() as server, connect(server.url) as peer:
        await peer.socket.send_str("hello")
        text = "expected a binary frame, not text"
        assert await peer.receive(Refused) == Refused(RefusalCode.MALFORMED, text, retry=False)
        await peer.receive_end()


async def test_that_a_host_speaks_another_version_is_logged_once_until_one_of_it_is_let_in(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    async def ask_in_vain() -> int:
        for _ in range(3):
            async with connect(server.url, join(version=7)) as peer:
                refused = await peer.receive(Refused)
                assert (refused.code, refused.retry) == (RefusalCode.VERSION, False)
                assert f"supports protocol {PROTOCOL_VERSION}, this node 7" in refused.message
        return sum("refused" in record.getMessage() for record in caplog.records)

    async with start() as server:
        assert await ask_in_vain() == 1
        async with connect(server.url, join("a")) as node:
            await node.receive(Desired)
        assert await ask_in_vain() == 2


async def test_a_malformed_report_ends_the_session(start: Start) -> None:
    async with start() as server, connect(server.url, join("a", nodes=2)) as peer:
        await peer.receive(Desired)
        await peer.send(join("a", nodes=2))
        refused = await peer.receive(Refused)
        assert "Observed or LogChunk or Stacks or Arrivals.type: Invalid value 'Join'" in refused.message
        await peer.receive_end()
        async with connect(server.url, join("a", nodes=2)) as again:
            assert (await again.receive(Desired)).goal is Goal.WAIT


async def test_who_does_not_say_who_it_is_is_sent_away(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_sessions, "JOIN_WITHIN_S", 0.05)
    async with start() as server, connect(server.url) as peer:
        refused = await peer.receive(Refused)
        text = "no join within 0.05 s, or before too many others came"
        assert refused == Refused(RefusalCode.MALFORMED, text, retry=True)
        await peer.receive_end()


async def test_who_leaves_before_saying_a_word_leaves_no_trace(start: Start) -> None:
    async with start() as server:
        async with connect(server.url):
            pass
        async with connect(server.url, join("a", nodes=2)) as peer:
            await peer.receive(Desired)
            assert list(server.driver.machine.jobs["job"].members) == ["a"]


async def test_a_superseded_session_is_refused_and_the_younger_one_goes_on(start: Start) -> None:
    async with start() as server, connect(server.url, join("a", nodes=2)) as older:
        await older.receive(Desired)
        async with connect(server.url, join("a", nodes=2, incarnation=2)) as younger:
            assert (await older.receive(Refused)).code is RefusalCode.SUPERSEDED
            await older.receive_end()
            assert (await younger.receive(Desired)).goal is Goal.WAIT
            async with connect(server.url, join("a", nodes=2)) as again:
                assert (await again.receive(Refused)).code is RefusalCode.SUPERSEDED
            await younger.beat()
            await younger.receive(Desired)


async def test_more_nodes_than_the_limit_are_asked_to_come_later(start: Start) -> None:
    async with start(nodes_max=1) as server, connect(server.url, join("a", nodes=2)) as a:
        await a.receive(Desired)
        async with connect(server.url, join("b", nodes=2)) as b:
            refused = await b.receive(Refused)
            assert (refused.code, refused.retry) == (RefusalCode.LIMIT, True)


async def fill_buffers(server: Server, slow: Peer) -> tuple[node_sessions.NodeSession, asyncio.Transport]:
    """Have the only node of a server stop reading until a message to it waits; return both ends of its session."""
    await slow.receive(Desired)
    transport = slow.socket._conn.transport  # type: ignore[union-attr]  # how else to stop reading
    assert transport is not None
    transport.pause_reading()
    [session] = server.sessions._joined.values()
    session._reader.allowed = math.inf
    with socket.socket(fileno=os.dup(session._transport.get_extra_info("socket").fileno())) as own:
        own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
    while session._unsent is None:  # until all buffers in between are full
        await slow.beat()
        await asyncio.sleep(0)
    return session, transport


async def test_a_slow_reader_costs_one_message_and_hears_the_latest_word(start: Start) -> None:
    async with (
        start(heartbeat_s=3600.0) as server,
        connect(server.url, join("slow", nodes=3), buffer_bytes=4096) as slow,
    ):
        session, transport = await fill_buffers(server, slow)
        assert (unsent := session._unsent) is not None
        assert session._transport.get_write_buffer_size() <= UNSENT_BYTES_MAX + len(unsent) + 4, "a frame's head is 4"
        async with connect(server.url, join("b", nodes=3)) as b, connect(server.url, join("c", nodes=3)):
            await b.receive_goal(Goal.RUN)
            assert session._unsent != unsent, "the newer word took its place"
            transport.resume_reading()
            assert (await slow.receive_goal(Goal.RUN)).round == 1


async def test_a_peer_that_sends_its_end_and_reads_nothing_is_given_up(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_sessions, "CLOSE_WITHIN_S", 0.5)
    async with (
        start(heartbeat_s=3600.0) as server,
        connect(server.url, join("slow", nodes=2), buffer_bytes=4096) as slow,
    ):
        session, transport = await fill_buffers(server, slow)
        transport.write_eof()
        await until(lambda: session._closing)
        assert len(server.sessions._close_timeouts) == 1, "it has a limited time"
        await until(lambda: not server.sessions._joined)


@pytest.mark.parametrize("release", [__version__, "0.0.1"])
async def test_the_log_names_a_node_of_another_release(
    start: Start, caplog: pytest.LogCaptureFixture, release: str
) -> None:
    caplog.set_level("INFO")
    async with start() as server, connect(server.url, join("a", release=release)) as peer:
        await peer.receive_goal(Goal.RUN)
    received = [record.getMessage() for record in caplog.records if "of the protocol" in record.getMessage()]
    differs = f"node a of job job: release {release}, version {PROTOCOL_VERSION} of the protocol; this coordinator"
    assert [differs in text for text in received] == ([] if release == __version__ else [True])


HONEST, OTHER = ("token", "job", "a"), ("token", "job", "b")


def test_so_many_are_let_in_at_once_and_so_many_each_second() -> None:
    throttle = JoinThrottle()
    assert [throttle.allows(HONEST, 0.0) for _ in range(JOINS_AT_ONCE + 1)] == [True] * JOINS_AT_ONCE + [False]
    later = 3 / JOINS_PER_S
    assert [throttle.allows(HONEST, later) for _ in range(4)] == [True] * 3 + [False]
    assert [throttle.allows(HONEST, 1e6) for _ in range(JOINS_AT_ONCE + 1)] == [True] * JOINS_AT_ONCE + [False]


def test_what_one_uses_up_is_left_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_sessions, "JOINERS_MAX", 2)
    throttle = JoinThrottle()
    while throttle.allows(HONEST, 0.0):
        pass
    for other in (OTHER, ("another token", "job", "a"), ("token", "another job", "a")):
        assert throttle.allows(other, 0.0)
    assert len(throttle._remaining) == 2


async def test_a_node_that_comes_without_end_is_refused_for_now_and_others_are_not(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_sessions, "JOINS_AT_ONCE", 3)
    monkeypatch.setattr(node_sessions, "JOINS_PER_S", 0.0)
    async with start() as server:
        for _ in range(3):
            async with connect(server.url, join("a", nodes=2)) as node:
                await node.receive_goal(Goal.WAIT)
        before = server.driver.machine.jobs["job"].revision
        async with connect(server.url, join("a", nodes=2)) as node:
            said = await node.receive(Refused)
            assert (said.code, said.retry) == (RefusalCode.LIMIT, True)
            assert said.message.startswith("node a joins more often than 0 times a second")
        assert server.driver.machine.jobs["job"].revision <= before + 1, "only its last connection has ended since"
        async with connect(server.url, join("b", nodes=2)) as other:
            await other.receive(Desired)


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
