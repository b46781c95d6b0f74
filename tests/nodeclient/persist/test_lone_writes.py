"""Nodes that end without a coordinator write by themselves, and do not get into each other's way."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeclient.core.effects import PersistAlone
from nodeclient.core.events import PersistedAlone
from nodeclient.persist.folder_claim import CLAIM
from nodeclient.persist.step_folder import find_whole
from tests.nodeclient.keep.stage import RUN, KeepingNode, keeping_nodes
from tests.nodeclient.persist.writing import an_order, train, write


async def write_alone(*nodes: KeepingNode, run: str = RUN) -> None:
    """Have nodes write at the same time what they have."""
    for node in nodes:
        node.keeper.carry_out(PersistAlone(run))
    for node in nodes:
        await node.until(lambda node=node: PersistedAlone() in node.events)  # type: ignore[misc]  # bound now


def whole(folder: Path) -> list[int]:
    """Return the whole steps on the disk, the newest first."""
    found, problems = find_whole(folder / "disk" / "job")
    assert problems == []
    return [manifest.of.step for manifest in found]


def is_tidy(folder: Path) -> bool:
    """Whether each folder on the disk holds a whole step: a state of many gigabytes is left nowhere for nothing."""
    found, _ = find_whole(folder / "disk" / "job")
    names = {path.name for path in (folder / "disk" / "job").iterdir()}
    return names == {CLAIM, *(manifest.of.folder for manifest in found)}


@pytest.mark.asyncio
async def test_a_node_writes_its_newest_whole_step_and_says_where(tmp_path: Path) -> None:
    async with keeping_nodes(tmp_path, "a", disk=tmp_path / "disk") as [node]:
        await train(node, 4, 5)
        await write_alone(node)
        assert whole(tmp_path) == [5]
        [manifest] = find_whole(tmp_path / "disk" / "job")[0]
        text = f"step 5 is on the disk, in {tmp_path / 'disk' / 'job' / manifest.of.folder}"
        assert node.texts == [text]
        assert len(manifest.files) == 3, "a shard, its buffers, and the small state of its rank"


@pytest.mark.asyncio
async def test_two_nodes_that_write_the_same_step_do_not_mix(tmp_path: Path) -> None:
    async with keeping_nodes(tmp_path, "a", "b", disk=tmp_path / "disk") as (one, other):
        await train(one, 5)
        await train(other, 5)
        await write_alone(one, other)
        assert set(whole(tmp_path)) == {5}
        for node in (one, other):
            assert any("step 5 is on the disk" in text for text in node.texts)
        assert is_tidy(tmp_path)


@pytest.mark.asyncio
async def test_an_older_step_never_becomes_the_newest_one(tmp_path: Path) -> None:
    async with keeping_nodes(tmp_path, "a", "b", disk=tmp_path / "disk") as (led, cut_off):
        await train(led, 7)
        await train(cut_off, 5)
        await write(led, an_order(7, commit=True))
        await write_alone(cut_off)
        assert whole(tmp_path) == [7]
        assert any("step 7 is on the disk" in text for text in cut_off.texts), "which is newer than its own"
        assert is_tidy(tmp_path)


@pytest.mark.asyncio
async def test_what_a_later_run_has_written_stays_the_newest(tmp_path: Path) -> None:
    async with keeping_nodes(tmp_path, "a", "b", disk=tmp_path / "disk") as (left_over, later):
        await train(left_over, 9)
        await train(later, 2, run="r-2")
        await write_alone(later, run="r-2")
        later.close()
        await write_alone(left_over)
        assert whole(tmp_path) == [2]
        assert any("another run of the job has written step 2 since" in text for text in left_over.texts)
        assert is_tidy(tmp_path)


@pytest.mark.asyncio
async def test_a_node_that_keeps_nothing_of_its_run_is_done_at_once(tmp_path: Path) -> None:
    async with keeping_nodes(tmp_path, "a", disk=tmp_path / "disk") as [node]:
        await write_alone(node)
        assert whole(tmp_path) == []
        assert node.texts == []


@pytest.mark.asyncio
async def test_a_disk_that_fails_is_said(tmp_path: Path) -> None:
    (tmp_path / "disk").write_text("no directory")
    async with keeping_nodes(tmp_path, "a", disk=tmp_path / "disk") as [node]:
        await train(node, 4)
        await write_alone(node)
        assert any("step 4 cannot be written" in text for text in node.texts)


@pytest.mark.asyncio
async def test_a_node_with_a_part_of_a_step_says_that_nothing_is_written(tmp_path: Path) -> None:
    async with keeping_nodes(tmp_path, "a", disk=tmp_path / "disk") as [node]:
        worker = node.worker(node.begin(1))
        await worker.reserve()
        worker.save_shard(4, shards=2)
        await write_alone(node)
        assert whole(tmp_path) == []
        why = "this node has only a part of it, and no coordinator has other nodes write the rest"
        assert node.texts == [f"step 4 is not written to the disk: {why}"]
