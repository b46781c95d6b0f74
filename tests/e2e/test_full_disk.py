"""A coordinator whose disk fills up: no decision is made that could not be recorded, and no job is lost to it."""

import urllib.error
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, Coordinator
from tests.support.disks import fill, small_disk
from tests.support.programs import BIN, kill_quietly, run, wait_until

pytestmark = pytest.mark.slow


def health(coordinator: Coordinator) -> tuple[int, str]:
    """Return the status code and the reason that /healthz gives."""
    try:
        return 200, coordinator.get("/healthz")["reason"]
    except urllib.error.HTTPError as error:
        return error.code, error.reason


def test_a_full_disk_stops_decisions_and_not_jobs(tmp_path: Path, own_coordinator: Callable[..., Coordinator]) -> None:
    disk = tmp_path / "disk"
    coordinator = own_coordinator(prefix=small_disk(disk, 1024), state_dir=disk / "state")
    with Cluster(coordinator, "job") as cluster:
        nodes = cluster.join_all("ab", "--nnodes", "2", "--max-restarts", "3")
        before = cluster.await_round(2)
        coordinator.await_job("job", state="running")
        ballast = Path(f"/proc/{coordinator.pid}/root{disk}/ballast")
        fill(ballast)

        kill_quietly(before.workers[0].pid)
        for node in nodes:
            node.await_line("the coordinator is alive but decides nothing, so nothing changes: .*the disk is full")
        wait_until("a complaint", lambda: health(coordinator)[0] == 503)
        shown = run(BIN / "nodeclient", "status", "--coord", coordinator.endpoint)
        assert "nothing can be decided, state directory" in shown.stdout
        late = cluster.join("c", "--nnodes", "2", "--max-restarts", "3")
        late.await_line("not let in by .*: this coordinator cannot record anything")
        assert [round_.number for round_ in cluster.rounds()] == [before.number]
        assert before.workers[1].pid not in {event["pid"] for event in nodes[1].events if event["event"] == "saved"}

        ballast.unlink()
        after = cluster.await_round(2, before)
        assert after.restarts == {1}
        assert after.nodes == before.nodes
        assert health(coordinator) == (200, "")
        late.await_line("spare: round")
        after.finish()
        assert [node.wait() for node in cluster.nodes] == [0, 0, 0]
