"""Where workers stand, over HTTP: asked of all nodes at once, equal stacks once."""

import asyncio
from typing import Any

import pytest
from msgspec import structs

from coordinatord.core.watching import worker_sources
from coordinatord.hints.seen_worker import BUSY_BYTES
from coordinatord.protocol.messages import Goal
from coordinatord.protocol.stack_messages import (
    AskStacks,
    Collective,
    CollectiveState,
    StackOrigin,
    Stacks,
    WorkerStacks,
    pack_stacks,
)
from coordinatord.server.app import Server
from coordinatord.server.http import stacks_api
from tests.coordinatord.server.conftest import Start
from tests.support.raw_session import OFFER, Peer, connect, get, join

TWO_WORKERS = structs.replace(OFFER, workers=2)

WAITS = pack_stacks([("MainThread", ("all_reduce (torch/distributed/c10d.py:9)", "main (train.py:41)"))])
LOADS = pack_stacks([("MainThread", ("__next__ (torch/utils/data/dataloader.py:7)", "main (train.py:40)"))])


def stands(rank: int, stacks: bytes = WAITS, **changes: Any) -> WorkerStacks:
    return structs.replace(
        WorkerStacks(rank, StackOrigin.WORKER, stacks, "sleeping", "futex_do_wait", 0.0, None, ""), **changes
    )


def asked(server: Server, query: str = "") -> asyncio.Task[tuple[int, str, Any]]:
    return asyncio.ensure_future(get(f"{server.url}/v1/jobs/job/stacks{query}"))


async def answer(peer: Peer, *workers: WorkerStacks, problem: str = "") -> AskStacks:
    wanted = await peer.receive(AskStacks)
    await peer.send(Stacks(wanted.request, workers, problem))
    return wanted


async def test_equal_stacks_come_once_with_the_ranks_that_have_them_the_largest_group_first(start: Start) -> None:
    first, second = (join(name, nodes=2, offer=TWO_WORKERS) for name in "ab")
    async with start() as server, connect(server.url, first) as a, connect(server.url, second) as b:
        run = await a.receive_goal(Goal.RUN)
        await b.receive_goal(Goal.RUN)
        shown = asked(server)
        collective = Collective("default_pg", 1204, CollectiveState.WAITS, "gloo:all_reduce", "8x3 Float", 12.0)
        wanted = await answer(a, stands(0, LOADS, cpus=0.5), stands(1, collective=collective))
        assert (wanted.run, wanted.round, wanted.local_ranks) == (run.run, 1, (0, 1))
        await answer(b, stands(2), stands(3, b"", origin=StackOrigin.NONE, problem="its process has ended"))
        status, _, body = await shown
        assert (status, body["run"], body["round"], body["notes"]) == (200, run.run, 1, [])
        assert [[worker["rank"] for worker in group["workers"]] for group in body["groups"]] == [[1, 2], [0], [3]]
        assert body["groups"][0]["threads"][0]["frames"][-1] == "main (train.py:41)"
        assert body["groups"][0]["workers"][0]["collective"]["number"] == 1204
        assert body["groups"][1]["workers"][0]["cpus"] == 0.5
        assert body["verdict"]["kind"] == "busy"
        assert body["verdict"]["sentence"] == (
            "rank 0 on node a computes in __next__ (torch/utils/data/dataloader.py:7) for 12 s; "
            "rank 1 waits in all_reduce 1,204"
        )
        assert (body["groups"][2]["threads"], body["groups"][2]["problem"]) == ([], "its process has ended")
        shown = asked(server, "?rank=3")
        assert (await answer(b, stands(3))).local_ranks == (1,)
        body = (await shown)[2]
        assert (len(body["groups"]), body["verdict"]) == (1, None)


@pytest.mark.parametrize(
    ("moved", "verdict", "notes"), [(0, "network", []), (BUSY_BYTES, None, [stacks_api.SLOW_WORK])]
)
async def test_a_second_look_tells_a_slow_collective_from_a_network_that_is_cut(
    start: Start, monkeypatch: pytest.MonkeyPatch, moved: int, verdict: str | None, notes: list[str]
) -> None:
    monkeypatch.setattr(stacks_api, "APART_S", 0.01)
    collective = Collective("default_pg", 1204, CollectiveState.WAITS, "gloo:all_reduce", "8x3 Float", 12.0)
    async with start() as server, connect(server.url, join("a", offer=TWO_WORKERS)) as a:
        await a.receive_goal(Goal.RUN)
        shown = asked(server)
        for io_bytes in (0, moved):
            await answer(a, *(stands(rank, collective=collective, io_bytes=io_bytes) for rank in range(2)))
        body = (await shown)[2]
        assert (body["verdict"] and body["verdict"]["kind"], body["notes"]) == (verdict, notes)
        shown = asked(server)
        await answer(a, *(stands(rank, collective=collective) for rank in range(2)))
        await answer(a, problem="this node has no workers of that round")
        assert (await shown)[2]["notes"] == ["node a: this node has no workers of that round"], "the round is over"


async def test_a_node_that_cannot_be_asked_is_a_note(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks_api, "ANSWER_WITHIN_S", 0.05)
    async with start() as server, connect(server.url, join("a")) as a:
        await a.receive_goal(Goal.RUN)
        problem = "the node has not answered within 0.05 s: is its host overloaded?"
        assert (await asked(server))[2]["notes"] == [f"node a: {problem}"]


async def test_what_cannot_be_asked_is_refused(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    async with start() as server, connect(server.url, join("a", offer=TWO_WORKERS)) as a:
        await a.start_workers()
        for query, status, text in (
            ("?rank=2", 404, "round 1 has no such rank: it has ranks 0 to 1"),
            ("?rank=x", 400, "rank is a number or a range, such as 3 or 0-7, not 'x'"),
        ):
            got, _, body = await asked(server, query)
            assert (got, body["message"]) == (status, text)
        monkeypatch.setattr(worker_sources, "WORKERS_AT_ONCE_MAX", 1)
        assert (await asked(server))[2]["message"] == "these are 2 workers: choose at most 1 by rank"
        assert (await get(f"{server.url}/v1/jobs/other/stacks"))[0] == 404
        monkeypatch.setattr(stacks_api, "READERS_MAX", 0)
        assert (await asked(server))[0] == 503
