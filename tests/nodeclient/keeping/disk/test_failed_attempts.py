"""What an attempt to write a step leaves on the disk when it fails: nothing that takes the room of the next one."""

import os
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace

from coordinatord.protocol.kept_state import PersistState
from nodeclient.core.effects import Persist
from nodeclient.keeping.disk.step_folder import find_whole
from tests.nodeclient.keeping.disk.writing import BIG, SMALL, an_order, train, write
from tests.nodeclient.keeping.stage import RUN, Hanging, KeepingNode, keeping_nodes
from tests.support.kept_places import small_bytes

pytestmark = pytest.mark.slow

OTHERS = 300_000
"""What others have written to a disk of a megabyte: it has room for one big state of these tests, not for two."""


def files(disk: Path) -> list[str]:
    return sorted(path.name for path in disk.glob("job/*/*"))


def folders_with_files(disk: Path) -> set[str]:
    return {path.parent.name for path in disk.glob("job/*/*")}


def attempts(disk: Path) -> list[str]:
    return sorted(path.name.rpartition("-")[2] for path in disk.glob("job/step-*"))


async def test_a_full_disk_is_left_without_the_files_that_were_whole(tmp_path: Path, small_disk: Path) -> None:
    (small_disk / "others").write_bytes(bytes(OTHERS))
    async with keeping_nodes(tmp_path, "a", disk=small_disk) as (node,):
        large = small_bytes({"model.mean": torch.ones(100_000)}, {"tokens": 7})
        worker = node.worker(node.begin(1))
        await worker.reserve(len(BIG), len(large))
        worker.save(4, BIG, large)
        found = await write(node, an_order())
        assert found.state is PersistState.FAILED
        assert found.problem == "No space left on device for the 0.763 MiB of this node"
        assert files(small_disk) == []


async def test_what_is_left_of_aborted_attempts_makes_room_for_the_next_one(tmp_path: Path, small_disk: Path) -> None:
    """This node has written all of its part. Another one has not, so the coordinator has given the attempt up."""
    (small_disk / "others").write_bytes(bytes(OTHERS))
    async with keeping_nodes(tmp_path, "a", disk=small_disk) as (node,):
        await train(node, 4, 5)
        assert (await write(node, replace(an_order(4), attempt=1))).state is PersistState.WRITTEN
        node.keeper.carry_out(Persist(RUN, None))
        assert (await write(node, replace(an_order(5), attempt=2))).state is PersistState.FAILED
        again = replace(an_order(5, commit=True), attempt=3, aborted=(1, 2))
        assert (await write(node, again)).state is PersistState.COMMITTED
        assert attempts(small_disk) == ["3"]


async def test_a_whole_step_and_what_another_run_has_written_stay(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    async with keeping_nodes(tmp_path, "a", disk=disk) as (first,):
        await train(first, 4)
        await write(first, replace(an_order(4, commit=True), attempt=2))
    async with keeping_nodes(tmp_path, "b", disk=disk) as (other,):
        await train(other, 9, run="r-2")
        assert (await write(other, replace(an_order(9), attempt=1), run="r-2")).state is PersistState.WRITTEN
    async with keeping_nodes(tmp_path, "c", disk=disk) as (node,):
        await train(node, 5)
        await write(node, replace(an_order(5), attempt=3, aborted=(1, 2)))
        assert attempts(disk) == ["1", "2", "3"]
        assert [step.of.step for step in find_whole(disk / "job")[0]] == [4]


async def test_an_attempt_that_is_given_up_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, node: KeepingNode
) -> None:
    hang = Hanging("fsync")
    worker = await train(node, 4)
    worker.save(5, BIG, SMALL)
    (tmp_path / "disk" / "job").mkdir(parents=True)
    with monkeypatch.context() as hanging:
        hanging.setattr(os, "fsync", hang)
        node.keeper.carry_out(Persist(RUN, an_order(4)))
        await node.until(hang.begins.is_set)
        node.keeper.carry_out(Persist(RUN, None))
        hang.heal.set()
    assert (await write(node, an_order(5))).state is PersistState.WRITTEN  # in the same thread, after the first
    assert not [folder for folder in folders_with_files(tmp_path / "disk") if folder.startswith("step-4-")]


async def test_what_a_later_attempt_is_writing_stays_when_an_earlier_one_becomes_whole(tmp_path: Path) -> None:
    """The committer of the ninth attempt was cut off from the coordinator, which has begun another one."""
    disk = tmp_path / "disk"
    async with keeping_nodes(tmp_path, "a", "b", disk=disk) as (committer, other):
        await train(committer, 4, 5)
        await train(other, 4, 5)
        await write(other, replace(an_order(5), attempt=8))
        await write(other, replace(an_order(5), attempt=10))
        assert (await write(committer, replace(an_order(4, commit=True), attempt=9))).state is PersistState.COMMITTED
        await committer.until(lambda: attempts(disk) == ["10", "9"])
        assert len(files(disk)) == 10, "a whole step of four files, and three files with their notes"


async def test_a_commit_that_is_given_up_makes_no_step_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, node: KeepingNode
) -> None:
    hang = Hanging("fsync")
    await train(node, 4, 5)
    await write(node, an_order(4))
    monkeypatch.setattr(os, "fsync", hang)
    node.keeper.carry_out(Persist(RUN, an_order(4, commit=True)))
    await node.until(hang.begins.is_set)
    node.keeper.carry_out(Persist(RUN, None))
    hang.heal.set()
    await write(node, an_order(5))  # in the same thread, after the first
    assert find_whole(tmp_path / "disk" / "job")[0] == []
