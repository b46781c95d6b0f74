"""A node that is killed is not waited for: its closed connection and the errors of its peers' collectives prove it."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from coordinatord.core.rounds.policy import Policy
from coordinatord.core.rounds.values.records import NodeLost, RoundEnded, RoundFormed
from coordinatord.server import driver
from coordinatord.server.app import ListenAddress, serve
from coordinatord.store.database_store import MemoryStore
from tests.support.cluster import TRAINING, Node
from tests.support.histories import records_in
from tests.support.programs import TIMEOUT_S, USER_HOME, kill_quietly

pytestmark = pytest.mark.slow

PATIENT = Policy(heartbeat_s=20.0, reconnect_grace_s=90.0)
"""Whatever else would end the wait takes longer than the test."""


@contextmanager
def nodes(coordinator: str, names: str) -> Iterator[list[Node]]:
    """Start nodes that train together."""
    with ExitStack() as stack:
        flags = ("--nnodes", f"2:{len(names)}", "--max-restarts", "0")
        started = []
        for name in names:
            started.append(Node(name, "job", coordinator, flags, TRAINING))
            stack.callback(started[-1].close)
        yield started


@pytest.mark.long
async def test_a_node_that_is_killed_while_it_trains_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(USER_HOME)  # the coordinator in this process serves everybody
    monkeypatch.setattr(driver, "WRITE_WITHIN_S", TIMEOUT_S)
    store = MemoryStore()
    async with serve(ListenAddress("127.0.0.1", 0), PATIENT, store) as server:
        with nodes(server.url.rpartition("/")[2], "abc") as started:
            events = [await asyncio.to_thread(node.await_event, "sum", sum=3) for node in started]
            known = len(await records_in(store))  # a first round may have formed before all had come
            [gone] = [node for node, event in zip(started, events, strict=True) if event["rank"] == 0]
            gone.process.kill()
            left = [node for node in started if node is not gone]
            again = [await asyncio.to_thread(node.await_event, "sum", sum=2) for node in left]
            [first] = [event for event in again if event["rank"] == 0]
            kill_quietly(first["pid"], signal.SIGUSR1)
            assert [await asyncio.to_thread(node.wait) for node in left] == [0, 0]
    records = (await records_in(store))[known:]
    [lost] = [record for record in records if isinstance(record, NodeLost)]
    assert (lost.node, lost.reason.partition(":")[0]) == (gone.name, "its workers are gone")
    [ended] = [record for record in records if isinstance(record, RoundEnded)]
    assert not ended.charged
    assert ended.reason.startswith(f"lost node {gone.name}; workers on ")
    assert len([record for record in records if isinstance(record, RoundFormed)]) == 1
