"""What becomes of a write if the disk stands still, or nobody wants it any more."""

import asyncio
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from coordinatord.core.keeping.write_plan import END_IDLE_S, END_S
from coordinatord.core.keeping.write_progress import STUCK_S
from coordinatord.core.rounds.policy import Policy
from coordinatord.protocol.kept_state import PersistState, Restoring
from nodeclient.core.effects import Persist
from nodeclient.keeping.disk import disk_thread, steps_on_disk
from nodeclient.keeping.disk.step_folder import find_whole
from tests.nodeclient.keeping.disk.writing import BIG, SMALL, an_order, from_disk, report, train, write
from tests.nodeclient.keeping.stage import RUN, Hanging, KeepingNode, keeping_nodes
from tests.support.programs import TIMEOUT_S

pytestmark = pytest.mark.slow


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Return the event that ends the hanging of each flush of a file."""
    hang = Hanging("fsync")
    monkeypatch.setattr(os, "fsync", hang)
    monkeypatch.setattr(disk_thread, "STALL_S", 0.1)
    monkeypatch.setattr(disk_thread, "POLL_S", 0.02)
    yield hang.heal
    hang.heal.set()


def test_a_node_says_that_its_disk_hangs_before_the_coordinator_gives_the_last_step_up() -> None:
    said_s = disk_thread.STALL_S + disk_thread.POLL_S + 2 * Policy().heartbeat_s
    assert said_s < END_IDLE_S < STUCK_S < END_S


async def test_a_disk_that_hangs_is_said_and_holds_nobody_up(
    tmp_path: Path, hanging: threading.Event, node: KeepingNode
) -> None:
    (tmp_path / "disk" / "job").mkdir(parents=True)
    await train(node, 4)
    found = await write(node, an_order())
    assert found.problem == "the disk hangs: nothing was written for 0.1 s"
    node.keeper.carry_out(Persist(RUN, None))
    found = await write(node, an_order())
    assert found.problem == "the disk hangs: a write that was begun before has not ended"
    node.keeper.carry_out(Persist(RUN, None))
    hanging.set()
    async with asyncio.timeout(TIMEOUT_S):
        while (await write(node, an_order(commit=True))).state is not PersistState.COMMITTED:
            node.keeper.carry_out(Persist(RUN, None))


async def test_a_write_waits_for_the_end_of_one_that_nobody_wants_any_more(
    tmp_path: Path, hanging: threading.Event, monkeypatch: pytest.MonkeyPatch, node: KeepingNode
) -> None:
    """The last step of a job is wanted in the middle of an older one: no disk hangs for that, and none has failed."""
    monkeypatch.setattr(disk_thread, "STALL_S", 60.0)
    (tmp_path / "disk" / "job").mkdir(parents=True)
    await train(node, 4, 6, 8)
    node.keeper.carry_out(Persist(RUN, an_order(4)))
    await node.until(lambda: any((tmp_path / "disk").glob("job/*")))
    for order in (None, an_order(6), an_order(8)):
        node.keeper.carry_out(Persist(RUN, order))
        for _ in range(3):
            await asyncio.sleep(0)
    found = report(node)
    assert found is not None
    assert (found.state, found.step) == (PersistState.WRITING, 8)
    hanging.set()
    assert (await write(node, an_order(8))).state is PersistState.WRITTEN
    assert node.texts == []


async def test_a_node_that_ends_while_it_makes_a_step_whole_reports_no_failure(
    tmp_path: Path, hanging: threading.Event, monkeypatch: pytest.MonkeyPatch, node: KeepingNode
) -> None:
    monkeypatch.setattr(disk_thread, "STALL_S", 60.0)
    hanging.set()
    await train(node, 4)
    await write(node, an_order())
    hanging.clear()
    node.keeper.carry_out(Persist(RUN, an_order(commit=True)))
    await node.until(lambda: any((tmp_path / "disk").glob("job/*/.manifest*")))
    node.keeper.close()
    hanging.set()
    await asyncio.gather(*(task for task in asyncio.all_tasks() if task.get_name() == "persist"))
    assert node.texts == []


async def test_a_host_that_has_no_thread_to_give_is_said(monkeypatch: pytest.MonkeyPatch, node: KeepingNode) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    await train(node, 4)
    await node.reports(lambda kept: kept.save_s is not None, workers=True)
    with monkeypatch.context() as exhausted:
        exhausted.setattr(threading.Thread, "start", refuse)
        found = await write(node, an_order())
    assert (found.state, found.problem) == (PersistState.FAILED, "the system has no thread to give")
    node.keeper.carry_out(Persist(RUN, None))
    assert (await write(node, an_order())).state is PersistState.WRITTEN
    with monkeypatch.context() as exhausted:
        exhausted.setattr(threading.Thread, "start", refuse)
        node.keeper.close()
    assert node.keeper._resources.arenas.memory.used_bytes == 0, "all is cleaned up nonetheless"


async def test_a_step_is_made_whole_once_though_the_order_changes_meanwhile_and_one_that_comes_into_use_stays(
    tmp_path: Path, hanging: threading.Event, monkeypatch: pytest.MonkeyPatch, node: KeepingNode
) -> None:
    monkeypatch.setattr(disk_thread, "STALL_S", 60.0)
    hanging.set()
    worker = await train(node)
    for step in (4, 8):
        worker.save(step, BIG, SMALL)
        await write(node, an_order(step, commit=True))
    worker.save(12, BIG, SMALL)
    await write(node, an_order(12))
    hanging.clear()
    node.keeper.carry_out(Persist(RUN, an_order(12, commit=True)))
    await node.until(lambda: any((tmp_path / "disk").glob("job/step-12-*/.manifest*")))
    node.keeper.carry_out(Persist(RUN, replace(an_order(12, commit=True), stays=(1,))))
    begun = tmp_path / "disk" / "job" / "step-9-round-1-0123456789ab"
    begun.mkdir()  # it is the last to go of what is dropped
    hanging.set()
    await node.until(lambda: not begun.exists())
    assert [step.of.step for step in find_whole(tmp_path / "disk" / "job")[0]] == [12, 8, 4]
    await node.until(lambda: (found := report(node)) is not None and found.state is PersistState.COMMITTED)


async def test_a_disk_that_hangs_while_a_round_begins_is_said_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hang = Hanging("preadv")
    async with keeping_nodes(tmp_path, "a", "b", disk=tmp_path / "disk") as (writer, other):
        await train(writer, 4)
        await write(writer, an_order(commit=True))
        await other.keeper.find_steps_on_disk()
        monkeypatch.setattr(os, "preadv", hang)
        monkeypatch.setattr(disk_thread, "STALL_S", 0.1)
        monkeypatch.setattr(disk_thread, "POLL_S", 0.02)
        try:
            other.begin(1, from_disk(other), run="r-2")
            await other.until(lambda: any("nothing was read for 0.1 s" in text for text in other.texts))
            holding = other.reported(run="r-2")
            assert holding.restoring is Restoring.FAILED
            assert "the disk hangs" in holding.unusable
        finally:
            hang.heal.set()


async def test_a_disk_that_hangs_at_a_later_look_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, node: KeepingNode
) -> None:
    hang = Hanging("scandir")
    (tmp_path / "disk" / "job").mkdir(parents=True)
    await node.keeper.find_steps_on_disk()
    monkeypatch.setattr(disk_thread, "STALL_S", 0.1)
    monkeypatch.setattr(steps_on_disk, "SCAN_EVERY_S", 0.02)
    monkeypatch.setattr(os, "scandir", hang)
    try:
        await node.until(lambda: any("does not answer: nothing was seen" in text for text in node.texts))
    finally:
        hang.heal.set()
