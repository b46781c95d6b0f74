"""What real workers find: their arguments, environment and CPUs, and the values of a scheduler."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nodeclient.host.cpus import core_of
from nodeclient.host.devices import Host
from tests.support.cluster import STDLIB_PYTHON, WORKER, Coordinator
from tests.support.programs import BIN, Program, clean_environ, run

pytestmark = pytest.mark.slow

SCRIPT = """
import json, os, sys
facts = {"arguments": sys.argv[1:], "environ": dict(os.environ), "cpus": sorted(os.sched_getaffinity(0))}
os.write(1, (json.dumps(facts) + "\\n").encode())
"""
"""Prints its arguments and environment, in one write."""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """Return the path of the script."""
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def facts(*words: str | Path, **environ: str) -> list[dict[str, Any]]:
    """Run a job of one node; return the lines of its workers, by their ranks."""
    ended = run(BIN / "nodeclient", *words, environ=clean_environ(**environ))
    assert ended.returncode == 0, ended.stderr
    lines = [line[line.index("{") :] for line in ended.stdout.splitlines() if "{" in line]
    return sorted(map(json.loads, lines), key=lambda said: int(said["environ"]["RANK"]))


def test_run_fills_the_macro_in_and_gives_nothing_else(script: Path) -> None:
    said = facts("run", "--nproc-per-node", "2", script, "--cache", "cache/${local_rank}", "$$")
    assert [worker["arguments"] for worker in said] == [["--cache", f"cache/{rank}", "$$"] for rank in (0, 1)]


def test_bound_workers_share_no_core(script: Path) -> None:
    cores = {core_of(cpu, Host()) for cpu in os.sched_getaffinity(0)}
    if len(cores) < 2:
        pytest.skip("needs two cores")
    first, second = facts("run", "--nproc-per-node", "2", "--numa-binding", "exclusive", script)
    assert not set(first["cpus"]) & set(second["cpus"])
    assert set(first["cpus"]) | set(second["cpus"]) <= os.sched_getaffinity(0)


def test_what_is_decided_for_the_workers_is_said_once(script: Path) -> None:
    environ = {name: value for name, value in clean_environ().items() if name != "OMP_NUM_THREADS"}
    ended = run(BIN / "nodeclient", "run", "--nproc-per-node", "2", script, environ=environ)
    [line] = [
        line for line in ended.stderr.splitlines() if "OMP_NUM_THREADS is not set: each of 2 workers gets" in line
    ]
    assert "divided by 2" in line


@pytest.fixture
def tasks(coordinator: Coordinator) -> Iterator[list[Program]]:
    """Start what `srun --nodes 2 nodeclient join` starts, the second node first."""
    step = {"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NUM_TASKS": "2"}
    command = (BIN / "nodeclient", "join", "--coord", coordinator.endpoint, "--", *STDLIB_PYTHON, WORKER)
    started = [Program(*command, environ=clean_environ(**step, SLURM_NODEID=str(node))) for node in (1, 0)]
    yield started
    for program in started:
        program.close()


def test_under_slurm_the_job_is_the_step_and_the_ranks_are_slurm_s(
    coordinator: Coordinator, tasks: list[Program]
) -> None:
    for node, task in zip((1, 0), tasks, strict=True):
        task.await_line("job id 77.0 from SLURM_JOB_ID, SLURM_STEP_ID")
        assert json.loads(task.await_line('^{"event": "started".*')[0])["group_rank"] == node
    assert coordinator.await_job("77.0", state="running")["world_size"] == 2
    assert [task.stop() for task in tasks] == [143, 143]
