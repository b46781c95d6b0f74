"""A directory for steps that is gone, as when its file system is not mounted any more, is said and stops nothing."""

import shutil
from functools import partial
from pathlib import Path

import pytest

from coordinatord.protocol.kept_state import PersistState
from nodeclient.keeping.disk import steps_on_disk
from tests.nodeclient.keeping.disk.writing import an_order, train, write
from tests.nodeclient.keeping.stage import KeepingNode, keeping_nodes

pytestmark = pytest.mark.slow


def complaints(node: KeepingNode) -> list[str]:
    return [text for text in node.texts if "is gone" in text]


def complained(node: KeepingNode) -> bool:
    return bool(complaints(node))


async def test_a_directory_that_is_gone_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps_on_disk, "SCAN_EVERY_S", 0.05)
    disk = tmp_path / "disk"
    async with keeping_nodes(tmp_path, "a", "b", disk=disk) as (writer, other):
        await train(writer, 4, 8)
        await write(writer, an_order(4, commit=True))
        for node in (writer, other):
            await node.keeper.find_steps_on_disk()
        disk.rename(tmp_path / "elsewhere")
        for node in (writer, other):
            await node.until(partial(complained, node))
            assert f"is {disk} still mounted?" in complaints(node)[0]
        assert (await write(writer, an_order(8, commit=True))).state is PersistState.COMMITTED
        await other.reports(lambda found: found.persisted, run="")
        assert [len(complaints(node)) for node in (writer, other)] == [1, 1]


async def test_a_directory_that_is_gone_is_said_by_the_node_that_writes_there_first(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    async with keeping_nodes(tmp_path, "a", disk=disk) as (node,):
        await train(node, 4, 8, 12)
        for step in (4, 8):
            await write(node, an_order(step, commit=True))
        await node.keeper.find_steps_on_disk()  # the scan after the write is over: it would see half of what is deleted
        shutil.rmtree(disk)
        assert (await write(node, an_order(12, commit=True))).state is PersistState.COMMITTED
        await node.until(partial(complained, node))


async def test_older_steps_that_nodes_delete_are_not_said(tmp_path: Path) -> None:
    async with keeping_nodes(tmp_path, "a", disk=tmp_path / "disk") as (node,):
        await train(node, 4, 8, 12)
        for step in (4, 8, 12):
            assert (await write(node, an_order(step, commit=True))).state is PersistState.COMMITTED
        assert complaints(node) == []
