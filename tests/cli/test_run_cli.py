"""The program behind torchrun's command lines: what workers are given, what is logged, and how it ends."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import Coordinator
from tests.support.programs import BIN, Program, clean_environ, run

pytestmark = pytest.mark.slow

REPORT = """
import json, os, sys
report = {"argv": sys.argv, "name": __name__, "file": __file__}
report |= {name: os.environ[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "GROUP_RANK", "TORCHELASTIC_RUN_ID")}
sys.stdout.write(json.dumps(report) + "\\n")
"""


BLOCK_IMPORT = """
import os, signal, sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["BLOCKED"]:
            sys.stdout.write("importing\\n")
            sys.stdout.flush()
            while True: signal.sigtimedwait([], 0.1)

sys.meta_path.insert(0, Blocker())
"""
"""A sitecustomize.py with an import that lasts until somebody interrupts it."""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """Return a script that prints its arguments and environment."""
    path = tmp_path / "report.py"
    path.write_text(REPORT)
    return path


def reported(output: str) -> list[dict[str, Any]]:
    """Return what the workers printed, by rank."""
    found = [json.loads(line[line.index("{") :]) for line in output.splitlines() if '"RANK"' in line]
    return sorted(found, key=lambda environ: int(environ["RANK"]))


def test_a_script_is_run_by_each_worker_of_this_host(script: Path) -> None:
    ended = run(BIN / "nodeclient", "run", "--nproc_per_node=2", "--rdzv_id", "mnist", script, "--lr", "3", "--", "x")
    assert ended.returncode == 0, ended.stderr
    workers = reported(ended.stdout)
    assert [worker["LOCAL_RANK"] for worker in workers] == ["0", "1"]
    assert ended.stderr.count("OMP_NUM_THREADS is not set: each of 2 workers gets ") == 1
    for worker in workers:
        assert worker["argv"] == [str(script), "--lr", "3", "--", "x"]
        assert (worker["name"], worker["WORLD_SIZE"], worker["TORCHELASTIC_RUN_ID"]) == ("__main__", "2", "mnist")


@pytest.mark.parametrize(
    "flags", [("--run-path", "report.py"), ("-m", "report"), ("--no-python", sys.executable, "report.py")]
)
def test_what_is_run_may_be_a_path_a_module_or_a_program(flags: tuple[str, ...], script: Path) -> None:
    ended = subprocess.run(
        [BIN / "nodeclient", "run", *flags, "${local_rank}", "$HOME"],
        cwd=script.parent,
        env=clean_environ(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    [worker] = reported(ended.stdout)
    assert (worker["name"], worker["argv"][1:]) == ("__main__", ["0", "$HOME"])
    assert Path(worker["file"]).name == "report.py"


def test_nodes_that_run_meet_at_the_endpoint_and_have_the_ranks_that_they_wish_for(
    coordinator: Coordinator, script: Path
) -> None:
    at = ("--nnodes", "2", "--rdzv-backend", "etcd-v2", "--rdzv-endpoint", coordinator.endpoint, "--rdzv-id", "wishes")
    with (
        Program(BIN / "nodeclient", "run", *at, "--node-rank", "1", "--topology", "a", script) as first,
        Program(BIN / "nodeclient", "run", *at, "--node-rank", "0", "--topology", "b", script) as second,
    ):
        assert (first.wait(), second.wait()) == (0, 0)
        assert [worker["GROUP_RANK"] for worker in reported(first.output)] == ["1"]
        assert [worker["GROUP_RANK"] for worker in reported(second.output)] == ["0"]
        assert f"no etcd is used, but coordinatord, which is expected at {coordinator.endpoint}" in first.output


def interrupted(tmp_path: Path, module: str, *prefix: str) -> Program:
    """Start a nodeclient, and interrupt it while it imports a module."""
    (tmp_path / "sitecustomize.py").write_text(BLOCK_IMPORT)
    environ = clean_environ(PYTHONPATH=str(tmp_path), BLOCKED=module)
    node = Program(*prefix, BIN / "nodeclient", "run", "--no-python", "true", environ=environ)
    try:
        node.await_line("^importing$")
    except AssertionError:
        node.close()
        raise
    node.signal(signal.SIGINT)
    return node


@pytest.mark.parametrize(
    "module", ["coordinatord.runtime.logs", "nodeclient.config", "asyncio", "nodeclient.shell.node"]
)
def test_ctrl_c_while_modules_are_imported_ends_it_without_a_word(module: str, tmp_path: Path) -> None:
    with interrupted(tmp_path, module) as node:
        assert (node.wait(), node.lines) == (130, ["importing"])


def test_ctrl_c_that_a_shell_has_it_ignore_is_ignored_from_the_start(tmp_path: Path) -> None:
    prefix = ("sh", "-c", "trap '' INT; exec \"$@\"", "sh")
    with interrupted(tmp_path, "coordinatord.runtime.logs", *prefix) as node:
        node.signal(signal.SIGTERM)
        assert (node.wait(), node.lines) == (143, ["importing"])
