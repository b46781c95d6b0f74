"""The folder of a job's steps belongs to one run at a time, whose nodes share it."""

import errno
import fcntl
import json
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from coordinatord.protocol.kept_state import PersistState
from coordinatord.protocol.messages import Assignment
from nodeclient.core.effects import Probe
from nodeclient.keeping.disk import persister
from nodeclient.keeping.disk.disk_thread import THREAD
from nodeclient.keeping.disk.folder_claim import CLAIM, FolderClaim, FolderInUseError
from nodeclient.keeping.disk.step_folder import job_folder
from nodeclient.keeping.disk.steps_on_disk import OtherCommandError
from tests.nodeclient.keeping.disk.writing import an_order, train, write
from tests.nodeclient.keeping.stage import KeepingNode, keeping_nodes
from tests.support.disks import fill
from tests.support.programs import TIMEOUT_S

pytestmark = pytest.mark.slow


def a_probe(run: str) -> Probe:
    return Probe(run, 1, Assignment(0, 1, 0, 1, 0, 1, "a", "127.0.0.1", 1, 1, 0, 0), patience_s=0, delays_start=False)


def test_the_nodes_of_one_run_share_a_folder_and_another_run_is_refused(tmp_path: Path) -> None:
    one, another, foreign = (FolderClaim(tmp_path / "job") for _ in range(3))
    one.acquire("r-1", 0)
    another.acquire("r-1", 0)
    with pytest.raises(FolderInUseError, match="run r-1"):
        foreign.acquire("r-2", 0)
    one.release()
    with pytest.raises(FolderInUseError, match="run r-1"):
        foreign.acquire("r-2", 0)
    another.release()
    foreign.acquire("r-2", 0)
    with pytest.raises(FolderInUseError, match="run r-2"):
        one.acquire("r-1", 0)
    foreign.release()


def test_nodes_that_go_into_another_run_take_the_folder_with_them(tmp_path: Path) -> None:
    one, another = FolderClaim(tmp_path / "job"), FolderClaim(tmp_path / "job")
    one.acquire("r-1", 0)
    another.acquire("r-1", 0)
    with pytest.raises(FolderInUseError):
        one.acquire("r-2", 0)
    another.acquire("r-2", 0)
    one.acquire("r-2", 0)
    one.release()
    another.release()


def test_no_node_that_is_about_to_claim_the_folder_keeps_another_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All nodes of a new run do this at once, and the file still names the run before."""
    one, another, flock = FolderClaim(tmp_path / "job"), FolderClaim(tmp_path / "job"), fcntl.flock
    one.acquire("r-1", 0)
    one.release()

    def claim_before(file: int, operation: int) -> None:
        if operation & fcntl.LOCK_EX:
            monkeypatch.setattr(fcntl, "flock", flock)
            another.acquire("r-2", 0)
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", claim_before)
    one.acquire("r-2", TIMEOUT_S)
    assert json.loads((tmp_path / "job" / CLAIM).read_text())["run"] == "r-2"
    one.release()
    another.release()


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"run": 7}', b"x" * 10_000, b'{"run": "r-1", "host": "\xff"}'])
def test_a_claim_that_cannot_be_read_is_that_of_another_run_while_it_is_locked(tmp_path: Path, text: bytes) -> None:
    (tmp_path / CLAIM).write_bytes(text)
    with (tmp_path / CLAIM).open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        claim = FolderClaim(tmp_path)
        with pytest.raises(FolderInUseError, match="another run"):
            claim.acquire("r-1", 0)
    claim.acquire("r-1", 0)
    claim.release()


def test_a_run_that_claims_the_folder_between_two_locks_of_another_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """flock(2) says that a lock is not converted in one step, and that another process may get it in between."""
    ours, foreign = FolderClaim(tmp_path / "job"), FolderClaim(tmp_path / "job")
    flock, exclusive = fcntl.flock, fcntl.LOCK_EX | fcntl.LOCK_NB

    def convert_slowly(file: int, operation: int) -> None:
        flock(file, operation)
        if operation == exclusive:
            monkeypatch.setattr(fcntl, "flock", claim_in_between)

    def claim_in_between(file: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        flock(file, fcntl.LOCK_UN)
        foreign.acquire("r-2", 0)
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", convert_slowly)
    with pytest.raises(FolderInUseError, match="run r-2"):
        ours.acquire("r-1", 0)
    foreign.release()


def test_a_claim_is_not_released_while_it_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, foreign = FolderClaim(tmp_path / "job"), FolderClaim(tmp_path / "job")
    releasing, flock = threading.Thread(target=ours.release), fcntl.flock

    def release_meanwhile(file: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        releasing.start()
        releasing.join(0.1)  # it would end at once if it did not wait
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", release_meanwhile)
    ours.acquire("r-1", 0)
    releasing.join(TIMEOUT_S)
    foreign.acquire("r-2", 0)
    foreign.release()


def test_a_folder_that_is_made_anew_is_claimed_anew(tmp_path: Path) -> None:
    ours, foreign = FolderClaim(tmp_path / "job"), FolderClaim(tmp_path / "job")
    ours.acquire("r-1", 0)
    shutil.rmtree(tmp_path / "job")
    ours.acquire("r-1", 0)
    with pytest.raises(FolderInUseError, match="run r-1"):
        foreign.acquire("r-2", 0)
    ours.release()


async def test_of_two_runs_that_write_to_one_directory_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(persister, "CLAIM_WITHIN_S", 0)
    async with keeping_nodes(tmp_path, "a", "b", disk=tmp_path / "disk") as (first, second):
        await train(first, 4)
        await train(second, 9, run="r-2")
        assert await first.keeper.claim_disk(a_probe("r-1")) is None
        refusal = await second.keeper.claim_disk(a_probe("r-2"))
        assert refusal is not None
        assert (refusal.run, refusal.round) == ("r-2", 1)
        assert "is in use by another run of this job: run r-1, begun on host " in refusal.message
        assert (await write(first, an_order(4, commit=True))).state is PersistState.COMMITTED


async def test_a_file_system_without_locks_is_said_and_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, node: KeepingNode
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    await train(node, 4)
    assert await node.keeper.claim_disk(a_probe("r-1")) is None
    folder = job_folder(tmp_path / "disk", "job")
    unseen = "so a second run that writes there is not noticed"
    assert node.texts == [f"{folder} cannot be locked: {os.strerror(errno.ENOLCK)}, {unseen}"]
    assert (await write(node, an_order(4, commit=True))).state is PersistState.COMMITTED


async def test_a_full_disk_keeps_no_node_of_the_run_from_its_round(
    tmp_path: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(persister, "CLAIM_WITHIN_S", 0)
    (small_disk / "job").mkdir()
    (small_disk / "job" / CLAIM).touch()
    fill(small_disk / "others")
    async with keeping_nodes(tmp_path, "a", "b", disk=small_disk) as nodes:
        for node in nodes:
            assert await node.keeper.claim_disk(a_probe("r-1")) is None
            assert "cannot be locked: No space left on device" in node.texts[0]


def disk_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == THREAD]


async def test_a_disk_that_hangs_holds_up_no_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, node: KeepingNode
) -> None:
    heals = threading.Event()
    monkeypatch.setattr(fcntl, "flock", lambda *_: heals.wait())
    monkeypatch.setattr(persister, "CLAIM_WITHIN_S", 0)
    monkeypatch.setattr(persister, "ANSWERS_WITHIN_S", 0.05)
    assert await node.keeper.claim_disk(a_probe("r-1")) is None
    assert any("cannot be locked: it does not answer" in text for text in node.texts)
    monkeypatch.setattr(persister, "ANSWERS_WITHIN_S", TIMEOUT_S)
    threads = disk_threads()
    assert await node.keeper.claim_disk(a_probe("r-2")) is None, "it did not wait for the disk again"
    assert disk_threads() == threads
    heals.set()
    await node.until(lambda: not disk_threads())
    assert await node.keeper.claim_disk(a_probe("r-2")) is None
    assert json.loads((job_folder(tmp_path / "disk", "job") / CLAIM).read_text())["run"] == "r-2"


async def test_another_command_goes_on_from_a_step_only_if_the_job_is_named(tmp_path: Path) -> None:
    async with keeping_nodes(tmp_path, "a", disk=tmp_path, command="1", named=False) as [node]:
        await train(node, 4)
        await write(node, an_order(4, commit=True))
    text = f"step 4 in {tmp_path / 'job'} was written by a training with another command"
    async with keeping_nodes(tmp_path, "b", disk=tmp_path, command="1", named=False) as [node]:
        await node.keeper.find_steps_on_disk()
        assert node.texts == [], "the same command goes on as ever"
    async with keeping_nodes(tmp_path, "c", disk=tmp_path, command="2", named=False) as [node]:
        with pytest.raises(OtherCommandError, match=f"{text}, and nothing names this job: .* --job-id job to go on"):
            await node.keeper.find_steps_on_disk()
    async with keeping_nodes(tmp_path, "d", disk=tmp_path, command="2") as [node]:
        await node.keeper.find_steps_on_disk()
        assert node.texts == [f"{text}: this one goes on from its steps"]
