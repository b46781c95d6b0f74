"""`nodeclient wait`: it ends when the job does, with the exit code of the job's nodes."""

import re
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from nodeclient.operate import client, job_end
from tests.support.canned_http import a_job, canned, hang_up, in_turn, packed
from tests.support.cluster import Cluster, Coordinator
from tests.support.commands import command_at
from tests.support.programs import BIN, TIMEOUT_S, Program, run

pytestmark = pytest.mark.slow

NEVER_S = 3_600.0

WAIT = (BIN / "nodeclient", "wait", "--coord")


def test_it_ends_over_a_restart_of_the_coordinator_with_the_code_of_the_nodes(
    own_coordinator: Callable[..., Coordinator], tmp_path: Path
) -> None:
    coordinator = own_coordinator(state_dir=tmp_path / "state")
    cluster = Cluster(coordinator, "mnist")
    run("mkfifo", tmp_path / "gate")
    script = f"read line < {tmp_path}/gate; exit 7"
    node = cluster.join("a", "--nnodes", "1", "--nproc-per-node", "1", command=("sh", "-c", script))
    with ExitStack() as stack:
        stack.callback(cluster.close)
        gate = stack.enter_context((tmp_path / "gate").open("w"))
        waiting = stack.enter_context(Program(*WAIT, coordinator.endpoint))
        waiting.await_line("job mnist is [a-z]+, and is waited for")
        coordinator.stop()
        waiting.await_line("trying again")
        own_coordinator(state_dir=tmp_path / "state", port=coordinator.port)
        gate.write("end\n")
        gate.close()
        assert node.wait() == 7
        assert waiting.wait() == 7
        assert waiting.lines[-1].startswith("job mnist failed: ")
        again = run(*WAIT, coordinator.endpoint, "mnist")
        assert (again.returncode, again.stdout) == (7, f"{waiting.lines[-1]}\n"), "it is over already"


@pytest.mark.parametrize(
    ("earlier", "code", "told"),
    [
        (
            [{"run": "r-1", "state": "failed", "reason": "rank 0 failed", "exit_code": 7}],
            7,
            "job mnist failed: rank 0 failed",
        ),
        ([], 69, "nodeclient: job mnist has begun run r-2, and how run r-1 ended is no longer known"),
    ],
)
def test_it_ends_with_the_run_that_it_has_begun_with(earlier: list[dict[str, Any]], code: int, told: str) -> None:
    times = {"step": None, "opened_s": 5.0, "ended_s": 1.0, "goodput": None}
    jobs = [a_job(), a_job(run="r-2", earlier=[run | times for run in earlier])]
    with canned(in_turn(*map(packed, jobs))) as (endpoint, _):
        ended = run(*WAIT, endpoint, "mnist", "--timeout", "60")
    assert ended.returncode == code
    assert (ended.stderr + ended.stdout).splitlines()[-1] == told


def test_a_timeout_ends_it_with_the_code_of_timeout(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(job_end, "GRACE_S", TIMEOUT_S)
    with canned(packed(a_job(state="running"))) as (endpoint, _):
        assert command_at(endpoint, "wait", "mnist", "--timeout", "0") == 124
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines()[-1] == "nodeclient: job mnist has not ended within 0s: it is running"


def test_after_lost_answers_the_timeout_says_how_old_the_state_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(job_end, "GRACE_S", TIMEOUT_S)
    with canned(in_turn(packed(a_job(state="running")), hang_up)) as (endpoint, _):
        assert command_at(endpoint, "wait", "mnist", "--timeout", "0") == 124
    assert re.search(r": it is running, as of \d+s ago$", capsys.readouterr().err)


def test_the_coordinator_is_asked_to_answer_once_the_run_has_ended() -> None:
    """So the answer comes from one that ends with the run, too."""
    with canned(in_turn(packed(a_job()), packed(a_job(exit_code=3, state="failed")))) as (endpoint, asked):
        assert command_at(endpoint, "wait", "mnist") == 3
    assert asked == ["GET /v1/jobs/mnist", "GET /v1/jobs/mnist?wait=5.000"]


@pytest.fixture
def silent() -> Iterator[str]:
    """Yield an address where connections are taken and nothing is said, as by a process that is paused."""
    with socket.create_server(("127.0.0.1", 0)) as paused:
        yield f"127.0.0.1:{paused.getsockname()[1]}"


def test_a_silent_coordinator_does_not_delay_the_timeout(
    silent: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("ANSWER_WITHIN_S", "PROBE_WITHIN_S"):
        monkeypatch.setattr(client, name, NEVER_S)
    monkeypatch.setattr(job_end, "GRACE_S", 0.0)
    assert command_at(silent, "wait", "mnist", "--timeout", "0") == 124
    assert "no answer within 0s" in capsys.readouterr().err
