"""Logs over HTTP: asked of the nodes piece by piece, as JSON or as a stream, within bounds."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import pytest
from aiohttp import ClientSession
from msgspec import structs

from coordinatord.protocol.codec import decode
from coordinatord.protocol.log_messages import LOG_BYTES_MAX, LogChunk, LogPlace, LogStream, ReadLog
from coordinatord.protocol.messages import Desired, Phase
from coordinatord.server import driver
from coordinatord.server.app import Server
from coordinatord.server.http import log_reading, logs_api
from tests.coordinatord.server.conftest import Start
from tests.coordinatord.server.http.test_events_api import following
from tests.support.builders import a_failure, a_spec
from tests.support.programs import TIMEOUT_S
from tests.support.raw_session import OFFER, Peer, connect, get, join
from tests.support.stores import RoundsStore

MORE_THAN_BUFFERS_HOLD = 4_000
"""Pieces of 16 kB: 64 MB, of which the kernel holds a tenth for a reader that reads nothing."""

FOLLOWED = "/v1/jobs/job/logs?rank=0&stream=stdout&follow=true"

KEEPS_LOGS = structs.replace(OFFER, workers=2, log_dir="/logs/job")


@pytest.fixture(autouse=True)
def _follow_closely(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reading, "FOLLOW_EVERY_S", 0.01)


@asynccontextmanager
async def in_round(server: Server, max_restarts: int = 0) -> AsyncIterator[tuple[Peer, Desired]]:
    """Join as the only node of a job with two workers."""
    async with connect(server.url, join("a", spec=a_spec(1, 1, max_restarts), offer=KEEPS_LOGS)) as a:
        run = await a.start_workers()
        yield a, run


def logs(server: Server, query: str = "") -> asyncio.Task[tuple[int, str, Any]]:
    return asyncio.ensure_future(get(f"{server.url}/v1/jobs/job/logs?{query}"))


def piece(wanted: ReadLog, data: bytes, at: int = 0) -> LogChunk:
    """Return the answer to a request: data that begins at this place of its file, and is the last of it."""
    return LogChunk(wanted.request, data, LogPlace(5, at + len(data)), more=False, gap=False, problem="")


async def send(a: Peer, data: bytes, *, more: bool = False, **changes: Any) -> ReadLog:
    """Answer the next request with a piece; return the request."""
    wanted = await a.receive(ReadLog)
    await a.send(structs.replace(piece(wanted, data), more=more, **changes))
    return wanted


async def test_json_has_all_that_was_chosen_with_the_place_of_each_file(start: Start) -> None:
    async with start() as server, in_round(server) as (a, run):
        answer = logs(server, "rank=1&last=2")
        wanted = await send(a, b"\xc3\xa4", more=True)
        assert wanted == ReadLog(
            wanted.request, run.run, 1, 1, LogStream.STDOUT, None, last_bytes=LOG_BYTES_MAX, last_lines=2, follow=False
        )
        assert (await send(a, b"\xff\n")).after == LogPlace(5, 2)
        await send(a, b"oh\n", gap=True)
        assert await answer == (
            200,
            "application/json",
            {
                "job": "job",
                "run": run.run,
                "round": 1,
                "logs": [
                    {
                        "rank": 1,
                        "node": "a",
                        "host": "host",
                        "stream": stream,
                        "file": f"/logs/job/{run.run}/round_1/1/{stream}.log",
                        "text": text,
                        "note": note,
                    }
                    for stream, text, note in (
                        ("stdout", "ä\N{REPLACEMENT CHARACTER}\n", ""),
                        ("stderr", "oh\n", "something is left out here: it was rotated away, or is too far back"),
                    )
                ],
                "note": "",
            },
        )


async def test_a_whole_answer_has_a_limit(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs_api, "LOG_TEXT_MAX", 5)
    async with start() as server, in_round(server) as (a, _):
        answer = logs(server, "stream=stdout&last=all")
        await send(a, b"123")
        await send(a, b"456")
        _, _, body = await answer
        assert [log["text"] for log in body["logs"]] == ["123", "45"]
        assert body["note"] == "the rest is left out, beyond 5 characters: ask for a stream of it"


async def test_a_log_is_read_on_after_a_problem_if_its_node_has_more(start: Start) -> None:
    async with start() as server, in_round(server) as (a, run):
        answer = logs(server, "rank=0&stream=stderr")
        await send(a, b"12", more=True, problem="a part cannot be read: Input/output error")
        assert (await send(a, b"34")).after == LogPlace(5, 2)
        [log] = (await answer)[2]["logs"]
        assert log["text"] == "1234"
        where = f"look on host host at /logs/job/{run.run}/round_1/0/stderr.log"
        assert log["note"] == f"a part cannot be read: Input/output error: {where}"


@pytest.mark.parametrize("problem", ["", "it cannot be read: Input/output error"])
async def test_a_node_that_does_not_go_on_though_it_has_more_is_asked_no_further(start: Start, problem: str) -> None:
    async with start() as server, in_round(server) as (a, _):
        answer = logs(server, "rank=0&stream=stderr")
        await send(a, b"12", more=True)
        await send(a, b"", more=True, problem=problem, place=None)
        [log] = (await answer)[2]["logs"]
        assert log["text"] == "12"
        assert log["note"].startswith(f"{problem or 'its node sends nothing of the rest'}: look on host host at ")


async def test_why_a_node_has_no_logs_is_said_at_each_log_only(start: Start) -> None:
    async with start() as server, connect(server.url, join("a")) as a:
        await a.start_workers()
        _, _, body = await logs(server, "rank=0&stream=stdout")
        assert [log["note"].startswith("node a keeps no log files") for log in body["logs"]] == [True]
        assert body["note"] == ""


async def test_a_node_that_does_not_answer_is_waited_for_within_bounds(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_reading, "ANSWER_WITHIN_S", 0.05)
    async with start() as server, in_round(server) as (a, _):
        answer = logs(server, "rank=0&stream=stderr")
        late = await a.receive(ReadLog)
        [log] = (await answer)[2]["logs"]
        assert log["note"].startswith("the node has not answered within 0.05 s: does its disk hang?: look on host host")
        monkeypatch.setattr(log_reading, "ANSWER_WITHIN_S", TIMEOUT_S)
        await a.send(piece(late, b"late"))
        answer = logs(server, "rank=0&stream=stderr")
        await send(a, b"next")
        assert (await answer)[2]["logs"][0]["text"] == "next"


async def test_who_follows_nodes_that_do_not_answer_gets_signs_of_life(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_reading, "ANSWER_WITHIN_S", 0.01)
    monkeypatch.setattr(logs_api, "QUIET_S", 0.0)
    monkeypatch.setattr(log_reading, "FOLLOW_EVERY_S", 3_600.0)
    async with (
        start() as server,
        in_round(server),
        ClientSession(headers={"Accept": "text/event-stream"}) as client,
        client.get(f"{server.url}/v1/jobs/job/logs?follow=true") as answer,
        asyncio.timeout(TIMEOUT_S),
    ):
        assert (await answer.content.readuntil(b"\n\n")).startswith(b"event: log"), "which says the run"
        for _ in range(4):  # one for each log
            assert await answer.content.readuntil(b"\n\n") == b": nothing new\n\n"


async def test_no_proxy_holds_back_or_keeps_a_piece_of_a_stream(start: Start) -> None:
    async with start() as server, in_round(server), ClientSession(headers={"Accept": "text/event-stream"}) as client:
        for path in ("/v1/stream", "/v1/events", "/v1/jobs/job/logs?follow=true"):
            async with client.get(f"{server.url}{path}") as answer:
                assert answer.headers["X-Accel-Buffering"] == "no", "nginx reads ahead of its client otherwise"
                assert answer.headers["Cache-Control"] == "no-store"


async def test_a_node_that_goes_meanwhile_is_named(start: Start) -> None:
    async with start() as server:
        async with in_round(server) as (a, _):
            answer = logs(server, "rank=0&stream=stderr")
            await a.receive(ReadLog)
        [log] = (await answer)[2]["logs"]
        assert log["note"].startswith("its node is not connected any more: look on host host at /logs/job/")


async def test_a_node_is_asked_for_one_piece_at_a_time_and_heartbeats_go_on(start: Start) -> None:
    async with start() as server, in_round(server) as (a, _):
        answers = [logs(server, "rank=0&stream=stdout"), logs(server, "rank=1&stream=stdout")]
        first = await a.receive(ReadLog)
        await a.beat()
        await a.receive(Desired)  # and no second request
        await a.send(piece(first, b"x"))
        await send(a, b"x")
        assert [(await answer)[2]["logs"][0]["text"] for answer in answers] == ["x", "x"]


async def test_a_reader_that_goes_leaves_nothing_behind(start: Start) -> None:
    async with start() as server, in_round(server) as (a, _):
        answer = logs(server, "rank=0&stream=stdout")
        await a.receive(ReadLog)
        answer.cancel()
        with pytest.raises(asyncio.CancelledError):
            await answer
        answer = logs(server, "rank=1&stream=stdout")
        await send(a, b"x")
        assert (await answer)[2]["logs"][0]["text"] == "x"


async def test_a_slow_reader_has_the_node_asked_for_no_more(start: Start) -> None:
    async with start() as server, in_round(server) as (a, _):
        url = f"{server.url}/v1/jobs/job/logs?rank=0&stream=stdout&last=all"
        headers = {"Accept": "text/event-stream"}
        async with ClientSession(headers=headers, read_bufsize=1024) as client, client.get(url) as answer:
            assert answer.status == 200
            sent = 0
            with suppress(TimeoutError):
                while sent < MORE_THAN_BUFFERS_HOLD:
                    async with asyncio.timeout(1.0):
                        await send(a, b"x" * 16_000, more=True)
                    sent += 1
            assert sent < MORE_THAN_BUFFERS_HOLD


async def keep(a: Peer, log: bytearray) -> None:
    """Answer requests out of a log, as a node does."""
    async for frame in a.socket:
        wanted = decode(frame.data, ReadLog, Desired)
        if isinstance(wanted, ReadLog):
            at = 0 if wanted.after is None else wanted.after.offset
            await a.send(piece(wanted, bytes(log[at:]), at))


async def test_who_follows_hears_all_that_is_written_until_the_run_ends(start: Start) -> None:
    log = bytearray(b"one\n")
    async with start() as server, in_round(server) as (a, run), asyncio.TaskGroup() as tasks:
        node = tasks.create_task(keep(a, log))
        async with following(f"{server.url}{FOLLOWED}") as parts:
            assert (await anext(parts))["run"] == run.run
            part = await anext(parts)
            assert (part["rank"], part["text"], part["over"]) == (0, "one\n", False)
            log += b"two\n"
            assert (await anext(parts))["text"] == "two\n"
            log += b"last\n"
            await a.report(Phase.SUCCEEDED, run)
            assert [(part["text"], part["over"]) async for part in parts] == [("last\n", False), ("", True)]
        node.cancel()


async def test_a_log_that_grows_as_fast_as_it_is_read_lets_the_others_be_read_too(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_reading, "TURN_BYTES", 10_000)
    url = "/v1/jobs/job/logs?stream=stdout&follow=true&last=all"

    async def write_without_end(a: Peer) -> None:
        async for frame in a.socket:
            wanted = decode(frame.data, ReadLog, Desired)
            if isinstance(wanted, ReadLog):
                at = 0 if wanted.after is None else wanted.after.offset
                await a.send(structs.replace(piece(wanted, b"x" * 5_000, at), more=wanted.rank == 0))

    async with start() as server, in_round(server) as (a, _), asyncio.TaskGroup() as tasks:
        node = tasks.create_task(write_without_end(a))
        async with following(f"{server.url}{url}") as parts:
            ranks = [(await anext(parts))["rank"] for _ in range(6)]
        assert ranks == [None, 0, 0, 1, 0, 0]
        node.cancel()


async def test_a_stream_that_broke_off_is_taken_up_after_the_places_of_its_last_parts(start: Start) -> None:
    log = bytearray(b"one\n")
    url = f"{FOLLOWED}&last=1"
    async with start() as server, in_round(server) as (a, run), asyncio.TaskGroup() as tasks:
        node = tasks.create_task(keep(a, log))
        async with following(f"{server.url}{url}") as parts:
            await anext(parts)
            place = (await anext(parts))["place"]
            assert place == "1:0:stdout:5:4"
        log += b"two\nthree\n"
        async with following(f"{server.url}{url}&run={run.run}&after={place}") as parts:
            texts = [(await anext(parts))["text"] for _ in range(2)]
            assert texts == ["", "two\nthree\n"], "and not only the last line"
        node.cancel()


async def test_who_follows_is_not_told_that_all_is_over_when_the_coordinator_ends(start: Start) -> None:
    async with AsyncExitStack() as stack:
        async with start() as server:
            a, _ = await stack.enter_async_context(in_round(server))
            parts = await stack.enter_async_context(following(f"{server.url}{FOLLOWED}"))
            assert not (await anext(parts))["place"]
            await send(a, b"")
            assert (await anext(parts))["place"] == "1:0:stdout:5:0", "also of a log that is empty so far"
        assert [part async for part in parts] == []


async def test_a_store_that_fails_ends_a_stream_and_is_no_bug(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(log_reading, "ANSWER_WITHIN_S", 0.05)
    store = RoundsStore()
    async with (
        start(store) as server,
        in_round(server, max_restarts=1) as (a, run),
        following(f"{server.url}{FOLLOWED}") as parts,
    ):
        await anext(parts)
        store.is_unreadable = True
        await a.report(Phase.STOPPED, run, a_failure())
        assert not any([part["over"] async for part in parts])
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_who_follows_misses_no_round_that_the_store_has_late(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "RETRY_S", 0.01)
    store = RoundsStore()
    store.is_full = True
    async with start(store) as server, in_round(server, max_restarts=1) as (a, run), asyncio.TaskGroup() as tasks:
        answering = tasks.create_task(keep(a, bytearray(b"one\n")))
        async with following(f"{server.url}{FOLLOWED}") as parts:
            assert [(await anext(parts))["text"] for _ in range(2)] == ["", "one\n"]
            await a.report(Phase.STOPPED, run, a_failure())
            await store.was_asked.wait()
            store.is_full = False
            assert (await anext(parts))["note"] == "round 2 begins"
            part = await anext(parts)
            assert (part["round"], part["text"]) == (2, "one\n")
        answering.cancel()


WRONG = {
    "after=x": "after is the place of a part of a log, not 'x'",
    "after=1:99999999:stdout:5:4": "after is the place of a part of a log, not '1:99999999:stdout:5:4'",
    "after=1:0:stdout:5:4&round=2": "after is given for logs of one round, the one that is wanted",
    "rank=x": "rank is a number or a range, such as 3 or 0-7, not 'x'",
    "rank=7-3": "rank is a number or a range, such as 3 or 0-7, not '7-3'",
    "last=x": "last is 0 to 100000 or all, not 'x'",
    "last_bytes=-1": "last_bytes is 0 to 4611686018427387904, not '-1'",
    "stream=stdin": "stream is stdout, stderr or both, not 'stdin'",
    "follow=1": "follow is true or false, not '1'",
    "follow=true": "to follow, ask for a stream: Accept: text/event-stream",
}
"""Queries, and what is wrong with each."""


async def test_a_wrong_query_is_named(start: Start) -> None:
    async with start() as server:
        for query, problem in WRONG.items():
            status, _, body = await logs(server, query)
            assert (status, body) == (400, {"error": "malformed", "message": problem})


async def test_what_there_is_not_is_said(start: Start) -> None:
    async with start() as server:
        assert (await logs(server))[2]["error"] == "unknown_job"
        async with in_round(server):
            status, _, body = await logs(server, "round=7")
            assert (status, body["error"]) == (404, "unknown_log")


async def test_no_more_read_at_once_than_people_do(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs_api, "READERS_MAX", 1)
    async with start() as server, in_round(server) as (a, _):
        answer = logs(server, "rank=0&stream=stdout")
        wanted = await a.receive(ReadLog)
        status, _, body = await logs(server)
        assert (status, body["error"]) == (503, "busy")
        await a.send(piece(wanted, b"x"))
        assert (await answer)[0] == 200
