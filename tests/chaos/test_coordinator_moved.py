"""The host of coordinatord dies, and another one takes over its state directory: nodes find it at the other address."""

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from nodeclient.host.ports import PortReservation
from tests.support.cluster import QUICK, Cluster, Coordinator
from tests.support.disks import make_image, mounted_image
from tests.support.lives import MemberState, await_back
from tests.support.programs import BIN, run

pytestmark = pytest.mark.slow


@pytest.fixture
def ports() -> Iterator[tuple[int, int]]:
    """Hold the ports of two hosts."""
    first, second = PortReservation(), PortReservation()
    yield first.port, second.port
    first.close()
    second.close()


def go_on_elsewhere(ports: tuple[int, int], here: Path, there: Path, move: Callable[[], object]) -> None:
    """Kill a coordinator that keeps its state `here`, move that, and start another one that has it `there`."""
    coord = ",".join(f"127.0.0.1:{port}" for port in ports)
    first = Coordinator(*QUICK, port=ports[0], state_dir=here)
    cluster = Cluster(first, "job")
    nodes = [cluster.join(name, "--nnodes", "2", "--nproc-per-node", "2", coord=coord) for name in "ab"]
    second = None
    try:
        begun = cluster.await_round(4)
        cluster.await_state(state="running")
        before = MemberState.of(first, "job")
        first.process.kill()
        first.wait()
        move()
        second = Coordinator(*QUICK, port=ports[1], state_dir=there)
        served_at = time.monotonic()
        await_back(second, "job")
        print(f"all nodes were back {time.monotonic() - served_at:.2f} s after it listened")  # noqa: T201 - a figure
        assert MemberState.of(second, "job") == before
        asked = run(BIN / "nodeclient", "status", "--coord", coord, "--insecure", "job")
        assert asked.returncode == 0, asked.stderr
        begun.finish()
        assert [node.wait() for node in nodes] == [0, 0], "the workers of the first round have ended well"
        assert [round_.number for round_ in cluster.rounds()] == [begun.number]
    finally:
        cluster.close()
        for coordinator in (first, second):
            if coordinator is not None:
                coordinator.close()


@pytest.mark.long
def test_nodes_go_on_with_a_coordinator_that_is_started_elsewhere(ports: tuple[int, int], tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    go_on_elsewhere(ports, here, there, lambda: shutil.move(here, there))


@pytest.mark.long
def test_what_the_disk_of_a_host_without_power_has_is_enough(ports: tuple[int, int], tmp_path: Path) -> None:
    disk, copy, here, there = (tmp_path / name for name in ("disk", "copy", "here", "there"))
    with ExitStack() as stack:
        make_image(disk)
        stack.enter_context(mounted_image(disk, here))

        def move() -> None:
            shutil.copyfile(disk, copy)  # what is not on the disk yet stays behind, as on one that is replicated
            stack.enter_context(mounted_image(copy, there))

        go_on_elsewhere(ports, here / "state", there / "state", move)
