"""What `Store` promises, held by every store; and what those promise besides that outlive the process."""

import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Protocol

import pytest

from coordinatord.core.rounds.values.records import NodeDrained, Record
from coordinatord.core.rounds.values.round_history import ROUNDS_RETAINED, rounds_of
from coordinatord.store.database import Database
from coordinatord.store.database_store import MemoryStore, Store
from coordinatord.store.directory import DATABASE
from coordinatord.store.interface import Entry, LoggedEvent, StoreError
from coordinatord.store.retention import RUNS_RETAINED
from coordinatord.store.sqlite_store import SqliteStore
from tests.support.etcd import EtcdNamespace, needs_etcd
from tests.support.histories import (
    JOB,
    RUN,
    Life,
    a_forgetting,
    a_join_of,
    a_loss_of,
    a_round_of,
    a_start_of,
    an_end,
    an_opening,
    made_at,
)

pytestmark = pytest.mark.slow

# Places, each of which opens one life of a store after another


class StorePlace(Protocol):
    """A place where a store keeps its records."""

    def life(self) -> AbstractAsyncContextManager[Store]:
        """Open the store, and close it when the context ends. Raises `StoreError`."""


class LastingPlace(StorePlace, Protocol):
    """A place that outlives the process."""

    async def crashes_while(self, entries: Sequence[Entry]) -> Sequence[StorePlace]:
        """Append in a life of its own; return the places that a crash at each point of it would have left.

        The last one is the place after the append.
        """


class MemoryPlace:
    """The memory of a process."""

    @asynccontextmanager
    async def life(self) -> AsyncIterator[Store]:
        """Make a store, which lasts as long as the context."""
        store = MemoryStore()
        yield store
        await store.close()


class DirectoryPlace:
    """A state directory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @asynccontextmanager
    async def life(self) -> AsyncIterator[Store]:
        """Open the directory."""
        store = SqliteStore.open(self._folder)
        try:
            yield store
        finally:
            await store.close()

    async def crashes_while(self, entries: Sequence[Entry]) -> Sequence[StorePlace]:
        """Copy the directory before each statement of the append, and after the last one."""
        copies: list[DirectoryPlace] = []

        def copy(_: str = "") -> None:
            folder = self._folder.with_name(f"{self._folder.name}-{len(copies)}")
            folder.mkdir()
            for name in (DATABASE, f"{DATABASE}-wal"):  # the third file is memory that processes share
                if (self._folder / name).exists():
                    shutil.copy(self._folder / name, folder)
            copies.append(DirectoryPlace(folder))

        store = SqliteStore.open(self._folder)
        try:
            store._database._connection.set_trace_callback(copy)
            await store.append(entries)
            store._database._connection.set_trace_callback(None)
            copy()
        finally:
            await store.close()
        return copies


ETCD = pytest.param("etcd", marks=needs_etcd)


@pytest.fixture(params=["memory", "sqlite", ETCD])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> StorePlace:
    return MemoryPlace() if request.param == "memory" else a_lasting_place(request, tmp_path)


@pytest.fixture(params=["sqlite", ETCD])
def lasting(request: pytest.FixtureRequest, tmp_path: Path) -> LastingPlace:
    return a_lasting_place(request, tmp_path)


def a_lasting_place(request: pytest.FixtureRequest, folder: Path) -> LastingPlace:
    if request.param == "sqlite":
        return DirectoryPlace(folder / "state")
    return EtcdNamespace(request.getfixturevalue("etcd"))


async def numbers_in(store: Store, job: str | None = None, after: int | None = 0) -> list[int]:
    return [event.number for event in (await store.read_events(job, after, 10_000)).events]


async def kept_in(place: StorePlace) -> list[Record]:
    """Return what another life goes on with."""
    async with place.life() as store:
        return [entry.record for entry in await store.load()]


# Every store


async def test_the_newest_events_are_told_oldest_first(place: StorePlace) -> None:
    async with place.life() as store:
        assert (await store.read_events(None, None, 5)).events == ()
        await store.append(made_at(5.0, an_opening(), *(a_join_of(f"n{number}") for number in range(10))))
        assert await numbers_in(store, after=9) == [10, 11]
        newest = await store.read_events(JOB, None, 2)
        assert ([event.number for event in newest.events], newest.upto) == ([10, 11], 11)
        first = (await store.read_events(JOB, None, 11)).events[0]
        assert first == LoggedEvent(1, 5.0, JOB, RUN, "RunOpened", None, None, "opened by node n1")


async def test_events_can_be_told_of_one_job_of_some_kinds_and_of_some_age(place: StorePlace) -> None:
    drained = NodeDrained("", "", "n1 drained by alice", "n1")
    async with place.life() as store:
        await store.append(made_at(5.0, an_opening(), a_join_of("n1")))
        await store.append(made_at(6.0, an_opening("other", "e-2"), drained))
        for job, kinds, since, numbers in (
            (JOB, (), 0.0, [1, 2]),
            ("other", (), 0.0, [3]),
            (None, (), 0.0, [1, 2, 3, 4]),
            (None, ("RunOpened",), 0.0, [1, 3]),
            (None, ("RunOpened", "NodeDrained"), 6.0, [3, 4]),
            (JOB, (), 6.0, []),
        ):
            told = await store.read_events(job, None, 10, kinds=kinds, since=since)
            assert ([event.number for event in told.events], told.upto) == (numbers, 4)


async def test_who_goes_on_from_a_number_misses_nothing_however_much_there_is(place: StorePlace) -> None:
    async with place.life() as store:
        joins = [a_join_of(f"n{number}") for number in range(10)]
        await store.append(made_at(0.0, an_opening(), an_opening("other", "e-2"), *joins))
        seen: list[int] = []
        upto = 0
        for _ in range(5):
            told = await store.read_events(JOB, upto, 3)
            seen += [event.number for event in told.events]
            upto = told.upto
        assert (seen, upto) == ([1, *range(3, 13)], 12)
        quiet = await store.read_events("other", 2, 3)
        assert (quiet.events, quiet.upto) == ((), 12), "what was looked at in vain is not looked at again"


async def test_who_was_in_a_round_is_read_as_it_was_then(place: StorePlace) -> None:
    first, second, again = a_join_of("n1", incarnation=1), a_join_of("n2"), a_join_of("n1", incarnation=2)
    async with place.life() as store:
        await store.append(made_at(5.0, an_opening(), first, second, a_round_of("n1", "n2", number=1)))
        await store.append(made_at(6.0, again, a_round_of("n1", number=2)))
        assert set(await store.read_round(JOB, RUN, 1)) == {first, second, a_round_of("n1", "n2", number=1)}
        assert set(await store.read_round(JOB, RUN, 2)) == {second, again, a_round_of("n1", number=2)}
        assert list(await store.read_round(JOB, RUN, 3)) == list(await store.read_round(JOB, "other", 1)) == []


async def test_what_tells_of_rounds_is_read_for_one_run_only(place: StorePlace) -> None:
    past = [*Life(seed=1, rounds=7)]
    async with place.life() as store:
        await store.append(past)
        await store.append(made_at(99.0, an_opening("other", "e-2"), a_round_of("n1", job="other", run="e-2")))
        assert rounds_of(await store.read_rounds(JOB, RUN)) == rounds_of(entry.record for entry in past)
        assert len(await store.read_rounds("other", "e-2")) == 1
        assert list(await store.read_rounds(JOB, "e-9")) == []


async def test_no_two_stores_have_one_identity(place: StorePlace, tmp_path: Path) -> None:
    async with place.life() as store, DirectoryPlace(tmp_path / "other").life() as other, MemoryPlace().life() as third:
        assert len({store.identity, other.identity, third.identity}) == 3


# Stores that outlive the process


async def test_what_one_life_appends_the_next_one_loads(lasting: LastingPlace) -> None:
    async with lasting.life() as store:
        assert list(await store.load()) == []
        identity = store.identity
        await store.append(made_at(1.0, an_opening(), a_join_of("n1")))
        await store.append(made_at(2.5, a_join_of("n2")))
    async with lasting.life() as store:
        entries = await store.load()
        assert [entry.record for entry in entries] == [an_opening(), a_join_of("n1"), a_join_of("n2")]
        assert [entry.at for entry in entries] == [1.0, 1.0, 2.5]
        assert store.identity == identity
        await store.append(made_at(3.0, a_loss_of("n1")))
        assert await numbers_in(store) == [1, 2, 3, 4]
    assert (await kept_in(lasting))[-1] == a_loss_of("n1")


async def test_of_each_job_the_last_run_is_loaded_and_the_ends_of_earlier_ones(lasting: LastingPlace) -> None:
    async with lasting.life() as store:
        await store.append(made_at(0.0, an_opening("a"), an_opening("b"), a_join_of("n1", "a")))
        await store.append(made_at(1.0, an_opening("a", "e-9"), a_join_of("n1", "b"), a_join_of("n2", "a", "e-9")))
    assert [(record.job, record.run, record.KIND) for record in await kept_in(lasting)] == [
        ("a", "e-1", "RunOpened"),
        ("b", "e-1", "RunOpened"),
        ("a", "e-9", "RunOpened"),
        ("b", "e-1", "NodeJoined"),
        ("a", "e-9", "NodeJoined"),
    ]


async def test_from_life_to_life_the_same_is_forgotten_as_in_one(lasting: LastingPlace) -> None:
    past = [*Life(3, ROUNDS_RETAINED + 10)]
    in_one = Database.in_memory()
    for begin in range(0, len(past), 100):
        async with lasting.life() as store:
            for first in range(begin, min(begin + 100, len(past)), 10):
                in_one.append(past[first : first + 10])
                await store.append(past[first : first + 10])
    async with lasting.life() as store:
        loaded = list(await store.load())
    assert len(loaded) < len(past)
    assert loaded == in_one.load()


async def test_numbers_are_never_given_again_even_if_all_is_forgotten(lasting: LastingPlace) -> None:
    async with lasting.life() as store:
        await store.append(made_at(0.0, an_opening(), a_join_of("n1"), a_forgetting()))
        assert await numbers_in(store) == [3]
    async with lasting.life() as store:
        await store.append(made_at(1.0, an_opening(run="e-2")))
        assert await numbers_in(store) == [3, 4]
        for number in range(3, 3 + RUNS_RETAINED):
            await store.append(made_at(2.0, an_opening(run=f"e-{number}")))
        assert await numbers_in(store) == [3, *range(5, 5 + RUNS_RETAINED)]


async def test_a_record_that_cannot_be_written_leaves_nothing_of_its_batch(lasting: LastingPlace) -> None:
    broken = type(a_loss_of("n1"))(JOB, RUN, "silent", "n1", 1, float("nan"), leaving=False)
    async with lasting.life() as store:
        with pytest.raises(ValueError, match="Out of range"):
            await store.append(made_at(0.0, an_opening(), broken))
        await store.append(made_at(1.0, an_opening()))
    assert await kept_in(lasting) == [an_opening()]


BATCHES: dict[str, Sequence[Record]] = {
    "records": [a_join_of("n1"), a_join_of("n2"), a_round_of("n1", "n2")],
    "with some forgotten on the way": [
        *(a_join_of("n1"), a_loss_of("n1"), a_join_of("n1")),
        *(an_opening(run=f"e-{number}") for number in range(2, 3 + RUNS_RETAINED)),
    ],
    "a job forgotten": [a_start_of(), an_end(), a_forgetting()],
}


@pytest.mark.parametrize("batch", BATCHES)
async def test_a_crash_at_any_point_leaves_all_of_a_batch_or_nothing(lasting: LastingPlace, batch: str) -> None:
    before = [an_opening(), a_join_of("n0"), a_round_of("n0")]
    async with lasting.life() as store:
        await store.append(made_at(1.0, *before))
    *left, last = await lasting.crashes_while(made_at(2.0, *BATCHES[batch]))
    after = await kept_in(last)
    assert after != before
    found = [await kept_in(copy) for copy in left]
    assert before in found, "at the first point nothing is durable"
    # Once it is durable, it stays so.
    turn = found.index(after) if after in found else len(found)
    assert found == [before] * turn + [after] * (len(found) - turn)
    for copy in left:  # and the coordinator that starts there goes on
        async with copy.life() as store:
            told = await numbers_in(store)
            await store.append(made_at(3.0, an_opening("next", "e-77")))
            assert (await numbers_in(store))[-1] > max(told)


async def test_one_place_has_one_writer_at_a_time(lasting: LastingPlace) -> None:
    async with lasting.life() as store:
        await store.append(made_at(1.0, an_opening()))
        with pytest.raises(StoreError, match="another coordinatord has it"):
            async with lasting.life():
                pass
        await store.append(made_at(2.0, a_join_of("n1")))
    assert await kept_in(lasting) == [an_opening(), a_join_of("n1")]
