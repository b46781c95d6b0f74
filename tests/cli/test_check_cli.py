"""The built-in health check in real programs: `nodeclient check`, and a node whose GPU needs a reset."""

import json
import re
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from nodeclient.core.host_tests import EXIT_CODES
from tests.support.canned_http import Answer, canned
from tests.support.cluster import Coordinator, cluster_of_its_own
from tests.support.machines import compile_c
from tests.support.programs import BIN, clean_environ, run, wait_until
from tests.support.sick_gpus import NVML

pytestmark = pytest.mark.slow

RESET = "GPU GPU-1 at 0001:3b:03.0 needs a reset: nvidia-smi --gpu-reset"


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """Make the folder of a library with NVML's functions."""
    compile_c(NVML, "-shared", "-fPIC", "-o", tmp_path / "libnvidia-ml.so.1")
    return tmp_path


def test_a_finding_is_printed_with_its_remedy_and_decides_the_exit_code(library: Path) -> None:
    environ = clean_environ(LD_LIBRARY_PATH=str(library), TEST_RECOVERY="1")
    ended = run(BIN / "nodeclient", "check", environ=environ)
    assert (ended.returncode, ended.stderr) == (2, "")
    assert f"bad: {RESET}" in ended.stdout.splitlines()
    ended = run(BIN / "nodeclient", "check", "--json", environ=environ)
    answer = json.loads(ended.stdout)
    assert (ended.returncode, answer["result"]) == (2, "bad")
    assert {"result": "bad", "text": RESET} in answer["findings"]


def test_the_clock_and_the_way_are_those_to_the_coordinator(coordinator: Coordinator) -> None:
    ended = run(BIN / "nodeclient", "check", "--json", "--coord", coordinator.endpoint)
    answer = json.loads(ended.stdout)
    assert ended.returncode == EXIT_CODES[answer["result"]]
    assert not [text for text in answer["cannot_be_checked"] if text.startswith("the clock")]
    ended = run(BIN / "nodeclient", "check", "--coord", "127.0.0.1:1")
    assert "cannot be checked: the clock (127.0.0.1:1: Connection refused" in ended.stdout


def dated(date: str) -> Answer:
    """Answer at this date."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response_only(200)
        handler.send_header("Date", date)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    return answer


@pytest.mark.parametrize(
    ("date", "line"),
    [
        ("Fri, 01 Jan 2100 00:00:00 GMT", r"warning: the clock of this host is [\d,]+ s behind the coordinator's: "),
        ("Fri, 01 Jan 2021 00:00:00 GMT", r"warning: the clock of this host is [\d,]+ s ahead of the coordinator's: "),
        ("soon", r"cannot be checked: the clock \(.* does not tell the time as HTTP servers do, but 'soon'"),
    ],
)
def test_a_clock_that_differs_is_a_warning(date: str, line: str) -> None:
    with canned(dated(date)) as (endpoint, _):
        ended = run(BIN / "nodeclient", "check", "--coord", endpoint)
    assert re.search(f"^{line}", ended.stdout, re.MULTILINE)


def test_a_directory_that_is_named_needs_space(tmp_path: Path) -> None:
    ended = run(BIN / "nodeclient", "check", "--json", tmp_path, "/proc/self")
    assert "the space of /proc/self (directory 2) (its file system has no size)" in ended.stdout
    lines = run(BIN / "nodeclient", "check", tmp_path / "logs", tmp_path / "typo" / "logs").stdout.splitlines()
    assert f"{tmp_path}/logs (directory 1) does not exist yet: join makes it" in lines
    typo = f"warning: {tmp_path}/typo/logs (directory 2) does not exist, nor does the directory around it: "
    assert any(line.startswith(typo) for line in lines)
    assert any(re.fullmatch(rf"{tmp_path}/logs: \S+ [MG]iB of \S+ [MG]iB free on .+ \(.+\)", line) for line in lines)


@pytest.mark.parametrize("listed", ["", "-1"])
def test_a_host_that_shows_no_gpu_is_said_to_have_none_and_why(library: Path, listed: str) -> None:
    environ = clean_environ(LD_LIBRARY_PATH=str(library), CUDA_VISIBLE_DEVICES=listed)
    said = f"no GPU is seen on this host (the environment says CUDA_VISIBLE_DEVICES={listed!r})"
    assert said in run(BIN / "nodeclient", "check", environ=environ).stdout.splitlines()


def test_a_node_whose_gpu_needs_a_reset_is_quarantined(library: Path) -> None:
    environ = ("-u", "NODECLIENT_NO_BUILTIN_CHECK", f"LD_LIBRARY_PATH={library}", "TEST_RECOVERY=1")
    with cluster_of_its_own("sick") as cluster:
        node = cluster.join("a", "--nnodes", "1:", "--nproc-per-node", "1", prefix=("env", *environ))
        node.await_line(f"the health check of this host failed: built-in check: {RESET}")
        [host] = wait_until("its quarantine", lambda: cluster.coordinator.get("/v1/jobs")["charged"])
        assert RESET in host["quarantined"]
