"""Databases of older versions are brought forward, whole or not at all; those of newer ones are left alone."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from coordinatord.core.state.durable import DurableRun
from coordinatord.core.values.ranks import Ranks
from coordinatord.core.values.records import (
    NodesHeard,
    NodesSilent,
    RoundEnded,
    RoundFormed,
    RoundStarted,
    RoundStopped,
    RunOpened,
    TrainingBegan,
)
from coordinatord.core.values.shards import ResumePoint
from coordinatord.core.values.time_ledger import Spent
from coordinatord.protocol.messages import Follower
from coordinatord.protocol.schema import fields_of
from coordinatord.protocol.worker_ends import SecondaryFailure
from coordinatord.protocol.worker_starts import WorkerStarts
from coordinatord.store import migrations
from coordinatord.store.database import Database
from coordinatord.store.interface import Entry, StoreError, UnreadableStoreError
from tests.support.builders import an_offer
from tests.support.histories import an_opening, made_at, replay

NEXT = (
    *migrations.STEPS,
    ("CREATE TABLE marks (node TEXT)", "INSERT INTO marks SELECT run FROM records"),
)
"""Steps that a later release may have."""

BROKEN = (*NEXT, ("DROP TABLE marks", "INSERT INTO nowhere VALUES (1)"))


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
    database = Database.open(path, NEXT)
    assert database.load() == [Entry(1.0, an_opening())]
    database.close()
    assert ask(path, "PRAGMA user_version") == [(len(NEXT),)]
    assert ask(path, "SELECT * FROM marks") == [("e-1",)]
    Database.open(path, NEXT).close()
    assert ask(path, "SELECT * FROM marks") == [("e-1",)], "no step is taken twice"


ADDRESSES: dict[str, object] = {"peer_address": "10.0.0.1", "local_address": "10.0.0.9"}
ALONE = fields_of(Ranks("a", 0, 0, 1, 0, 1))

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
    "NodeDismissed": {
        "reason": "r",
        "incarnation": 1,
        "outcome": {"result": "left", "exit_code": 143, "summary": "s"},
    },
    "RunEnded": {"reason": "r", "outcome": {"result": "failed", "exit_code": 1, "summary": "s"}},
}
"""Bodies as the first version of the tables had them."""

NEW_KINDS = {"NodeDismissed": "NodeReleased"}


def test_the_records_of_the_first_version_are_read(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    Database.open(path, migrations.STEPS[:1]).close()
    with closing(sqlite3.connect(path)) as connection, connection:
        for kind, body in OLD_BODIES.items():
            node = "a" if kind in {"NodeJoined", "NodeDismissed"} else None
            number = 1 if kind in {"NodeJoined", "RoundStopped", "RoundEnded"} else None
            values = (1.0, "job", "e-1", kind, node, number, json.dumps(body))
            connection.execute(
                "INSERT INTO records (at, job, run, kind, node, round, body) VALUES (?, ?, ?, ?, ?, ?, ?)", values
            )
    database = Database.open(path)
    read = [entry.record.KIND for entry in database.history("job", "e-1")]
    database.close()
    assert read == [NEW_KINDS.get(kind, kind) for kind in OLD_BODIES]


BEFORE_DISKS = 13
"""The last version of the tables in which a round resumed from memory alone, and its holders had no names."""


def test_what_a_round_resumed_from_is_read_from_before_its_holders_were_named(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    Database.open(path, migrations.STEPS[:BEFORE_DISKS]).close()
    resume = {"round": 1, "step": 7, "world_size": 2, "shards": 1, "redone": 0}
    formed = {"reason": "r", "nodes": [ALONE], "master_address": "10.0.0.1", "master_port": 40_001, "resume": resume}
    with closing(sqlite3.connect(path)) as connection, connection:
        row = (1.0, "job", "e-1", "RoundFormed", 2, json.dumps({**formed, "spent": fields_of(Spent())}))
        connection.execute("INSERT INTO records (at, job, run, kind, round, body) VALUES (?, ?, ?, ?, ?, ?)", row)
    database = Database.open(path)
    [entry] = database.history("job", "e-1")
    database.close()
    assert isinstance(entry.record, RoundFormed)
    assert entry.record.resume == ResumePoint(1, 7, 2, 1, 0)


BEFORE_LEDGERS = 3
"""The last version of the tables of which no record tells what a run's time went to."""

OLD_HISTORY: list[tuple[float, str, int | None, dict[str, object]]] = [
    (100.0, "RunOpened", None, {"opener": "a", "spec": fields_of(an_opening().spec)}),
    (103.0, "NodeJoined", 0, {"incarnation": 1, "offer": fields_of(an_offer("a")), **ADDRESSES}),
    (110.0, "RoundFormed", 1, {"nodes": [ALONE], "master_address": "10.0.0.1", "master_port": 40_001}),
    (112.0, "RoundStarted", 1, {}),
    (200.0, "RoundStopped", 1, {"planned": False, "first_failure": None}),
    (203.0, "RoundEnded", 1, {"charged": False, "restarts_used": 0, "report": None}),
    (202.5, "RoundFormed", 2, {"nodes": [ALONE], "master_address": "10.0.0.1", "master_port": 40_001}),
    (210.5, "RoundStarted", 2, {}),
]
"""Rows of that version. The clock is set back once."""


def fill(path: Path, history: list[tuple[float, str, int | None, dict[str, object]]]) -> None:
    Database.open(path, migrations.STEPS[:BEFORE_LEDGERS]).close()
    with closing(sqlite3.connect(path)) as connection, connection:
        for at, kind, number, body in history:
            node = "a" if kind == "NodeJoined" else None
            values = (at, "job", "e-1", kind, node, number, json.dumps({"reason": "r"} | body))
            connection.execute(
                "INSERT INTO records (at, job, run, kind, node, round, body) VALUES (?, ?, ?, ?, ?, ?, ?)", values
            )


def brought_forward(path: Path) -> DurableRun:
    database = Database.open(path)
    run = replay(database.load())["job"]
    database.close()
    return run


def spent(run: DurableRun, now: float) -> Spent:
    return run.ledger.split(now, run.ledger.activity, run.ledger.activity, now)


def test_what_the_time_went_to_is_worked_out_for_runs_from_before_that_was_recorded(tmp_path: Path) -> None:
    fill(tmp_path / "state.db", OLD_HISTORY)
    run = brought_forward(tmp_path / "state.db")
    assert spent(run, 220.5) == Spent(running=98.0, waiting=10.0, starting=10.0, stopping=3.0)
    first, second = run.rounds
    assert (first.formed_at, first.running_at, first.stopped_at, first.ended_at) == (10.0, 12.0, 100.0, 103.0)
    assert (second.formed_at, second.after) == (103.0, None)
    assert not run.reports_steps
    assert ask(tmp_path / "state.db", "SELECT name FROM sqlite_master WHERE name = 'sums'") == []


def test_the_time_of_rounds_that_were_forgotten_before_it_was_recorded_counts_as_running(tmp_path: Path) -> None:
    fill(tmp_path / "state.db", [OLD_HISTORY[0], OLD_HISTORY[1], *OLD_HISTORY[5:]])
    run = brought_forward(tmp_path / "state.db")
    assert spent(run, 211.5) == Spent(running=104.0, starting=8.0)
    assert [round_.number for round_ in run.rounds] == [2]


BEFORE_RUNNING = 4
"""The last version of the tables in which all that workers ran counted as training."""


@pytest.mark.parametrize("stepped", [False, True])
def test_what_runs_without_steps_had_trained_is_brought_forward_as_running(tmp_path: Path, stepped: bool) -> None:
    path = tmp_path / "state.db"
    Database.open(path, migrations.STEPS[:BEFORE_RUNNING]).close()
    names = ("training", "waiting", "rendezvous", "starting", "detecting", "stopping")
    spent = dict.fromkeys(names, 0.0) | {"training": 40.0, "waiting": 2.0}
    start = {"reason": "r", "steps_awaited": False, "spent": spent}
    with closing(sqlite3.connect(path)) as connection, connection:
        for kind, body in (("RoundStarted", start), *([("TrainingBegan", {"reason": "r", "spent": spent})] * stepped)):
            row = (1.0, "job", "e-1", kind, 1, json.dumps(body))
            connection.execute("INSERT INTO records (at, job, run, kind, round, body) VALUES (?, ?, ?, ?, ?, ?)", row)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        migrations.migrate(connection, migrations.STEPS[: BEFORE_RUNNING + 1])
    expected = {"training": 40.0, "running": 0.0} if stepped else {"training": 0.0, "running": 40.0}
    stored = [json.loads(str(body))["spent"] for (body,) in ask(path, "SELECT body FROM records ORDER BY seq")]
    assert stored == [spent | expected] * (1 + stepped)


def test_all_steps_are_taken_from_the_beginning(tmp_path: Path) -> None:
    database = Database.open(tmp_path / "state.db", NEXT)
    database.append(made_at(1.0, an_opening()))
    database.close()
    assert ask(tmp_path / "state.db", "PRAGMA user_version") == [(len(NEXT),)]


def test_a_step_that_fails_leaves_the_version_that_was(path: Path) -> None:
    with pytest.raises(StoreError, match="no such table: nowhere"):
        Database.open(path, BROKEN)
    assert ask(path, "PRAGMA user_version") == [(len(migrations.STEPS),)]
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


BEFORE_STOPPED = 8
"""The last version of the tables in which a node whose workers are gone was called halted."""


def test_a_condition_is_brought_forward_to_its_new_name(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    Database.open(path, migrations.STEPS[:BEFORE_STOPPED]).close()
    with closing(sqlite3.connect(path)) as connection, connection:
        for condition in ("node_halted", "arrived"):
            values = (1.0, "job", "e-1", "RoundStopped", json.dumps({"condition": condition}))
            connection.execute("INSERT INTO records (at, job, run, kind, body) VALUES (?, ?, ?, ?, ?)", values)
    Database.open(path).close()
    bodies = ask(path, "SELECT body FROM records ORDER BY seq")
    assert [json.loads(str(body)) for (body,) in bodies] == [{"condition": "node_stopped"}, {"condition": "arrived"}]


BEFORE_LEFT = 9
"""The last version of the tables in which a run whose nodes had left on purpose was called stopped."""


def test_a_run_whose_nodes_left_is_distinguished_from_one_that_was_stopped(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    Database.open(path, migrations.STEPS[:BEFORE_LEFT]).close()
    with closing(sqlite3.connect(path)) as connection, connection:
        for condition in ("all_left", "stop_asked"):
            body = json.dumps({"condition": condition, "outcome": {"result": "stopped"}})
            values = (1.0, "job", "e-1", "RunEnded", body)
            connection.execute("INSERT INTO records (at, job, run, kind, body) VALUES (?, ?, ?, ?, ?)", values)
    Database.open(path).close()
    bodies = ask(path, "SELECT body FROM records ORDER BY seq")
    assert [json.loads(str(body))["outcome"]["result"] for (body,) in bodies] == ["left", "stopped"]


BEFORE_SILENT = 11
"""The last version of the tables in which no time was silent or redone."""


def test_records_from_before_time_could_be_silent_or_redone_are_read(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    Database.open(path, migrations.STEPS[:BEFORE_SILENT]).close()
    spent = {name: seconds for name, seconds in fields_of(Spent()).items() if name not in {"silent", "redone"}}
    with closing(sqlite3.connect(path)) as connection, connection:
        for kind in ("NodesSilent", "NodesHeard", "TrainingBegan"):
            body = {"reason": "r"} | ({"spent": spent} if kind == "TrainingBegan" else {})
            values = (1.0, "job", "e-1", kind, 1, json.dumps(body))
            connection.execute(
                "INSERT INTO records (at, job, run, kind, round, body) VALUES (?, ?, ?, ?, ?, ?)", values
            )
    database = Database.open(path)
    assert [entry.record for entry in database.history("job", "e-1")] == [
        NodesSilent("job", "e-1", "r", 1),
        NodesHeard("job", "e-1", "r", 1),
        TrainingBegan("job", "e-1", "r", 1, Spent()),
    ]
    database.close()


BEFORE_LOGS = 5
"""The last version of the tables of which no report names a log, or who failed with the same error."""

OLD_FAILURE = {"rank": 1, "local_rank": 1, "exit_code": 1, "pid": 7, "message": "", "error": "ValueError: no"}
OLD_FAILURE |= {"last_lines": ["ValueError: no"], "followers": [{"rank": 0, "exit_code": -6}], "age_s": 0.5}
OLD_REPORT = {"round": 1, "nodes": 2, "node": "a", "host": "h", "failure": OLD_FAILURE}
OLD_REPORT |= {"consequences": [{"node": "a", "rank": 0, "exit_code": -6}], "consequences_count": 1}


def test_reports_from_before_they_named_a_log_are_read(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    Database.open(path, migrations.STEPS[:BEFORE_LOGS]).close()
    stopped = {"reason": "r", "planned": False, "condition": "", "spent": fields_of(Spent())}
    stopped |= {"first_failure": {"node": "a", "host": "h", "failure": OLD_FAILURE}}
    ended = {"reason": "r", "charged": True, "restarts_used": 1, "report": OLD_REPORT, "spent": fields_of(Spent())}
    with closing(sqlite3.connect(path)) as connection, connection:
        opened = {"reason": "r", "opener": "a", "spec": fields_of(an_opening().spec)}
        for kind, number, body in (("RunOpened", None, opened), ("RoundStopped", 1, stopped), ("RoundEnded", 1, ended)):
            values = (1.0, "job", "e-1", kind, None, number, json.dumps(body))
            connection.execute(
                "INSERT INTO records (at, job, run, kind, node, round, body) VALUES (?, ?, ?, ?, ?, ?, ?)", values
            )
    database = Database.open(path)
    _, first, second = [entry.record for entry in database.load()]
    database.close()
    assert isinstance(first, RoundStopped)
    assert first.first_failure is not None
    assert (first.first_failure.failure.log, first.first_failure.failure.followers) == ("", (Follower(0, -6),))
    assert first.first_failure.failure.hang is None
    assert isinstance(second, RoundEnded)
    assert second.report is not None
    assert second.report.consequences == (SecondaryFailure("a", 0, -6),)
    assert (second.report.failure.followers, second.report.early) == ((Follower(0, -6),), ())
    assert second.report.failure.hang is None


BEFORE_LAGGARDS = 15
"""The last version of the tables in which no job says when a node is drained for its lateness."""


def test_a_job_from_before_laggards_could_be_drained_drains_none(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    Database.open(path, migrations.STEPS[:BEFORE_LAGGARDS]).close()
    spec = {name: value for name, value in fields_of(an_opening().spec).items() if name != "drain_laggards"}
    body = json.dumps({"reason": "r", "opener": "a", "spec": spec})
    with closing(sqlite3.connect(path)) as connection, connection:
        values = (1.0, "job", "e-1", "RunOpened", body)
        connection.execute("INSERT INTO records (at, job, run, kind, body) VALUES (?, ?, ?, ?, ?)", values)
    database = Database.open(path)
    [entry] = database.load()
    database.close()
    assert isinstance(entry.record, RunOpened)
    assert entry.record.spec == an_opening().spec
    assert entry.record.spec.drain_laggards == 0


SLOW = "it was not out in time"


@pytest.mark.parametrize(
    ("version", "before", "now"),
    [
        (16, {}, None),
        (18, {"begun": None}, None),
        (18, {"begun": {"in_place": 0, "warm": 0, "cold": 2, "why_not": SLOW}}, WorkerStarts(0, 0, 2, SLOW)),
    ],
    ids=["nothing", "nothing to be said", "no reason of cold ones"],
)
def test_what_older_rounds_say_of_how_their_workers_were_begun_is_read(
    tmp_path: Path, version: int, before: dict[str, object], now: WorkerStarts | None
) -> None:
    path = tmp_path / "state.db"
    Database.open(path, migrations.STEPS[:version]).close()
    opened = {"reason": "r", "opener": "a", "spec": fields_of(an_opening().spec)}
    started = {"reason": "r", "steps_awaited": True, "spent": fields_of(Spent()), **before}
    with closing(sqlite3.connect(path)) as connection, connection:
        for kind, number, body in (("RunOpened", None, opened), ("RoundStarted", 3, started)):
            values = (1.0, "job", "e-1", kind, number, json.dumps(body))
            connection.execute(
                "INSERT INTO records (at, job, run, kind, round, body) VALUES (?, ?, ?, ?, ?, ?)", values
            )
    database = Database.open(path)
    _, entry = database.load()
    database.close()
    assert isinstance(entry.record, RoundStarted)
    assert (entry.record.round, entry.record.begun) == (3, now)
