"""The benchmark of scrapes runs, in a short form, and counts what there is to be seen. Times are not looked at."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.programs import TIMEOUT_S

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.slow
def test_a_coordinator_is_scraped_with_jobs_and_without(tmp_path: Path) -> None:
    report = tmp_path / "scrape.json"
    flags = ("--jobs", "3", "--nodes", "2", "--scrapes", "1", "--repeat", "1", "--json", str(report))
    command = [sys.executable, "-m", "benchmarks.scrape", *flags]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    assert "3 jobs with 6 nodes, 1 run" in done.stdout
    [run] = json.loads(report.read_text())["runs"]
    of_jobs = run["full"]["series"] - run["empty"]["series"]
    assert of_jobs > 0
    assert of_jobs % 3 == 0, "each has as many as the others"
