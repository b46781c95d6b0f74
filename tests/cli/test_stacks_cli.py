"""`nodeclient stacks`: where real workers stand, of a script that never heard of workerlib and of one that did.

With `--dumps` it judges files, and asks nobody.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import Cluster
from tests.support.condensed_dumps import dumps_of
from tests.support.programs import BIN, run, wait_until

pytestmark = pytest.mark.slow

SCRIPT = """
import os, threading
def load():
    threading.Event().wait()
def train():
    threading.Event().wait()
if os.environ["RANK"] == "1":
    load()
train()
"""


def stacks(cluster: Cluster, *arguments: str) -> tuple[int, str]:
    ended = run(BIN / "nodeclient", "stacks", "--coord", cluster.coordinator.endpoint, cluster.job, *arguments)
    return ended.returncode, ended.stdout or ended.stderr


def groups(cluster: Cluster) -> list[dict[str, Any]]:
    _, text = stacks(cluster, "--json")
    return list(json.loads(text)["groups"]) if text.startswith("{") else []


@pytest.mark.parametrize(
    ("flags", "imports"), [(("--preload", "json"), ""), ((), "import workerlib; workerlib.step(0)")]
)
def test_the_workers_that_stand_alike_are_shown_once(cluster: Cluster, flags: tuple[str, ...], imports: str) -> None:
    command = (sys.executable, "-c", imports + SCRIPT)
    for name in "ab":
        cluster.join(name, "--nnodes", "2", "--nproc-per-node", "2", *flags, command=command)

    def is_shown() -> bool:
        return [len(group["workers"]) for group in groups(cluster) if group["threads"]] == [3, 1]

    wait_until("all workers stand", is_shown)
    code, text = stacks(cluster)
    assert code == 0
    first, second = text.split("\n\n")[1:3]
    assert first.startswith("ranks 0, 2-3 on ")
    assert "    train (<string>:" in first
    assert re.match(r"rank 1 on \S+ \(PID \d+\): ", second)
    assert "    load (<string>:" in second
    assert "1 worker at 1 place" in stacks(cluster, "--rank", "1")[1]
    assert "round 1 has no such rank: it has ranks 0 to 3" in stacks(cluster, "--rank", "9")[1]


def test_workers_without_a_stack_are_told_apart_by_the_states_of_their_processes(cluster: Cluster) -> None:
    script = (
        "import os, signal, time; os.environ['RANK'] == '1' and os.kill(os.getpid(), signal.SIGSTOP); time.sleep(99)"
    )
    cluster.join("a", "--nnodes", "1", "--nproc-per-node", "3", command=(sys.executable, "-c", script))

    def ranks() -> list[tuple[list[int], set[str]]]:
        shown = [group["workers"] for group in groups(cluster)]
        return [([each["rank"] for each in workers], {each["state"] for each in workers}) for workers in shown]

    wait_until("one is stopped", lambda: ranks() == [([0, 2], {"sleeping"}), ([1], {"stopped"})])
    assert stacks(cluster)[0] == 69


REAL = Path(__file__).parents[1] / "nodeclient" / "diagnosis" / "gpu_error_1st.json"


def judge(folder: Path, *arguments: str) -> tuple[int, str, str]:
    ended = run(BIN / "nodeclient", "stacks", "--dumps", folder, *arguments)
    return ended.returncode, ended.stdout, ended.stderr


def test_files_of_the_flight_recorder_are_judged_without_a_coordinator(tmp_path: Path) -> None:
    for rank, dump in dumps_of(REAL).items():
        (tmp_path / f"_dump_{rank}").write_text(json.dumps(dump))
    (tmp_path / "_dump_16").write_bytes(b"")
    code, out, err = judge(tmp_path)
    assert (code, err) == (0, f"nodeclient: {tmp_path}/_dump_16: it is empty\n")
    assert out.startswith(
        "mismatched: rank 12 waits in _all_gather_base 42,806 of TENSOR_MODEL_PARALLEL_GROU 41@12 and "
    )
    assert out.count("\n") == 1
    code, out, _ = judge(tmp_path, "--json")
    told = json.loads(out)
    assert (code, set(told), told["kind"], told["ranks"]) == (0, {"kind", "ranks", "sentence"}, "mismatched", [12, 14])


def test_where_nobody_waits_nobody_is_named(tmp_path: Path) -> None:
    _, dump = dumps_of(REAL).popitem()
    (tmp_path / "_dump_0").write_text(json.dumps({**dump, "pg_config": {}, "entries": []}))
    sentence = "no rank waits in a collective, so none is named"
    assert judge(tmp_path) == (1, f"{sentence}\n", "")
    assert json.loads(judge(tmp_path, "--json")[1]) == {"kind": None, "ranks": [], "sentence": sentence}


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        (("--dumps", "/nonexistent"), 65, "nodeclient: /nonexistent: No such file or directory\n"),
        (("--dumps", "/nonexistent", "job"), 64, "--dumps is for all files in a folder: leave out JOB and --rank"),
        ((), 64, "--coord says where coordinatord listens, or --dumps where files of torch's flight recorder are"),
    ],
)
def test_a_wrong_command_line_is_one_line(arguments: tuple[str, ...], code: int, error: str) -> None:
    ended = run(BIN / "nodeclient", "stacks", *arguments)
    assert ended.returncode == code
    assert error in ended.stderr
    assert ended.stderr.count("\n") == 1
