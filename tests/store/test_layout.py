"""Databases of older versions are brought forward, whole or not at all; those of newer ones are left alone."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from coordinatord.store import layout
from coordinatord.store.database import Database
from coordinatord.store.interface import Entry, StoreError, UnreadableStoreError
from tests.support.histories import an_opening

NEXT = (
    *layout.STEPS,
    ("CREATE TABLE marks (node TEXT)", "INSERT INTO marks SELECT run FROM records"),
)
"""As a later release may have it."""

BROKEN = (*NEXT, ("DROP TABLE marks", "INSERT INTO nowhere VALUES (1)"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Make a database of this version with one record."""
    path = tmp_path / "state.db"
    database = Database.open(path)
    database.append([an_opening()], 1.0)
    database.close()
    return path


def ask(path: Path, question: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(question).fetchall()


def test_an_older_database_is_brought_forward_with_what_it_holds(path: Path) -> None:
    database = Database.open(path, NEXT)
    assert database.load() == [Entry(1.0, an_opening())]
    database.close()
    assert ask(path, "PRAGMA user_version") == [(len(NEXT),)]
    assert ask(path, "SELECT * FROM marks") == [("e-1",)]
    Database.open(path, NEXT).close()
    assert ask(path, "SELECT * FROM marks") == [("e-1",)], "no step is taken twice"


OLD_BODIES = {
    "RunOpened": {"reason": "r", "opener": "a", "spec": {"nodes_min": 1, "nodes_max": 2, "max_restarts": 3}},
    "NodeJoined": {
        "reason": "r",
        "incarnation": 1,
        "offer": {
            "host": "h",
            "host_id": "h",
            "workers": 1,
            "role": "default",
            "topology": "",
            "advertise_address": None,
            "routable_address": None,
            "join_timeout_s": 600.0,
            "stop_timeout_s": 30.0,
        },
        "peer_address": "10.0.0.1",
        "local_address": "10.0.0.9",
    },
    "RoundStopped": {
        "reason": "r",
        "planned": False,
        "first_failure": {
            "node": "a",
            "host": "h",
            "failure": {"rank": 0, "local_rank": 0, "exit_code": 1, "message": "", "age_s": 0.0},
        },
    },
    "RoundEnded": {"reason": "r", "charged": True, "restarts_used": 1},
    "RunEnded": {"reason": "r", "outcome": {"result": "failed", "exit_code": 1, "summary": "s"}},
}
"""Bodies as the first version of the tables had them."""


def test_the_records_of_the_first_version_are_read(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    Database.open(path, layout.STEPS[:1]).close()
    with closing(sqlite3.connect(path)) as connection, connection:
        for kind, body in OLD_BODIES.items():
            node = "a" if kind == "NodeJoined" else None
            number = 1 if kind in {"NodeJoined", "RoundStopped", "RoundEnded"} else None
            values = (1.0, "job", "e-1", kind, node, number, json.dumps(body))
            connection.execute(
                "INSERT INTO records (at, job, run, kind, node, round, body) VALUES (?, ?, ?, ?, ?, ?, ?)", values
            )
    database = Database.open(path)
    read = [type(entry.record).__name__ for entry in database.load()]
    database.close()
    assert read == list(OLD_BODIES)


def test_all_steps_are_taken_from_the_beginning(tmp_path: Path) -> None:
    database = Database.open(tmp_path / "state.db", NEXT)
    database.append([an_opening()], 1.0)
    database.close()
    assert ask(tmp_path / "state.db", "PRAGMA user_version") == [(len(NEXT),)]


def test_a_step_that_fails_leaves_the_version_that_was(path: Path) -> None:
    with pytest.raises(StoreError, match="no such table: nowhere"):
        Database.open(path, BROKEN)
    assert ask(path, "PRAGMA user_version") == [(len(layout.STEPS),)]
    assert ask(path, "SELECT name FROM sqlite_master WHERE name = 'marks'") == []
    database = Database.open(path)
    assert database.load() == [Entry(1.0, an_opening())]
    database.close()


def test_a_newer_database_is_refused_and_left_as_it_is(path: Path) -> None:
    Database.open(path, NEXT).close()
    before = path.read_bytes()
    with pytest.raises(UnreadableStoreError, match="written by a newer coordinatord") as caught:
        Database.open(path)
    assert "--state-dir" in str(caught.value)
    with pytest.raises(UnreadableStoreError, match="written by a newer coordinatord"):
        Database.copy_of(path)
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == ["state.db"]
