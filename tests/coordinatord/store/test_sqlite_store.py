"""The daemon's store: durable from one life to the next, in order, and never in the way of the event loop."""

import asyncio
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest

from coordinatord.store import database
from coordinatord.store.database import Database
from coordinatord.store.directory import DATABASE
from coordinatord.store.interface import UnreadableStoreError
from coordinatord.store.migrations import STEPS
from coordinatord.store.sqlite_store import SqliteStore
from tests.support.histories import a_join_of, an_opening, made_at, set_clock_since
from tests.support.programs import TIMEOUT_S


async def test_what_is_read_ahead_is_loaded_once_and_then_read_anew(tmp_path: Path) -> None:
    store = SqliteStore.open(tmp_path)
    await store.append(made_at(1.0, an_opening()))
    store.read_ahead()
    assert [entry.record for entry in await store.load()] == [an_opening()]
    await store.append(made_at(2.0, a_join_of("n1")))
    assert [entry.record for entry in await store.load()] == [an_opening(), a_join_of("n1")]
    await store.close()


@pytest.mark.parametrize(("set_by_s", "at"), [(7_200.0, 8_200.0), (-7_200.0, 0.0)])
async def test_records_are_as_old_as_they_were_when_the_clock_was_set(
    tmp_path: Path, set_by_s: float, at: float
) -> None:
    store = SqliteStore.open(tmp_path)
    await store.append(made_at(1000.0, an_opening()))
    await store.close()
    set_clock_since(tmp_path, set_by_s)
    store = SqliteStore.open(tmp_path)
    (entry,) = await store.load()
    assert entry.at == pytest.approx(at, abs=60.0)
    await store.append(made_at(20_000.0, a_join_of("n1")))
    await store.close()
    store = SqliteStore.open(tmp_path)
    assert [entry.at for entry in await store.load()] == pytest.approx([at, 20_000.0], abs=60.0)
    await store.close()


async def test_records_are_as_old_as_they_were_when_the_clock_was_set_within_a_life(tmp_path: Path) -> None:
    store = SqliteStore.open(tmp_path)
    await store.append(made_at(1000.0, an_opening()))
    set_clock_since(tmp_path, 7_200.0)
    await store.append(made_at(8_300.0, a_join_of("n1")))
    assert [entry.at for entry in await store.load()] == pytest.approx([8_200.0, 8_300.0], abs=60.0)
    await store.close()


async def test_the_event_loop_goes_on_while_the_disk_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "BUSY_S", TIMEOUT_S)
    store = SqliteStore.open(tmp_path)
    await store.append(made_at(1.0, an_opening()))
    with closing(sqlite3.connect(tmp_path / DATABASE, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        waiting = asyncio.ensure_future(store.append(made_at(1.0, a_join_of("n1"))))
        await asyncio.sleep(0)
        assert not waiting.done()
        other.execute("ROLLBACK")  # done here, by the loop that was not held up
    await waiting
    assert len(await store.load()) == 2
    await store.close()


async def test_close_waits_for_what_was_asked_for_before(tmp_path: Path) -> None:
    store = SqliteStore.open(tmp_path)
    appended = [asyncio.ensure_future(store.append(made_at(1.0, an_opening(f"job-{number}")))) for number in range(20)]
    await asyncio.sleep(0)
    await store.close()
    assert all(future.done() for future in appended)
    again = SqliteStore.open(tmp_path)
    assert [entry.record.job for entry in await again.load()] == [f"job-{number}" for number in range(20)]
    await again.close()


async def test_a_directory_whose_database_is_refused_is_let_go(tmp_path: Path) -> None:
    (tmp_path / DATABASE).write_bytes(b"no database" * 1000)
    for _ in range(2):
        with pytest.raises(UnreadableStoreError, match="damaged"):
            SqliteStore.open(tmp_path)


@pytest.mark.parametrize("cut_to", [0, 1, 100])
async def test_a_database_that_was_cut_off_is_not_taken_for_an_empty_one(tmp_path: Path, cut_to: int) -> None:
    kept = await files_of_a_killed_one(tmp_path)
    kept[DATABASE] = kept[DATABASE][:cut_to]
    if cut_to > 1:
        del kept[f"{DATABASE}-wal"]
    check_damaged(tmp_path, kept)


async def test_a_database_that_was_copied_without_its_log_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    kept = await files_of_a_killed_one(tmp_path)
    check_damaged(tmp_path, {DATABASE: kept[DATABASE]})


@pytest.mark.parametrize("files", [{}, {"-wal": b""}], ids=["no log", "an empty log"])
async def test_an_empty_file_is_a_new_database(tmp_path: Path, files: dict[str, bytes]) -> None:
    for suffix, content in {"": b"", **files}.items():
        (tmp_path / f"{DATABASE}{suffix}").write_bytes(content)
    await SqliteStore.open(tmp_path).close()


async def test_a_first_start_that_was_killed_is_made_again(tmp_path: Path) -> None:
    kept = await files_of_a_killed_one(tmp_path)
    (tmp_path / DATABASE).write_bytes(kept[DATABASE])
    (tmp_path / f"{DATABASE}-journal").touch()
    await SqliteStore.open(tmp_path).close()


async def files_of_a_killed_one(place: Path) -> dict[str, bytes]:
    """Return database and log of a coordinator that was killed in its first life, and leave nothing there."""
    store = SqliteStore.open(place)
    await store.append(made_at(1.0, an_opening()))
    kept = {name: (place / name).read_bytes() for name in (DATABASE, f"{DATABASE}-wal")}
    await store.close()
    (place / DATABASE).unlink()
    return kept


def check_damaged(place: Path, files: dict[str, bytes]) -> None:
    """Check that these files are refused, for a start and for a copy, and left as they are."""
    for name, content in files.items():
        (place / name).write_bytes(content)
    for read in (SqliteStore.open, lambda place: Database.copy_of(place / DATABASE)):
        with pytest.raises(UnreadableStoreError, match="damaged"):
            read(place)
    assert {name: (place / name).read_bytes() for name in files} == files


async def test_a_damaged_page_is_found_before_anything_is_decided(tmp_path: Path) -> None:
    store = SqliteStore.open(tmp_path)
    joins = [a_join_of(f"n{number}") for number in range(500)]
    await store.append(made_at(1.0, an_opening(), *joins, an_opening(run="e-2")))  # so that no join is loaded
    await store.close()
    content = bytearray((tmp_path / DATABASE).read_bytes())
    page = content.index(b"NodeJoinedn250") // 4096
    content[page * 4096 : page * 4096 + 200] = b"\xa5" * 200
    (tmp_path / DATABASE).write_bytes(content)
    store = SqliteStore.open(tmp_path)
    store.read_ahead()
    with pytest.raises(UnreadableStoreError, match="damaged"):
        await store.load()
    await store.close()


async def test_a_database_of_an_older_version_is_checked_before_it_is_changed(tmp_path: Path) -> None:
    path = tmp_path / DATABASE
    Database.open(path).close()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        rows = [(number, f"job-{number}") for number in range(500)]
        other.executemany("INSERT INTO records VALUES (?, 0.0, ?, 'e-1', 'JobStopAsked', NULL, NULL, '{}')", rows)
    content = bytearray(path.read_bytes())
    content[-4096:-3896] = b"\xa5" * 200
    path.write_bytes(content)
    with pytest.raises(UnreadableStoreError, match="damaged"):
        Database.open(path, (*STEPS, ("DROP TABLE records",)))
    assert path.read_bytes() == content


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
