"""What is appended is there, in order and all or none, also when the disk is full in between."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from coordinatord.commands.offline_replay import replay_run
from coordinatord.core.rounds.values.records import JobStopAsked, Record, RoundEnded, RoundsMissed
from coordinatord.core.rounds.values.round_history import ROUNDS_RETAINED, rounds_of
from coordinatord.store.database import Database
from coordinatord.store.interface import Entry, StoreError, UnreadableStoreError
from tests.support.builders import a_report
from tests.support.histories import (
    JOB,
    RUN,
    Life,
    a_forgetting,
    a_join_of,
    a_loss_of,
    a_round_of,
    an_end,
    an_opening,
    made_at,
    replay,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.db"


@pytest.fixture
def database(path: Path) -> Iterator[Database]:
    with closing(Database.open(path)) as opened:
        yield opened


def test_records_that_do_not_fit_are_not_kept_in_part_and_can_be_appended_again(path: Path, database: Database) -> None:
    database.append(made_at(0.0, an_opening(), a_join_of("n1")))
    many = [a_join_of(f"node-{number}") for number in range(500)]
    (pages,) = database._connection.execute("PRAGMA page_count").fetchone()
    database._connection.execute(f"PRAGMA max_page_count = {pages + 5}")
    for _ in range(3):
        with pytest.raises(StoreError, match="the disk is full: make room there") as caught:
            database.append(made_at(1.0, *many))
        assert not isinstance(caught.value, UnreadableStoreError)
        assert str(path.parent) in str(caught.value)
        assert database.count() == 2
    database.append(made_at(2.0, a_join_of("n2")))
    database._connection.execute("PRAGMA max_page_count = 1000000")
    database.append(made_at(3.0, *many))
    assert [entry.at for entry in database.load()] == [0.0, 0.0, 2.0, *[3.0] * 500]


def test_records_that_make_nothing_superfluous_are_added_in_one_statement() -> None:
    statements: list[str] = []
    database = Database.in_memory()
    database.append(made_at(0.0, an_opening()))
    database._connection.set_trace_callback(statements.append)
    joins = [a_join_of(f"n{number}") for number in range(300)]
    database.append(made_at(0.0, *joins, a_loss_of("n7"), a_join_of("n7")))
    assert [entry.record for entry in database.load()] == [an_opening(), *joins, a_loss_of("n7"), a_join_of("n7")]
    added = [statement for statement in statements if statement.split()[:2] == ["INSERT", "INTO"]]
    assert len(added) == 2, "up to the loss, which may make something superfluous, and after it"


def test_a_database_that_another_process_writes_is_in_use_until_it_has_ended(path: Path, database: Database) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="another process holds its database"):
            database.append(made_at(0.0, an_opening()))
        other.execute("ROLLBACK")
    database.append(made_at(1.0, an_opening()))
    assert database.count() == 1


def test_a_row_that_was_edited_is_named(path: Path, database: Database) -> None:
    database.append(made_at(0.0, an_opening(), a_join_of("n1"), a_loss_of("n1")))
    with closing(sqlite3.connect(path, isolation_level=None)) as person:
        person.execute("UPDATE records SET body = '{}' WHERE kind = 'NodeJoined'")
    with pytest.raises(UnreadableStoreError, match=r"record 2 is damaged .* missing .*: restore it from a copy"):
        database.load()


def test_every_commit_reaches_the_disk(database: Database) -> None:
    assert database._connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert database._connection.execute("PRAGMA synchronous").fetchone() == (2,), "FULL"


def test_a_copy_shows_what_is_there_and_does_not_follow(path: Path, database: Database) -> None:
    database.append(made_at(0.0, an_opening()))
    copy = Database.copy_of(path)
    database.append(made_at(1.0, a_join_of("n1")))
    assert (copy.count(), database.count()) == (1, 2)
    copy.append(made_at(2.0, a_join_of("n2")))
    assert database.count() == 2


def _reports(record: Record) -> bool:
    return isinstance(record, RoundEnded) and record.report is not None


@pytest.mark.parametrize("rounds", [0, 1, 7, ROUNDS_RETAINED + 3])
@pytest.mark.parametrize("seed", range(3))
def test_what_a_run_that_has_ended_came_to_is_told_by_a_few_records(seed: int, rounds: int) -> None:
    past = [*Life(seed, rounds)]
    last = past[-1].at
    past.append(Entry(last, RoundsMissed(JOB, RUN, "a node knows of a later round", 99)))
    past.append(Entry(last + 1.0, JobStopAsked(JOB, RUN, "stopped by an operator")))
    past.append(Entry(last + 2.0, replace(an_end(), step=7)))
    for number, entry in enumerate(past):
        if isinstance(entry.record, RoundEnded) and entry.record.round % 3 == 0:
            past[number] = replace(entry, record=replace(entry.record, report=a_report(round=entry.record.round)))
    database = Database.in_memory()
    database.append(past)
    found = database.load()
    assert len(found) <= 6, "the run, its last round, a later one, the last report, the last end of a round, the end"
    assert replay(found) == replay(past)
    assert (replay(found)[JOB].report is not None) == any(_reports(entry.record) for entry in past)
    assert rounds_of(database.rounds(JOB, RUN)) == rounds_of(entry.record for entry in past)


def test_a_damaged_round_of_a_run_that_has_ended_is_named() -> None:
    database = Database.in_memory()
    database.append(made_at(0.0, an_opening(), a_join_of("n1"), a_round_of("n1"), an_end()))
    database._connection.execute("UPDATE records SET body = 'nonsense' WHERE kind = 'RoundFormed'")
    with pytest.raises(UnreadableStoreError, match="record 3 is damaged"):
        database.load()


def test_a_run_that_is_forgotten_among_its_own_records_is_damage() -> None:
    entries = [Entry(1.0, an_opening()), Entry(2.0, a_forgetting())]
    with pytest.raises(UnreadableStoreError, match="record 2 of the run forgets it"):
        list(replay_run(entries))
