"""What a node writes to the disk and reads back, and that a bad disk is said and nothing else."""

import asyncio
import errno
import os
import re
import shutil
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from coordinatord.protocol.kept_state import PersistedStep, PersistOrder, PersistState, Restoring, WantedParts
from nodeclient.core.effects import Persist
from nodeclient.keeping.disk import known_steps, steps_on_disk
from nodeclient.keeping.disk.step_folder import find_whole
from nodeclient.keeping.disk.steps_on_disk import UnwritableError
from tests.nodeclient.keeping.disk.writing import BIG, PART, SMALL, an_order, from_disk, report, train, write
from tests.nodeclient.keeping.stage import RUN, Hanging, KeepingNode, keeping_nodes
from tests.support.disks import fill
from tests.support.programs import TIMEOUT_S
from workerlib.contract import arena

pytestmark = pytest.mark.slow


def flip_a_bit(folder: Path) -> None:
    [path] = folder.glob("disk/job/*/shard-*.safetensors")
    raw = bytearray(path.read_bytes())
    raw[-5] ^= 16
    path.write_bytes(raw)


def found_by(node: KeepingNode) -> tuple[PersistedStep, ...]:
    holding = node.holding(run="")
    return () if holding is None else holding.persisted


async def test_a_step_that_one_node_writes_is_read_by_another_in_a_later_run(tmp_path: Path) -> None:
    async with keeping_nodes(tmp_path, "a", "b", disk=tmp_path / "disk") as (writer, other):
        await train(writer, 4)
        assert (await write(writer, an_order())).state is PersistState.WRITTEN
        assert find_whole(tmp_path / "disk" / "job") == ([], [])
        done = await write(writer, an_order(commit=True))
        assert (done.state, done.step) == (PersistState.COMMITTED, 4)
        assert done.bytes > len(BIG)
        await other.keeper.find_steps_on_disk()
        holding = other.reported(run="")
        assert other.holding(run="r-2") == holding, "it waits for its first round of that run"
        [step] = holding.persisted
        assert (step.run, step.at.round, step.at.step, step.parts[0].small) == (RUN, 1, 4, True)
        worker = other.worker(other.begin(1, from_disk(other), run="r-2"))
        point, parts = await worker.resume()
        assert (point.round, point.step) == (0, 4)
        assert parts == {(0, True): BIG, (0, False): SMALL}
        assert any("resumes at step 4 from disk: 2 parts" in text for text in other.texts)
        await other.worker(other.begin(2, replace(from_disk(other), redone=3), run="r-2")).resume()
        assert "resumes at step 4 from disk, 3 steps redone: 2 parts" in other.texts[-1]


async def test_only_the_newest_steps_stay_and_one_that_an_order_names_which_is_always_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, node: KeepingNode
) -> None:
    monkeypatch.setattr(known_steps, "PERSISTED_MAX", 2)
    worker = await train(node)
    for step in (4, 8, 12, 16):
        worker.save(step, BIG, SMALL)
        stays = (1,) if step > 4 else ()
        done = await write(node, PersistOrder(1, step, 1, 1, (PART,), commit=True, stays=stays))
        assert done.state is PersistState.COMMITTED
    await node.until(lambda: len(find_whole(tmp_path / "disk" / "job")[0]) == 3)
    assert [step.of.step for step in find_whole(tmp_path / "disk" / "job")[0]] == [16, 12, 4]
    assert [step.at.step for step in found_by(node)] == [16, 4]


async def test_a_node_that_writes_nothing_sees_what_others_write_and_drop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps_on_disk, "SCAN_EVERY_S", 0.02)
    async with keeping_nodes(tmp_path, "a", "spare", disk=tmp_path / "disk") as (node, spare):
        await spare.keeper.find_steps_on_disk()
        worker = await train(node)
        for step in (4, 8, 12):
            worker.save(step, BIG, SMALL)
            assert (await write(node, an_order(step, commit=True))).state is PersistState.COMMITTED
        await spare.until(lambda: [step.at.step for step in found_by(spare)] == [12, 8])


async def test_a_node_waits_until_it_has_seen_what_is_on_the_disk(
    monkeypatch: pytest.MonkeyPatch, node: KeepingNode
) -> None:
    def fail(_: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(steps_on_disk, "SCAN_EVERY_S", 0.02)
    with monkeypatch.context() as failing:
        failing.setattr(os, "scandir", fail)
        first = asyncio.ensure_future(node.keeper.find_steps_on_disk())
        await node.until(lambda: any("cannot be read: Input/output error" in text for text in node.texts))
        assert not first.done()
    await asyncio.wait_for(first, TIMEOUT_S)
    assert len(node.texts) == 2, "one about the error, and one about the empty directory"
    assert re.search(r"; made the directory \S+/disk, on .+ \(\S+, \S+\)$", node.texts[1])


@pytest.mark.parametrize(
    ("folder", "why"), [("/proc/x", "No such file or directory"), ("/dev/null", "Not a directory")]
)
async def test_a_node_is_refused_whose_directory_takes_no_steps(tmp_path: Path, folder: str, why: str) -> None:
    """A mistyped directory would otherwise be noticed at the first step that is written, and that is lost."""
    with pytest.raises(UnwritableError, match=f"steps cannot be written to {folder}/job: {why}; see --persist"):
        async with keeping_nodes(tmp_path, "a", disk=Path(folder)) as (node,):
            await node.keeper.find_steps_on_disk()


async def test_a_node_whose_disk_is_full_says_so_before_it_joins(tmp_path: Path, small_disk: Path) -> None:
    fill(small_disk / "others")
    async with keeping_nodes(tmp_path, "a", disk=small_disk) as (node,):
        await node.keeper.find_steps_on_disk()
        text = f"steps cannot be written to {small_disk}/job: No space left on device"
        assert any(line.startswith(text) for line in node.texts)


async def test_a_node_says_if_no_step_of_its_job_is_on_the_disk(tmp_path: Path) -> None:
    """A mistyped directory or job would otherwise begin anew unseen."""
    async with keeping_nodes(tmp_path, "a", "b", disk=tmp_path / "disk") as (writer, other):
        await writer.keeper.find_steps_on_disk()
        assert [text for text in writer.texts if text.startswith("no step of this job is on the disk yet, in ")]
        assert not list((tmp_path / "disk" / "job").iterdir()), "it has tried the disk out"
        await train(writer, 4)
        await write(writer, an_order(commit=True))
        await other.keeper.find_steps_on_disk()
        assert not other.texts


async def test_a_node_ends_although_it_is_about_to_scan(tmp_path: Path) -> None:
    async with asyncio.timeout(TIMEOUT_S), keeping_nodes(tmp_path, "a", disk=tmp_path / "disk") as (node,):
        await node.keeper.find_steps_on_disk()
        await train(node, 4)
        node.keeper.carry_out(Persist(RUN, an_order()))
        node.keeper.carry_out(Persist(RUN, None))


async def test_a_disk_that_hangs_when_a_node_starts_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, node: KeepingNode
) -> None:
    hang = Hanging("scandir")
    monkeypatch.setattr(os, "scandir", hang)
    monkeypatch.setattr(steps_on_disk, "SCAN_WITHIN_S", 0.05)
    first = asyncio.ensure_future(node.keeper.find_steps_on_disk())
    await node.until(lambda: bool(node.texts))
    assert node.texts == [f"{tmp_path / 'disk'} does not answer within 0.05 s: this node joins when it does"]
    assert not first.done()
    hang.heal.set()
    await asyncio.wait_for(first, TIMEOUT_S)


async def test_a_damaged_step_is_said_is_found_no_more_and_goes_when_enough_newer_ones_are_there(
    tmp_path: Path,
) -> None:
    async with keeping_nodes(tmp_path, "a", "b", disk=tmp_path / "disk") as (writer, other):
        await train(writer, 4)
        await write(writer, an_order(commit=True))
        flip_a_bit(tmp_path)
        await other.keeper.find_steps_on_disk()
        other.begin(1, from_disk(other), run="r-2")
        holding = await other.reports(lambda kept: kept.problem, run="r-2")
        assert (holding.restoring, holding.persisted) == (Restoring.FAILED, ())
        assert "its digest does not match" in holding.problem
        assert "its digest does not match" in holding.unusable
        worker = await train(other)
        for step in (8, 12):
            worker.save(step, BIG, SMALL)
            assert (await write(other, an_order(step, commit=True))).state is PersistState.COMMITTED
        await other.until(lambda: [step.of.step for step in find_whole(tmp_path / "disk" / "job")[0]] == [12, 8])


def _fail(*_: object) -> int:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize(
    ("module", "name", "broken", "why"),
    [
        (os, "preadv", _fail, "Input/output error"),  # a file server may be away for a moment
        (arena, "BYTES_MAX", len(BIG) // 2, "an arena cannot have places of"),  # as any lack of memory
    ],
)
async def test_a_step_that_cannot_be_read_and_is_not_damaged_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: object, name: str, broken: object, why: str
) -> None:
    async with keeping_nodes(tmp_path, "a", "b", disk=tmp_path / "disk") as (writer, node):
        await train(writer, 4)
        await write(writer, an_order(commit=True))
        monkeypatch.setattr(known_steps, "RETRY_S", 2.0)
        monkeypatch.setattr(steps_on_disk, "SCAN_EVERY_S", 0.05)
        await node.keeper.find_steps_on_disk()
        with monkeypatch.context() as while_broken:
            while_broken.setattr(module, name, broken)
            disk = from_disk(node)
            node.begin(1, disk, run="r-2")
            holding = await node.reports(lambda kept: kept.problem, run="r-2")
        assert (holding.restoring, holding.persisted) == (Restoring.FAILED, ())
        assert holding.unusable.startswith(f"the state of rank 0 at step 4 cannot be read: {why}")
        await node.reports(lambda kept: kept.persisted, run="r-2")
        node.begin(2, disk, run="r-2")
        await node.reports(lambda kept: kept.restoring is Restoring.READY, run="r-2")


async def test_a_full_disk_is_said_once_whenever_it_becomes_full_and_written_to_when_there_is_room(
    tmp_path: Path, small_disk: Path
) -> None:
    """Also by a node that only writes, and never makes a step whole."""
    async with keeping_nodes(tmp_path, "a", disk=small_disk) as (node,):
        await train(node, 4)
        for times, tries in ((1, 2), (2, 1)):
            fill(small_disk / "others")
            for _ in range(tries):
                found = await write(node, an_order(4))
                assert found.state is PersistState.FAILED
                assert re.fullmatch(r"No space left on device for the \S+ MiB of this node", found.problem)
                node.keeper.carry_out(Persist(RUN, None))
            assert sum("cannot be written to" in text for text in node.texts) == times
            (small_disk / "others").unlink()
            assert (await write(node, an_order(4))).state is PersistState.WRITTEN
            node.keeper.carry_out(Persist(RUN, None))


async def test_a_disk_that_cannot_be_read_once_more_is_said_once_more(
    monkeypatch: pytest.MonkeyPatch, node: KeepingNode
) -> None:
    is_broken, scans, list_folder = threading.Event(), list[int](), os.scandir

    def fail_at_times(folder: Path) -> Any:
        if is_broken.is_set():
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        scans.append(1)
        return list_folder(folder)

    monkeypatch.setattr(steps_on_disk, "SCAN_EVERY_S", 0.02)
    monkeypatch.setattr(os, "scandir", fail_at_times)
    await node.keeper.find_steps_on_disk()
    for _ in range(2):
        node.texts.clear()
        is_broken.set()
        await node.until(lambda: any("cannot be read: Stale file handle" in text for text in node.texts))
        scans.clear()
        is_broken.clear()
        await node.until(lambda: len(scans) > 1)  # the second one begins when the first one is over


async def test_a_directory_that_is_not_shared_is_said_and_nothing_is_whole(tmp_path: Path) -> None:
    async with keeping_nodes(tmp_path, "a", disk=tmp_path / "mine") as (node,):
        worker = await train(node)
        worker.save(4, None, SMALL)
        order = an_order(commit=True, parts=WantedParts(0, 1, big=False, small=True))
        found = await write(node, order)
        words = f"only 0 of 1 shards are found: is {tmp_path / 'mine'} one directory for all nodes?"
        assert found.problem == f"all nodes have written, and {words}"
        assert find_whole(tmp_path / "mine" / "job") == ([], [])


async def test_what_is_damaged_in_memory_is_not_written_and_a_step_that_has_taken_its_place_stays(
    node: KeepingNode,
) -> None:
    """The worker may save again before the event loop handles the error of the thread."""
    worker = await train(node, 4)
    await node.damage(worker, 4)
    node.keeper.carry_out(Persist(RUN, an_order()))
    await asyncio.sleep(0)  # the write begins
    for thread in [thread for thread in threading.enumerate() if thread.name == "persist"]:
        thread.join(TIMEOUT_S)
    for step in (8, 12, 16):
        worker.save(step, BIG, SMALL)
    problem = "the state of rank 0 at step 4 is damaged in memory"
    await node.until(lambda: (found := report(node)) is not None and found.problem == problem)
    assert worker.arena is not None
    commits = [place.read() for place in worker.arena.generations]
    assert {commit.step for commit in commits if commit is not None} == {8, 12, 16}


# A directory that is gone, as when its file system is not mounted any more


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


async def test_a_directory_that_is_gone_is_said_by_the_node_that_writes_there_first(
    tmp_path: Path, node: KeepingNode
) -> None:
    disk = tmp_path / "disk"
    await train(node, 4, 8, 12)
    for step in (4, 8):
        await write(node, an_order(step, commit=True))
    await node.keeper.find_steps_on_disk()  # the scan after the write is over: it would see half of what is deleted
    shutil.rmtree(disk)
    assert (await write(node, an_order(12, commit=True))).state is PersistState.COMMITTED
    await node.until(partial(complained, node))


async def test_older_steps_that_nodes_delete_are_not_said(node: KeepingNode) -> None:
    await train(node, 4, 8, 12)
    for step in (4, 8, 12):
        assert (await write(node, an_order(step, commit=True))).state is PersistState.COMMITTED
    assert complaints(node) == []
