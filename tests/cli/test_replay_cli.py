"""`coordinatord replay`: each record with its consequence, by itself or at the reader's pace."""

import json
import os
import pty
from pathlib import Path

import pytest

from coordinatord.core.rounds.values.round_history import ROUNDS_RETAINED
from coordinatord.store.database import Database
from coordinatord.store.directory import DATABASE
from tests.support.histories import (
    Life,
    a_join_of,
    a_loss_of,
    a_round_of,
    a_start_of,
    a_stop_of,
    an_end,
    an_end_of,
    an_opening,
    made_at,
)
from tests.support.programs import BIN, TIMEOUT_S, Program, run

pytestmark = pytest.mark.slow


def replay(place: Path, *arguments: str) -> str:
    ended = run(BIN / "coordinatord", "replay", "--state-dir", place, *arguments)
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout


def refused(place: Path, *arguments: str) -> tuple[int, str]:
    ended = run(BIN / "coordinatord", "replay", "--state-dir", place, *arguments)
    assert (ended.stdout, ended.stderr.count("\n")) == ("", 1), ended.stderr
    return ended.returncode, ended.stderr


@pytest.fixture
def database(tmp_path: Path) -> Database:
    """Make an empty database in `tmp_path`."""
    return Database.open(tmp_path / DATABASE)


def one_round(database: Database) -> None:
    """Record a run of one round, which failed."""
    database.append(made_at(100.0, an_opening(), a_join_of("n1")))
    database.append(made_at(100.25, a_round_of("n1")))
    database.append(made_at(101.0, a_start_of(1)))
    database.append(made_at(3700.0, a_stop_of(1, reason="worker of rank 0 failed")))
    database.append(made_at(3700.5, an_end_of(1, charged=True, used=1, reason="worker of rank 0 failed")))


def test_each_record_is_shown_with_the_time_the_reason_and_what_it_led_to(database: Database, tmp_path: Path) -> None:
    one_round(database)
    lines = replay(tmp_path).splitlines()
    assert lines[0] == "job job, run e-1: 6 records"
    printed = [line for line in lines[1:] if line and "=>" not in line]
    assert [line.split("  ")[0] for line in printed[2:5:2]] == ["1970-01-01 00:01:40.250Z", "1970-01-01 01:01:40.000Z"]
    assert [
        line.split(" s  ", 1) for line in (" ".join(line.split()[2:]).replace(" s ", " s  ", 1) for line in printed)
    ] == [
        ["+0.000", "run e-1 opened: opened by node n1"],
        ["+0.000", "node n1 joined: host host-n1"],
        ["+0.250", "round 1 formed: formed of 1"],
        ["+0.750", "round 1 started: all workers are started"],
        ["+3599.000", "round 1 stopped: worker of rank 0 failed"],
        ["+0.500", "round 1 ended: worker of rank 0 failed"],
    ]
    assert [line.partition("=>")[2].strip() for line in lines if "=>" in line] == [
        "forming, no round yet, restarts 0 of 3",
        "forming, no round yet, restarts 0 of 3",
        "starting, round 1 of 1 node, restarts 0 of 3",
        "running, round 1 of 1 node, restarts 0 of 3",
        "stopping, round 1 of 1 node, restarts 0 of 3",
        "forming, round 1 of 0 nodes, restarts 1 of 3",
    ]
    assert "\x1b" not in replay(tmp_path)


def test_for_programs_each_record_is_an_object(database: Database, tmp_path: Path) -> None:
    one_round(database)
    shown = [json.loads(line) for line in replay(tmp_path, "--json").splitlines()]
    assert [record["kind"] for record in shown[:3]] == ["RunOpened", "NodeJoined", "RoundFormed"]
    assert shown[1]["node"] == "n1"
    assert shown[2] == {
        "at": 100.25,
        "kind": "RoundFormed",
        "reason": "formed of 1",
        "node": None,
        "round": 1,
        "led_to": {
            "state": "starting",
            "reason": "formed of 1",
            "round": 1,
            "restarts": {"used": 0, "max": 3, "window_s": None},
        },
    }


def test_of_several_jobs_one_has_to_be_named_and_of_its_runs_the_last_is_shown(
    database: Database, tmp_path: Path
) -> None:
    database.append(made_at(0.0, an_opening("a", "e-1")))
    database.append(made_at(1.0, an_opening("b", "e-2"), a_join_of("n1", "b", "e-2")))
    database.append(made_at(2.0, an_opening("a", "e-3")))
    choices = replay(tmp_path)
    assert choices.splitlines()[1:] == ["  job a, run e-1", "  job b, run e-2", "  job a, run e-3"]
    assert "several jobs; name a job or a run" in choices
    assert replay(tmp_path, "a").startswith("job a, run e-3: 1 record\n")
    assert replay(tmp_path, "e-1").startswith("job a, run e-1: 1 record\n")
    assert replay(tmp_path, "b").startswith("job b, run e-2: 2 records\n")
    code, words = refused(tmp_path, "c")
    assert (code, "there is no job or run 'c'" in words) == (66, True)


def test_that_old_rounds_are_no_longer_kept_is_said(database: Database, tmp_path: Path) -> None:
    for entry in Life(1, rounds=ROUNDS_RETAINED + 2):
        database.append([entry])
    database.append(made_at(9000.0, an_end()))
    lines = replay(tmp_path).splitlines()
    assert lines[1].startswith("(rounds up to ")
    assert lines[-1].partition("=>")[2].startswith("  succeeded, round ")


def test_records_that_contradict_each_other_are_damage(database: Database, tmp_path: Path) -> None:
    database.append(made_at(0.0, an_opening(), a_loss_of("n1")))
    ended = run(BIN / "coordinatord", "replay", "--state-dir", tmp_path)
    assert (ended.returncode, ended.stderr.count("\n")) == (65, 1)
    assert "record 2 of the run does not follow from those before it" in ended.stderr


def test_in_a_terminal_it_waits_for_the_reader(database: Database, tmp_path: Path) -> None:
    one_round(database)
    ours, terminal = pty.openpty()
    command = (BIN / "coordinatord", "replay", "--step", "--state-dir", tmp_path)
    program = Program(*command, stdin=terminal)
    try:
        os.close(terminal)
        program.await_line("Enter for the next one, q to end")
        program.await_line("=>  forming, no round yet")
        os.write(ours, b"\n")
        program.await_line("node n1 joined")
        os.write(ours, b"q\n")
        assert program.wait(TIMEOUT_S) == 0
        assert "formed" not in program.output
    finally:
        os.close(ours)
        program.close()
