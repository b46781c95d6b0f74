"""Databases of older versions are brought forward, whole or not at all; those of newer ones are left alone."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from coordinatord.store import migrations
from coordinatord.store.database import Database
from coordinatord.store.interface import Entry, StoreError, UnreadableStoreError
from tests.support.histories import an_opening, made_at
from tests.support.later_tables import LATER_STEPS

BROKEN = (*LATER_STEPS, ("DROP TABLE marks", "INSERT INTO nowhere VALUES (1)"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Make a database of this version with one record."""
    path = tmp_path / "state.db"
    database = Database.open(path)
    database.append(made_at(1.0, an_opening()))
    database.close()
    return path


def ask(path: Path, question: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(question).fetchall()


def test_an_older_database_is_brought_forward_with_what_it_holds(path: Path) -> None:
    database = Database.open(path, LATER_STEPS)
    assert database.load() == [Entry(1.0, an_opening())]
    database.close()
    assert ask(path, "PRAGMA user_version") == [(len(LATER_STEPS),)]
    assert ask(path, "SELECT * FROM marks") == [("e-1",)]
    Database.open(path, LATER_STEPS).close()
    assert ask(path, "SELECT * FROM marks") == [("e-1",)], "no step is taken twice"


def test_a_step_that_fails_leaves_the_version_that_was(path: Path) -> None:
    with pytest.raises(StoreError, match="no such table: nowhere"):
        Database.open(path, BROKEN)
    assert ask(path, "PRAGMA user_version") == [(len(migrations.STEPS),)]
    assert ask(path, "SELECT name FROM sqlite_master WHERE name = 'marks'") == []
    database = Database.open(path)
    assert database.load() == [Entry(1.0, an_opening())]
    database.close()


def test_a_newer_database_is_refused_and_left_as_it_is(path: Path) -> None:
    Database.open(path, LATER_STEPS).close()
    before = path.read_bytes()
    with pytest.raises(UnreadableStoreError, match="written by a newer coordinatord") as caught:
        Database.open(path)
    assert "--state-dir" in str(caught.value)
    with pytest.raises(UnreadableStoreError, match="written by a newer coordinatord"):
        Database.copy_of(path)
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == ["state.db"]
