"""The benchmarks of hangs run, in a short form: what a thousand workers send is counted, and real ones are named."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.programs import TIMEOUT_S

hangs = importlib.import_module("benchmarks.hangs")

ROOT = Path(__file__).resolve().parents[1]

BYTES_MOST = 1_000_000
"""The most that the workers of a job of a thousand may send at once."""

STEPS_MOST = 50
"""A worker that is slow is to be named within so many steps."""


def run(benchmark: str, report: Path, *flags: str) -> list[Any]:
    command = [sys.executable, "-m", f"benchmarks.{benchmark}", "--repeat", "1", "--json", str(report), *flags]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=4 * TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    runs: list[Any] = json.loads(report.read_text())["runs"]
    return runs


@pytest.mark.parametrize(
    ("sentence", "answer"),
    [
        ("rank 2 on node n1 stands in get (train.py:41) for 12 s; the 3 others wait in all_reduce 7", "right"),
        ("rank 2 on node n1, which computes in <lambda> (train.py:97)", "right"),
        ("rank 2 on node n1, which waits for a disk in save (train.py:70)", "right"),
        ("rank 2 on node n12 stands in get (train.py:41) for 12 s; rank 0 waits in all_reduce 7", "wrong"),
        ("rank 1 on node n0, which computes in evaluate (train.py:50)", "wrong"),
        ("rank 0 on node n0 waits in barrier 7 and rank 2 on node n1 in all_reduce 7, for 12 s", "wrong"),
        ("ranks 1, 2 on nodes n0, n1 stand in get (train.py:41) for 12 s; rank 0 waits in all_reduce 7", "wrong"),
        ("all 4 workers wait in all_reduce 7 for 12 s, and it completes for none", "nobody"),
    ],
)
def test_a_sentence_is_right_if_it_names_the_culprit_alone(sentence: str, answer: str) -> None:
    assert hangs.judge(sentence, "rank 2 on node n1") == answer


@pytest.mark.slow
def test_a_thousand_workers_are_asked_with_less_than_a_megabyte(tmp_path: Path) -> None:
    [found] = run("stacks", tmp_path / "stacks.json", "--ranks", "1000")
    assert found["sentence"].startswith("rank 333 on node ")
    assert found["sentence"].endswith("the 999 others wait in all_reduce 120,417")
    assert 0 < max(found["bytes_of_look"], found["bytes_from_nodes"]) < BYTES_MOST


@pytest.mark.slow
@pytest.mark.long
def test_a_worker_is_named_that_cannot_answer_since_it_waits_for_a_disk(tmp_path: Path) -> None:
    report = tmp_path / "hangs.json"
    [found] = run("hangs", report, "--kinds", "disk", "--layouts", "1x3")
    assert found["answer"] == "right", found["sentence"]
    assert run("hangs", report, "--kinds", "disk", "--layouts", "1x3", "--resume") == [found], "there is none to add"


@pytest.mark.slow
@pytest.mark.long
def test_a_worker_that_is_slow_in_backward_is_named(tmp_path: Path) -> None:
    [found] = run("laggards", tmp_path / "laggards.json", "--layouts", "3x1", "--part", "2")
    assert found["right"], found["sentence"]
    assert found["late_s"] > 0.1
    assert found["steps"] <= STEPS_MOST
