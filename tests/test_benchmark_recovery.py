"""The recovery benchmark runs, and its parts add up to the whole. Times are not looked at."""

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.programs import TIMEOUT_S

recovery_parts = importlib.import_module("benchmarks.recovery_parts")
"""Not imported as others are, since for mypy it is a script beside other scripts."""
recovery_jobs = importlib.import_module("benchmarks.recovery_jobs")

ROOT = Path(__file__).resolve().parents[1]

LINE = {"mark": "step", "at": 7.5, "step": 1, "pid": 9, "rank": 0, "world_size": 2, "round": "127.0.0.1:4"}


@pytest.mark.slow
@pytest.mark.long
def test_training_goes_on_after_a_kill_and_every_part_of_the_pause_is_known(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    words = f"--repeat 1 --nodes 1 --scenarios worker --sides cold --patience {TIMEOUT_S:.0f}".split()
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
