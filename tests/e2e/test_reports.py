"""Why a round failed, as people and schedulers see it: the same root cause at every node."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import Cluster, Node

pytestmark = pytest.mark.slow

TRAIN = """
import os, signal

def load(rank):
    if rank == 1:
        raise ValueError(f"no data for rank {rank}")
    signal.pause()

load(int(os.environ["RANK"]))
"""

BLOCK = re.compile(r"---- round (\d+) failed: ")


def block(node: Node) -> list[str]:
    """Return the report that a node shows, without the time, which differs between clocks."""
    node.await_line("^-+$")  # its end
    start = next((at for at, line in enumerate(node.lines) if BLOCK.match(line)), None)
    assert start is not None
    end = next(at for at, line in enumerate(node.lines) if at > start and re.fullmatch("-+", line))
    shown = node.lines[start : end + 1]
    assert any(re.match(r"when +\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ", line) for line in shown)
    return [line for line in shown if not line.startswith("when ")]


def in_error_file(path: Path) -> dict[str, Any]:
    """Return what a scheduler finds."""
    message = json.loads(path.read_text())["message"]
    assert isinstance(message, dict)
    return message


def test_both_terminals_and_both_error_files_show_the_same_cause(cluster: Cluster, tmp_path: Path) -> None:
    (train := tmp_path / "train.py").write_text(TRAIN)
    files = {name: tmp_path / f"{name}.json" for name in "ab"}
    nodes = [
        cluster.join(
            name,
            *("--nnodes", "2"),
            command=(sys.executable, str(train)),
            prefix=("env", f"TORCHELASTIC_ERROR_FILE={file}"),
        )
        for name, file in files.items()
    ]
    assert [node.wait() for node in nodes] == [1, 1]
    first, second = map(block, nodes)
    assert first == second
    assert re.match(r"---- round 1 failed: rank 1 on ", first[0])
    assert f'      File "{train}", line 9, in <module>' in first
    assert "    ValueError: no data for rank 1" in first
    assert "log          none was kept, see --log-dir" in first
    assert any(line.startswith("how          exit code 1, pid ") for line in first)
    assert any(re.match(r"root cause   rank 1 \(local rank 0\) on host \S+, node [ab]$", line) for line in first)
    written = [in_error_file(file) for file in files.values()]
    for report in written:
        assert report["message"] == "ValueError: no data for rank 1"
        assert report["errorCode"] == 1
        assert report["extraInfo"]["py_callstack"].endswith("ValueError: no data for rank 1")
        assert report["extraInfo"]["rank"] == 1
    assert written[0]["extraInfo"]["node"] == written[1]["extraInfo"]["node"]


BUG = """
import atexit, os, pathlib, signal, time

def wait_for_the_signal():  # the traceback is written by now
    ended.joinpath(rank).touch()
    signal.pause()

ended, rank = pathlib.Path(os.environ["ENDED"]), os.environ["RANK"]
if rank == "2":
    while len(list(ended.iterdir())) < 3:
        time.sleep(0.01)
else:
    atexit.register(wait_for_the_signal)
undefined_name
"""


def test_a_bug_is_told_as_that_of_all_workers_though_one_was_the_first_to_exit(
    cluster: Cluster, tmp_path: Path
) -> None:
    ended, error_file, script = tmp_path / "ended", tmp_path / "error.json", tmp_path / "train.py"
    ended.mkdir()
    script.write_text(BUG)
    nodes = [
        cluster.join(
            name,
            *("--nnodes", "2", "--nproc-per-node", "2"),
            command=(sys.executable, str(script)),
            prefix=("env", f"ENDED={ended}", f"TORCHELASTIC_ERROR_FILE={error_file}"),
        )
        for name in "ab"
    ]
    assert [node.wait() for node in nodes] == [1, 1]
    first, second = map(block, nodes)
    assert first == second
    assert first[0].startswith("---- round 1 failed: all 4 ranks ---")
    assert "    NameError: name 'undefined_name' is not defined" in first
    assert any(line.startswith("root cause   all 4 ranks, with the same error; ") for line in first)
    assert not any(line.startswith("then") for line in first)
    assert in_error_file(error_file)["extraInfo"]["shared_by"] == "all 4 ranks"
    says = "all 4 ranks failed with the same error: NameError: name 'undefined_name' is not defined"
    assert says in cluster.operate("events", cluster.job)
    shown = cluster.operate("status", cluster.job)
    assert f"{says} (restarts used: 0 of 0)" in shown
    assert "last failure: all 4 ranks with the same error, such as rank 2 on node " in shown


def test_a_command_that_cannot_be_started_is_no_worker(cluster: Cluster, tmp_path: Path) -> None:
    script = tmp_path / "train"
    script.write_text("#!/nonexistent/python\n")
    script.chmod(0o755)
    node = cluster.join("a", "--nnodes", "1", command=(str(script),))
    assert node.wait() == 127
    shown = block(node)
    assert re.match(r"---- round 1 failed: no workers on ", shown[0])
    assert any(line.startswith("why ") and str(script) in line for line in shown)
