"""Nodes' sessions over real sockets: what is let in, what is refused, and which node receives what."""

import asyncio
import math
import os
import socket

import pytest

from coordinatord.protocol.codec import encode
from coordinatord.protocol.messages import PROTOCOL_VERSION, Desired, Goal, Phase, RefusalCode, Refused
from coordinatord.runtime import __version__
from coordinatord.runtime.websocket.web_socket import UNSENT_BYTES_MAX
from coordinatord.server.app import Server
from coordinatord.server.sessions import node_sessions
from tests.coordinatord.server.conftest import Start
from tests.support.programs import TIMEOUT_S
from tests.support.raw_session import Peer, connect, join, until


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
        assert "expected a binary frame, not text" in (await peer.receive(Refused)).message
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
