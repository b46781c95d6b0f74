"""The rendezvous benchmark runs, and what it counts does not grow with the number of nodes. Times are not looked at."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "benchmarks" / "rendezvous.py"

TIMEOUT_S = 60

LONGER_NUMBERS_BYTES = 8
"""By so much may a message to one of 64 nodes be longer than to one of 16: counts and ranks have more digits."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Any]:
    """Run the benchmark once with 16 and once with 64 nodes; it fails by itself if the ranks are wrong."""
    report = tmp_path_factory.mktemp("benchmark") / "report.json"
    command = [sys.executable, str(SCRIPT), "--nodes", "16,64", "--repeat", "1", "--json", str(report)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    assert "64 nodes, 1 run:" in done.stdout
    return {run["nodes"]: run for run in json.loads(report.read_text())["runs"]}


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [16, 64])
def test_a_node_joins_with_few_and_small_messages(runs: dict[int, Any], nodes: int) -> None:
    join = runs[nodes]["join"]
    assert join["messages_from_node"] <= 4, "join, idle, starting, running"
    assert join["messages_to_node"] <= 2, "wait, unless a round is formed before that is sent, and run"
    assert join["bytes_from_node"] + join["bytes_to_node"] < 2_000


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [16, 64])
def test_a_new_round_costs_each_node_one_stop_and_one_run(runs: dict[int, Any], nodes: int) -> None:
    reform = runs[nodes]["reform"]
    assert reform["messages_from_node"] == 4, "stopping, stopped, starting, running"
    assert reform["messages_to_node"] == 2, "stop and run"
    assert reform["bytes_from_node"] + reform["bytes_to_node"] < 1_500


@pytest.mark.slow
@pytest.mark.parametrize("figure", ["bytes_from_node", "bytes_to_node"])
def test_what_a_new_round_costs_a_node_does_not_depend_on_how_many_there_are(runs: dict[int, Any], figure: str) -> None:
    few, many = (runs[nodes]["reform"][figure] for nodes in (16, 64))
    assert 0 <= many - few <= LONGER_NUMBERS_BYTES


@pytest.mark.slow
def test_a_limit_of_open_files_that_is_too_low_is_said() -> None:
    limited = ["sh", "-c", 'ulimit -n 80; exec "$@"', "sh", sys.executable, str(SCRIPT), "--nodes", "64"]
    done = subprocess.run(limited, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 1
    assert "64 nodes need 128 open files, but the hard limit is 80" in done.stderr
