"""`nodeclient status`: the shape that programs build on, the table for people, and what is said in vain."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import msgpack
import pytest

from tests.support.cluster import Cluster, Coordinator
from tests.support.programs import BIN, Program, run

pytestmark = pytest.mark.slow


def status(coordinator: Coordinator, *arguments: str) -> str:
    ended = run(BIN / "nodeclient", "status", "--coord", coordinator.endpoint, *arguments)
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout


def test_status_for_programs_has_the_promised_shape(cluster: Cluster) -> None:
    cluster.join("a", "--nnodes", "1", "--nproc-per-node", "2", "--max-restarts", "3")
    cluster.await_round(2)
    cluster.await_state(state="running")
    shown = json.loads(status(cluster.coordinator, cluster.job, "--json"))
    assert shown.keys() == {"jobs"}
    [job] = shown["jobs"]
    assert job.keys() == {"job", "run", "state", "reason", "round", "world_size", "restarts", "failure", "nodes"}
    assert (job["job"], job["state"], job["round"], job["world_size"]) == (cluster.job, "running", 1, 2)
    assert job["restarts"] == {"used": 0, "max": 3}
    [node] = job["nodes"]
    expected = {"node", "host", "address", "state", "reason", "group_rank", "ranks", "last_seen_s"}
    assert node.keys() == expected
    assert (node["node"], node["group_rank"], node["ranks"], node["state"]) == ("a", 0, [0, 1], "running")
    assert isinstance(node["last_seen_s"], float)
    every = json.loads(status(cluster.coordinator, "--json"))["jobs"]
    assert job["run"] in [one["run"] for one in every]
    served = cluster.coordinator.job(cluster.job)
    assert served is not None
    assert served.keys() == job.keys()


def test_status_tells_the_first_cause_of_the_last_failure(cluster: Cluster) -> None:
    broken = ("sh", "-c", "exit $((3 + LOCAL_RANK))")
    node = cluster.join("a", "--nnodes", "1", command=broken)
    assert node.wait() == 3
    text = status(cluster.coordinator, cluster.job)
    assert "\nlast failure: rank 0 on node a (host " in text
    assert "s ago: exit code 3\n" in text
    [job] = json.loads(status(cluster.coordinator, cluster.job, "--json"))["jobs"]
    assert (job["failure"]["node"], job["failure"]["rank"], job["failure"]["exit_code"]) == ("a", 0, 3)


def test_status_for_people_is_a_table(cluster: Cluster) -> None:
    cluster.join("node-with-a-long-name", "--nnodes", "1", "--nproc-per-node", "2")
    cluster.await_round(2)
    cluster.await_state(state="running")
    title, facts, header, row = status(cluster.coordinator, cluster.job).splitlines()
    assert title.startswith(f"job {cluster.job}  running: all workers are started")
    assert facts.endswith("round 1, world size 2, restarts 0 of 0")
    assert header.split() == ["NODE", "HOST", "ADDRESS", "STATE", "RANKS", "SEEN", "REASON"]
    assert row.split()[0] == "node-with-a-long-name"
    assert "0-1" in row
    assert header.index("ADDRESS") == row.index("127.0.0.1")


def test_status_without_jobs_says_so(own_coordinator: Callable[..., Coordinator]) -> None:
    coordinator = own_coordinator()
    assert status(coordinator) == "no jobs\n"
    assert json.loads(status(coordinator, "--json")) == {"jobs": []}


@pytest.mark.parametrize("job", ["team/mnist", "..", "%2F", "ä"])
def test_status_finds_a_job_of_any_name(coordinator: Coordinator, cluster: Cluster, job: str) -> None:
    cluster.job = job
    cluster.join("a", "--nnodes", "1")
    cluster.await_round(1)
    assert [one["job"] for one in json.loads(status(coordinator, job, "--json"))["jobs"]] == [job]


def test_status_of_an_unknown_job_says_so(coordinator: Coordinator) -> None:
    ended = run(BIN / "nodeclient", "status", "--coord", coordinator.endpoint, "nosuch")
    assert (ended.returncode, ended.stdout) == (69, "")
    assert ended.stderr == "nodeclient: the coordinator knows no job 'nosuch'\n"


def test_status_without_a_coordinator_says_so() -> None:
    ended = run(BIN / "nodeclient", "status", "--coord", "127.0.0.1:1,no-such-host.invalid:2")
    assert (ended.returncode, ended.stdout) == (69, "")
    assert ended.stderr.count("\n") == 1
    assert "127.0.0.1:1: " in ended.stderr
    assert "no-such-host.invalid:2: " in ended.stderr


@contextmanager
def answering(body: bytes) -> Iterator[str]:
    """Serve this to whatever is asked; yield where."""

    class Answers(BaseHTTPRequestHandler):
        """Some other web server."""

        def do_GET(self) -> None:
            """Answer."""
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.05])
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("arguments", [(), ("mnist",)])
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        json.dumps({"jobs": [1]}).encode(),
        msgpack.packb({"jobs": [1]}),
        msgpack.packb({"jobs": 1}),
        msgpack.packb([1]),
        msgpack.packb({"jobs": [{"job": "mnist"}]}),
        msgpack.packb({"jobs": [{"job": "mnist", "restarts": 3}]}),
    ],
    ids=repr,
)
def test_an_answer_that_is_no_list_of_jobs_is_said_in_one_line(body: bytes, arguments: tuple[str, ...]) -> None:
    with answering(body) as endpoint:
        ended = run(BIN / "nodeclient", "status", "--coord", endpoint, *arguments)
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (69, "", 1), ended.stderr
    assert ended.stderr.startswith("nodeclient: ")
    assert "coordinatord" in ended.stderr


def test_status_whose_reader_has_gone_ends_without_a_traceback(coordinator: Coordinator) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    program = Program(BIN / "nodeclient", "status", "--coord", coordinator.endpoint, stdout=writing, stderr=-1)
    try:
        errors = program.process.stderr
        assert errors is not None
        assert program.wait() != 0
        with errors:
            assert "Traceback" not in errors.read()
    finally:
        os.close(writing)
        program.close()
