"""Which drains and forgotten jobs a store forgets, and what a look back costs the others."""

import asyncio
import threading
from functools import partial
from pathlib import Path

from coordinatord.core.rounds.values.records import HostJudged, NodeDrained, NodeUndrained
from coordinatord.store.database import Database
from coordinatord.store.retention import CLUSTER_RECORDS_RETAINED
from coordinatord.store.sqlite_store import SqliteStore
from tests.support.histories import a_forgetting, a_join_of, an_opening, made_at


def a_drain(name: str) -> NodeDrained:
    return NodeDrained("", "", f"{name} drained by alice", name)


def an_undrain(name: str) -> NodeUndrained:
    return NodeUndrained("", "", f"{name} undrained by alice", name)


def test_forgotten_jobs_do_not_pile_up() -> None:
    database = Database.in_memory()
    for number in range(CLUSTER_RECORDS_RETAINED + 20):
        job = f"job-{number}"
        database.append(made_at(0.0, an_opening(job), a_forgetting(job)))
    assert database.count() == CLUSTER_RECORDS_RETAINED


def test_drains_that_hold_are_kept_and_others_do_not_pile_up() -> None:
    database = Database.in_memory()
    database.append(
        made_at(0.0, a_drain("bad"), a_drain("mended"), an_undrain("mended"), a_drain("again"), an_undrain("again"))
    )
    database.append(made_at(0.0, a_drain("again")))
    for number in range(CLUSTER_RECORDS_RETAINED):
        database.append(made_at(1.0, a_drain(f"n{number}"), an_undrain(f"n{number}")))
    drained = [entry.record for entry in database.load() if isinstance(entry.record, NodeDrained)]
    left = [record.node for record in drained]
    assert left[:2] == ["bad", "again"]
    assert "mended" not in left
    assert database.count() == CLUSTER_RECORDS_RETAINED + 2


def test_the_last_judgement_of_a_host_is_kept_and_earlier_ones_do_not_pile_up() -> None:
    database = Database.in_memory()
    database.append(made_at(0.0, HostJudged("", "", "charged", "lemon"), HostJudged("", "", "quarantined", "lemon")))
    for number in range(CLUSTER_RECORDS_RETAINED):
        database.append(made_at(1.0, HostJudged("", "", f"charged {number}", "other")))
    kept = [entry.record.reason for entry in database.load() if isinstance(entry.record, HostJudged)]
    assert kept[0] == "quarantined"
    assert len(kept) == CLUSTER_RECORDS_RETAINED + 1


def test_a_host_with_the_longest_name_can_be_judged() -> None:
    database = Database.in_memory()
    database.append(made_at(0.0, HostJudged("", "", "charged", "h" * 253)))  # the limit of `NodeOffer.host`
    assert database.count() == len([*database.load()]) == 1


async def test_what_is_looked_back_at_holds_up_no_commit(tmp_path: Path) -> None:
    store = SqliteStore.open(tmp_path / "state")
    await store.append(made_at(0.0, an_opening()))
    looking = threading.Event()
    go_on = threading.Event()

    def look() -> None:
        looking.set()
        go_on.wait()

    held = asyncio.get_running_loop().run_in_executor(store._reading, look)
    await asyncio.to_thread(looking.wait)
    telling = asyncio.ensure_future(store.read_events(None, None, 10))
    await store.append(made_at(1.0, a_join_of("n1")))
    assert not telling.done()
    go_on.set()
    await held
    assert [event.kind for event in (await telling).events] == ["RunOpened", "NodeJoined"]
    await store.close()


def test_a_mark_more_costs_no_more_the_more_there_are() -> None:
    database = Database.in_memory()
    costs = []
    for half in range(2):
        steps: list[None] = []
        database.append(made_at(0.0, *(a_drain(f"n{half}-{number}") for number in range(2 * CLUSTER_RECORDS_RETAINED))))
        database._connection.set_progress_handler(partial(steps.append, None), 10)
        database.append(made_at(1.0, a_drain(f"one-more-{half}")))
        database._connection.set_progress_handler(None, 0)
        costs.append(len(steps))
    assert 0 < costs[0] <= costs[1] < 1.2 * costs[0]
