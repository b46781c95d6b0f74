"""The events that a store returns, and which drains and forgotten jobs it forgets."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from coordinatord.core.values.records import NodeDrained, NodeUndrained
from coordinatord.store.database import Database
from coordinatord.store.interface import EventPage, LoggedEvent
from coordinatord.store.memory_store import MemoryStore
from coordinatord.store.retention import MARKS_KEPT
from coordinatord.store.sqlite_store import SqliteStore
from tests.support.histories import JOB, RUN, a_forgetting, a_join_of, a_round_of, an_opening, made_at


def a_drain(name: str) -> NodeDrained:
    return NodeDrained("", "", f"{name} drained by alice", name)


def an_undrain(name: str) -> NodeUndrained:
    return NodeUndrained("", "", f"{name} undrained by alice", name)


def logged(database: Database, job: str | None = None, after: int = 0) -> list[tuple[int, str]]:
    return [(one.number, one.kind) for one in database.read_events(job, after, 1_000).events]


@pytest.mark.asyncio
@pytest.mark.parametrize("make", [MemoryStore, lambda: SqliteStore.open(Path("state"))], ids=["memory", "sqlite"])
async def test_only_of_some_kinds_and_of_some_age(
    make: Callable[[], MemoryStore | SqliteStore], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = make()
    await store.append(made_at(5.0, an_opening(), a_join_of("n1")))
    await store.append(made_at(6.0, a_join_of("n2")))
    for kinds, since, numbers in (
        (("NodeJoined",), 0.0, [2, 3]),
        (("NodeJoined", "RunOpened"), 0.0, [1, 2, 3]),
        ((), 6.0, [3]),
        (("RunOpened",), 6.0, []),
    ):
        chapter = await store.read_events(JOB, None, 10, kinds=kinds, since=since)
        assert [one.number for one in chapter.events] == numbers
        assert chapter.upto == 3
    await store.close()


def test_the_newest_are_listed_oldest_first() -> None:
    database = Database.in_memory()
    database.append(made_at(5.0, an_opening(), *(a_join_of(f"n{number}") for number in range(10))))
    assert logged(database, after=9) == [(10, "NodeJoined"), (11, "NodeJoined")]
    assert [one.number for one in database.read_events(JOB, None, 2).events] == [10, 11]
    [first] = database.read_events(JOB, None, 11).events[:1]
    assert first == LoggedEvent(1, 5.0, JOB, RUN, "RunOpened", None, None, "opened by node n1")


def test_of_one_job_only_what_is_its_own_is_listed() -> None:
    database = Database.in_memory()
    database.append(made_at(0.0, an_opening("a"), an_opening("b", "e-2"), a_drain("n1")))
    assert logged(database, "b") == [(2, "RunOpened")]
    assert logged(database) == [(1, "RunOpened"), (2, "RunOpened"), (3, "NodeDrained")]


def test_numbers_are_never_given_again_even_if_all_is_forgotten() -> None:
    database = Database.in_memory()
    database.append(made_at(0.0, an_opening(), a_join_of("n1"), a_forgetting()))
    assert logged(database) == [(3, "JobForgotten")]
    database.append(made_at(1.0, an_opening(run="e-2")))
    assert logged(database, JOB) == [(3, "JobForgotten"), (4, "RunOpened")]
    assert database.runs() == [(JOB, "e-2")]
    assert [entry.record for entry in database.load()] == [a_forgetting(), an_opening(run="e-2")]


def test_forgotten_jobs_do_not_pile_up() -> None:
    database = Database.in_memory()
    for number in range(MARKS_KEPT + 20):
        job = f"job-{number}"
        database.append(made_at(0.0, an_opening(job), a_forgetting(job)))
    assert database.count() == MARKS_KEPT


def test_drains_that_hold_are_kept_and_others_do_not_pile_up() -> None:
    database = Database.in_memory()
    database.append(
        made_at(0.0, a_drain("bad"), a_drain("mended"), an_undrain("mended"), a_drain("again"), an_undrain("again"))
    )
    database.append(made_at(0.0, a_drain("again")))
    for number in range(MARKS_KEPT):
        database.append(made_at(1.0, a_drain(f"n{number}"), an_undrain(f"n{number}")))
    drained = [entry.record for entry in database.load() if isinstance(entry.record, NodeDrained)]
    left = [record.node for record in drained]
    assert left[:2] == ["bad", "again"]
    assert "mended" not in left
    assert database.count() == MARKS_KEPT + 2


@pytest.mark.asyncio
@pytest.mark.parametrize("make", [Database.in_memory, MemoryStore], ids=["database", "memory"])
async def test_who_goes_on_from_a_number_misses_nothing_however_much_there_is(
    make: Callable[[], Database | MemoryStore],
) -> None:
    store = make()
    logged = store.append(
        made_at(0.0, an_opening(), an_opening("other", "e-2"), *(a_join_of(f"n{n}") for n in range(10)))
    )
    if logged is not None:
        await logged
    seen: list[int] = []
    upto = 0
    for _ in range(5):
        told_of = store.read_events(JOB, upto, 3)
        chapter = told_of if isinstance(told_of, EventPage) else await told_of
        seen += [one.number for one in chapter.events]
        upto = chapter.upto
    assert (seen, upto) == ([1, *range(3, 13)], 12)
    quiet = store.read_events("other", 2, 3)
    chapter = quiet if isinstance(quiet, EventPage) else await quiet
    assert (chapter.events, chapter.upto) == ((), 12), "what was looked at in vain is not looked at again"


@pytest.mark.asyncio
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
    assert [one.kind for one in (await telling).events] == ["RunOpened", "NodeJoined"]
    await store.close()


def test_each_store_has_a_word_of_its_own_and_keeps_it(tmp_path: Path) -> None:
    words = {Database.in_memory().identity, Database.in_memory().identity, MemoryStore().identity}
    assert len(words) == 3
    first = Database.open(tmp_path / "state.db")
    word = first.identity
    first.close()
    assert Database.open(tmp_path / "state.db").identity == word


def test_a_mark_more_costs_no_more_the_more_there_are() -> None:
    database = Database.in_memory()
    costs = []
    for half in range(2):
        steps: list[None] = []
        database.append(made_at(0.0, *(a_drain(f"n{half}-{number}") for number in range(2 * MARKS_KEPT))))
        database._connection.set_progress_handler(partial(steps.append, None), 10)
        database.append(made_at(1.0, a_drain(f"one-more-{half}")))
        database._connection.set_progress_handler(None, 0)
        costs.append(len(steps))
    assert 0 < costs[0] <= costs[1] < 1.2 * costs[0]


@pytest.mark.asyncio
@pytest.mark.parametrize("make", [MemoryStore, lambda: SqliteStore.open(Path("state"))], ids=["memory", "sqlite"])
async def test_who_was_in_a_round_is_read_as_it_was_then(
    make: Callable[[], MemoryStore | SqliteStore], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = make()
    first, second = a_join_of("n1", incarnation=1), a_join_of("n2")
    await store.append(made_at(5.0, an_opening(), first, second, a_round_of("n1", "n2", number=1)))
    again = a_join_of("n1", incarnation=2)
    await store.append(made_at(6.0, again, a_round_of("n1", number=2)))
    assert set(await store.read_round(JOB, RUN, 1)) == {first, second, a_round_of("n1", "n2", number=1)}
    assert set(await store.read_round(JOB, RUN, 2)) == {second, again, a_round_of("n1", number=2)}
    assert list(await store.read_round(JOB, RUN, 3)) == list(await store.read_round(JOB, "other", 1)) == []
    await store.close()
