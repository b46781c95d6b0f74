"""`nodeclient report`: the root cause of the last failure, for whoever has not seen the node's output."""

import json
import re
from datetime import datetime, timedelta

import pytest
from msgspec import to_builtins

from tests.support.canned_http import a_job, a_node, canned, packed
from tests.support.cluster import Cluster
from tests.support.job_views import a_round_status
from tests.support.programs import BIN, run

pytestmark = pytest.mark.slow

BROKEN = ("sh", "-c", "echo Traceback >&2; echo 'ValueError: no data in /data' >&2; kill -ABRT $$")


def moment(line: str) -> datetime:
    """Return the time in a line that says when a worker failed."""
    return datetime.fromisoformat(" ".join(line.split()[1:3]))


def test_a_report_is_what_the_nodes_have_shown(cluster: Cluster) -> None:
    node = cluster.join("a", "--nnodes", "1", "--nproc-per-node", "1", command=BROKEN)
    assert node.wait() == 134
    where = ("--coord", cluster.coordinator.endpoint, cluster.job)
    ended = run(BIN / "nodeclient", "report", *where)
    assert (ended.returncode, ended.stderr) == (0, "")
    title, *lines = ended.stdout.splitlines()
    assert re.fullmatch(rf"job {cluster.job} failed in run \S+ \(restarts 0 of 0\)", title)
    first = next(index for index, line in enumerate(node.lines) if line == lines[0])
    [when] = [index for index, line in enumerate(lines) if line.startswith("when ")]
    shown = node.lines[first : first + len(lines)]
    # The node tells how long ago it was, and the coordinator turns that into a time of its own clock.
    assert abs(moment(lines[when]) - moment(shown[when])) <= timedelta(seconds=1), "with how long ago that is"
    assert [*lines[:when], *lines[when + 1 :]] == [*shown[:when], *shown[when + 1 :]]
    assert "    ValueError: no data in /data" in lines
    printed = json.loads(run(BIN / "nodeclient", "report", "--json", *where).stdout)
    assert (printed["how"], printed["exit_code"], printed["last_lines"][-1]) == (
        "killed by SIGABRT",
        134,
        "ValueError: no data in /data",
    )


def test_where_a_node_was_lost_and_no_worker_has_failed_that_is_said() -> None:
    rounds = (
        a_round_status(1, planned=True, ended="node c arrived"),
        a_round_status(2, planned=False, ended="lost node b"),
        a_round_status(3, planned=False, ended=None),
    )
    job = a_job(a_node("a"), rounds=to_builtins(rounds))
    with canned({"GET /v1/jobs/mnist": packed(job)}) as (endpoint, _):
        ended = run(BIN / "nodeclient", "report", "--coord", endpoint, "mnist")
    assert (
        ended.stdout == f"no worker of job mnist has failed by itself in run {job['run']}; round 2 ended: lost node b\n"
    )


def test_where_an_earlier_run_has_failed_the_last_one_is_named() -> None:
    usual = {"reason": "rank 0 failed", "step": None, "opened_s": 5.0, "goodput": None, "exit_code": 7}
    ends = ((41.0, "failed"), (31.0, "failed"), (21.0, "succeeded"))
    earlier = [usual | {"run": f"r-{ended_s:.0f}", "state": state, "ended_s": ended_s} for ended_s, state in ends]
    with canned({"GET /v1/jobs/mnist": packed(a_job(run="r-1", earlier=earlier))}) as (endpoint, _):
        ended = run(BIN / "nodeclient", "report", "--coord", endpoint, "mnist")
    assert ended.stdout == (
        "no worker of job mnist has failed by itself in run r-1; run r-31 failed before it: rank 0 failed;"
        " see nodeclient logs mnist --run r-31\n"
    )
