"""The recovery benchmark runs, and its parts add up to the whole. Times are not looked at."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.programs import TIMEOUT_S

recovery_parts = importlib.import_module("benchmarks.recovery_parts")
"""Not imported as others are, since for mypy it is a script beside other scripts."""
rival_jobs = importlib.import_module("benchmarks.rival_jobs")
kept = importlib.import_module("benchmarks.kept")
recovery_jobs = importlib.import_module("benchmarks.recovery_jobs")
summary = importlib.import_module("benchmarks.summary")

ROOT = Path(__file__).resolve().parents[1]

LINE = {"mark": "step", "at": 7.5, "step": 1, "pid": 9, "rank": 0, "world_size": 2, "round": "127.0.0.1:4"}


def a_mark(mark: str, at: float, rank: int, step: int = 0) -> Any:
    return recovery_parts.Mark(mark, at, step, 9 + rank, rank, 2, "127.0.0.1:4")


def test_marks_are_read_but_not_one_that_is_still_being_written() -> None:
    line = json.dumps(LINE)
    assert recovery_parts.parse(f"{line}\n{line[:20]}") == [recovery_parts.Mark(**LINE)]


def test_a_step_is_done_when_the_last_rank_has_done_it() -> None:
    marks = [a_mark("step", 1.0, 0, 1), a_mark("step", 1.5, 1, 1), a_mark("step", 2.0, 0, 2)]
    assert recovery_parts.steps(marks) == [1.5]


def test_the_slowest_rank_says_when_a_part_was_over() -> None:
    kinds = ("begun", "imported", "connected", "step")
    marks = [a_mark(kind, 10.0 * index + rank, rank, 1) for index, kind in enumerate(kinds) for rank in (0, 1)]
    assert recovery_parts.worker_parts(marks) == (1.0, 11.0, 21.0, 31.0)


def test_parts_add_up_even_if_one_was_over_before_it_began() -> None:
    divided = recovery_parts.parts(("detect", "stop", "rendezvous"), 10.0, 9.5, 12.0, 13.5)
    assert divided == {"detect": 0.0, "stop": 2.0, "rendezvous": 1.5}


@pytest.mark.slow
def test_training_goes_on_after_a_kill_and_every_part_of_the_pause_is_known(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    words = (
        "--repeat",
        "1",
        "--nodes",
        "1",
        "--scenarios",
        "worker",
        "--sides",
        "cold",
        "--patience",
        f"{TIMEOUT_S:.0f}",
    )
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.recovery", *words, "--json", str(report)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=2 * TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    [run] = json.loads(report.read_text())["runs"]
    assert (run["scenario"], run["side"], run["why_not"]) == ("worker", "cold", "")
    assert tuple(run["parts"]) == recovery_parts.STOPPED_PARTS
    assert sum(run["parts"].values()) == pytest.approx(run["seconds"])
    assert all(run["parts"][part] > 0 for part in ("import", "process group", "first step"))
    shown = f"{run['seconds']:.2f}"
    assert re.search(rf"^  worker killed -9 +{shown}$", done.stdout, re.MULTILINE)


def test_a_project_that_is_not_installed_is_left_out_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ft_launcher").touch()
    assert rival_jobs.without_missing(["torchrun", "torchft", "nvrx", "kept"], tmp_path) == ["torchrun", "nvrx", "kept"]
    program = tmp_path / "torchft_lighthouse"
    said = f"torchft is left out. torchft-nightly is not installed: there is no {program}; see --rivals\n"
    assert capsys.readouterr().out == said


def test_what_another_project_cannot_train_is_not_played() -> None:
    sharded = {name: rival.training("sharded", "10", "folder") for name, rival in rival_jobs.RIVALS.items()}
    assert sharded["torchft"] is None
    assert sharded["dlrover"] is None
    assert sharded["nvrx"][1:] == ("dcp-sharded", "10", "folder")


def test_a_pause_of_some_ranks_is_told_from_that_of_all() -> None:
    runs = [kept.Run("ddp10", "torchft", 1.5, 0, 6.25), kept.Run("ddp10", "torchft", 1.0, 0, 6.25)]
    assert kept.cell(runs, "torchft") == "1.25 (1.00 - 1.50) (0 redone), all 6.25"
    assert kept.cell([kept.Run("ddp10", "kept", 0.5, 0)], "kept") == "0.50 (0 redone)"
    assert kept.cell([*runs, kept.Run("ddp10", "torchft", None, 0)], "torchft") == "not within 120 s"


def test_the_summary_has_a_column_for_each_side_and_a_row_for_each_scenario() -> None:
    runs = [
        {"scenario": "ddp10", "side": "torchft", "seconds": 1.5, "redone": 0, "all_again": 6.25},
        {"scenario": "ddp10", "side": "kept", "seconds": 0.5, "redone": 0, "all_again": None},
        {"scenario": "fewer", "side": "kept", "seconds": None, "redone": 0, "all_again": None},
    ]
    assert summary.kept(runs).splitlines() == [
        "| seconds without a new step (steps redone) | torchft | kept |",
        "|---|---|---|",
        "| ddp10 | 1.50 (0), all 6.25 | 0.50 (0) |",
        "| fewer | - | never |",
    ]


def test_a_round_of_before_is_not_taken_for_the_next_one(tmp_path: Path) -> None:
    job = recovery_jobs.Job("2:3", tmp_path, None)
    try:
        done = LINE | {"pid": os.getpid()}
        lines = [done | {"round": round_, "rank": rank} for round_ in ("first", "next") for rank in (0, 1)]
        (tmp_path / "marks").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        assert job.await_steps(1, 2) == "first"
        assert job.await_steps(1, 2, without={"first"}) == "next"
        assert job.await_steps(1, 2, without={"first", "next"}) == ""
    finally:
        job.close()
