"""`nodeclient preflight`: it names a slow node among spares, and its exit code tells whether anything is suspect."""

import json
import sys
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from tests.support.canned_http import Answer, a_job, canned, hang_up, packed
from tests.support.cluster import WORKER, Cluster, Coordinator
from tests.support.pair_faults import Fault, interpreter
from tests.support.programs import BIN, run, wait_until

pytestmark = pytest.mark.slow

PREFLIGHT = (BIN / "nodeclient", "preflight", "--coord")

ASK = "POST /v1/jobs/mnist/preflight"


def a_node(name: str, verdict: str = "good", text: str = "is good", **facts: Any) -> dict[str, Any]:
    """Return what was found about a node."""
    return {"node": name, "host": name, "verdict": verdict, "gflops": 50.0, "mb_s": 1234.5, "text": text, **facts}


def a_preflight(*nodes: dict[str, Any], **facts: Any) -> dict[str, Any]:
    """Return a preflight as a coordinatord shows it."""
    return {"reason": "asked for by alice", "is_over": True, "stopped": "", "nodes": nodes, "bad_links": [], **facts}


def shown(*answers: dict[str, Any] | Answer | None, flags: tuple[str, ...] = ()) -> tuple[int, list[str], str]:
    """Ask for a preflight that is shown so, one request after the other; return exit code, lines and last error."""
    left = iter(answers)

    def answer(handler: BaseHTTPRequestHandler) -> None:
        if handler.command == "POST":
            packed({"done": True, "message": "2 nodes of job mnist are tested in pairs"})(handler)
            return
        reply = next(left)
        (reply if callable(reply) else packed(a_job(preflight=reply)))(handler)

    with canned(answer) as (endpoint, asked):
        ended = run(*PREFLIGHT, endpoint, "mnist", *flags)
        assert asked[0] == ASK
    return ended.returncode, ended.stdout.splitlines(), ended.stderr.splitlines()[-1]


def test_it_waits_for_the_end_and_prints_a_table() -> None:
    code, lines, said = shown(a_preflight(is_over=False), a_preflight(a_node("n1"), a_node("n2")))
    assert (code, said) == (0, "nodeclient: 2 nodes of job mnist are tested in pairs")
    assert lines == [
        "NODE  HOST  GFLOP/S  MB/S   VERDICT",
        "n1    n1    50       1,234  good",
        "n2    n2    50       1,234  good",
        "2 nodes: all are good",
    ]


def test_lost_answers_do_not_end_the_wait() -> None:
    code, lines, said = shown(hang_up, a_preflight(is_over=False), hang_up, a_preflight(a_node("n1")))
    assert (code, lines[-1]) == (0, "1 node: all are good")
    assert said.endswith("; trying again")


def test_suspect_nodes_and_links_are_named_in_a_sentence() -> None:
    slow = a_node("n1", "slow", "computes 5 GFLOP/s, and 50 are usual", gflops=5.0)
    silent = a_node("n2", "no answer", "gave no answer", gflops=None, mb_s=None)
    code, lines, _ = shown(a_preflight(slow, silent, bad_links=[["n3", "n4"]]))
    assert code == 1
    assert lines[2:] == [
        "n2    n2    -        -      no answer",
        "n1 computes 5 GFLOP/s, and 50 are usual; n2 gave no answer; the link between n3 and n4 is bad",
    ]


def test_json_is_what_the_coordinator_shows() -> None:
    found = a_preflight(a_node("n1"), a_node("n2", "slow"))
    code, [line], _ = shown(found, flags=("--json",))
    assert code == 1
    assert json.loads(line) == json.loads(json.dumps(found))


@pytest.mark.parametrize(
    ("preflight", "said"),
    [
        (
            a_preflight(a_node("n1", "no answer", "gave no answer"), stopped="round 2 was formed of its nodes"),
            "nodeclient: the preflight of job mnist ended early: round 2 was formed of its nodes",
        ),
        (None, "nodeclient: the preflight of job mnist is gone: the coordinator, or the job, was started again"),
    ],
    ids=["round", "restart"],
)
def test_without_findings_it_may_be_asked_for_again(preflight: dict[str, Any] | None, said: str) -> None:
    assert shown(preflight) == (75, [], said)


def test_a_slow_node_of_four_is_named(own_coordinator: Callable[..., Coordinator], tmp_path: Path) -> None:
    coordinator = own_coordinator("--pair-timeout", "120")
    with Cluster(coordinator, "mnist") as cluster:
        cluster.join("a", "--nnodes", "1", "--nproc-per-node", "1")
        cluster.await_round(1)
        for name, python in dict.fromkeys("bcd", sys.executable).items() | {("e", interpreter(tmp_path, Fault.SLOW))}:
            cluster.join(name, "--nnodes", "1", "--nproc-per-node", "1", command=(str(python), "-S", "-E", str(WORKER)))
        wait_until("four spares", lambda: cluster.await_state()["spares"] == 4)
        ended = run(*PREFLIGHT, coordinator.endpoint, "mnist", "--json")
        assert ended.returncode == 1, ended.stderr
        nodes = {node["node"]: node for node in json.loads(ended.stdout)["nodes"]}
        assert set(nodes) == set("bcde")
        # How fast links are beside other tests says nothing about the nodes.
        faults = {name: node["verdict"] for name, node in nodes.items() if node["verdict"] in {"slow", "wrong"}}
        assert faults == {"e": "slow"}
        for node in nodes.values():
            assert node["gflops"] > 0
            assert node["mb_s"] > 0
        assert cluster.await_state()["round"] == 1, "the round goes on"
