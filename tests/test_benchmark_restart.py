"""The benchmark of a start runs, in a short form, and a start costs what it should beside one with nothing to read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.programs import TIMEOUT_S

ROOT = Path(__file__).resolve().parents[1]

BEYOND_EMPTY_MOST = 0.5
"""The processor time of a start on 60 jobs that are over, as a part of an empty one's: ten times what was measured."""


@pytest.mark.slow
def test_a_start_beside_jobs_that_are_over_costs_little_more_than_an_empty_one(tmp_path: Path) -> None:
    report = tmp_path / "restart.json"
    flags = ("--nodes", "40", "--over", "60", "--over-nodes", "8", "--rounds", "3")
    command = [sys.executable, "-m", "benchmarks.restart", *flags, "--repeat", "1", "--json", str(report)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    assert "40 nodes, 60 jobs of 8 nodes and 3 rounds that are over, 1 run" in done.stdout
    [run] = json.loads(report.read_text())["runs"]
    # Each has its opening, joins, successes and end, and of each round its formation, start, stop and end.
    assert run["records"] == 60 * (2 + 2 * 8 + 4 * 3 - 2) + 43
    beyond = run["restored"]["cpu_s"] - run["empty"]["cpu_s"]
    assert beyond < BEYOND_EMPTY_MOST * run["empty"]["cpu_s"]
