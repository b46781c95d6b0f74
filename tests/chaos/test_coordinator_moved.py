"""The host of coordinatord dies, and another one takes over its state directory: nodes find it at the other address."""

import shutil
import time
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from nodeclient.host.ports import PortReservation
from tests.support.cluster import QUICK, Cluster, Coordinator
from tests.support.disks import make_image, mounted_image
from tests.support.lives import MemberState, await_back
from tests.support.programs import BIN, run

pytestmark = [pytest.mark.slow, pytest.mark.long]


def test_what_the_disk_of_a_host_without_power_has_is_enough_elsewhere(tmp_path: Path) -> None:
    disk, copy, here, there = (tmp_path / name for name in ("disk", "copy", "here", "there"))
    make_image(disk)
    with ExitStack() as stack:
        ports = [stack.enter_context(closing(PortReservation())).port for _ in range(2)]
        coord = ",".join(f"127.0.0.1:{port}" for port in ports)
        stack.enter_context(mounted_image(disk, here))
        first = stack.enter_context(Coordinator(*QUICK, port=ports[0], state_dir=here / "state"))
        cluster = stack.enter_context(Cluster(first, "job"))
        nodes = [cluster.join(name, "--nnodes", "2", "--nproc-per-node", "2", coord=coord) for name in "ab"]
        begun = cluster.await_round(4)
        cluster.await_state(state="running")
        before = MemberState.of(first, "job")

        first.process.kill()
        first.wait()
        shutil.copyfile(disk, copy)  # what is not on the disk yet stays behind, as on one that is replicated
        stack.enter_context(mounted_image(copy, there))
        second = stack.enter_context(Coordinator(*QUICK, port=ports[1], state_dir=there / "state"))
        served_at = time.monotonic()
        await_back(second, "job")
        print(f"all nodes were back {time.monotonic() - served_at:.2f} s after it listened")  # noqa: T201 - a figure
        assert MemberState.of(second, "job") == before
        asked = run(BIN / "nodeclient", "status", "--coord", coord, "--insecure", "job")
        assert asked.returncode == 0, asked.stderr
        begun.finish()
        assert [node.wait() for node in nodes] == [0, 0], "the workers of the first round have ended well"
        assert [round_.number for round_ in cluster.rounds()] == [begun.number]
