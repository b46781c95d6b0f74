"""A node's log files are read and deleted beside the event loop, and a node that ends lets its readers finish."""

import asyncio
import errno
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import structs

from coordinatord.protocol.log_messages import LOG_BYTES_MAX, LogChunk, LogPlace, LogStream, ReadLog
from nodeclient.keeping.disk.steps_on_disk import UnwritableError
from nodeclient.output.log_paths import LogPaths
from nodeclient.output.log_reader import LOG_START
from nodeclient.output.output_settings import OutputSettings
from nodeclient.shell import log_service
from nodeclient.shell.log_service import LogService
from tests.support.programs import TIMEOUT_S
from tests.support.raw_session import until

ROUND = LogPaths("job", "e-1", 1)

WANTED = ReadLog(1, "e-1", 1, 0, LogStream.STDOUT, None, last_bytes=LOG_BYTES_MAX, last_lines=None, follow=False)


@pytest.fixture(autouse=True)
def _no_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for the disk of a busy machine, and take no reader for gone that only waits for a processor."""
    monkeypatch.setattr(log_service, "SETTLE_S", TIMEOUT_S)
    monkeypatch.setattr(log_service, "FOLLOWED_WITHIN_S", TIMEOUT_S)


def a_service(
    log_dir: Path | None, *, keep: int | None = None, complain: Callable[[str], None] = pytest.fail
) -> LogService:
    def fail(error: Exception) -> None:
        raise error

    return LogService(OutputSettings(log_dir=log_dir, retained_rounds=keep), "job", "a", complain, fail)


def write(log_dir: Path, text: str, place: LogPaths = ROUND, rank: int = 0) -> None:
    file = place.folder(log_dir) / str(rank) / "stdout.log"
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as log:
        log.write(text)


async def read(service: LogService, wanted: ReadLog = WANTED) -> LogChunk:
    """Ask for a piece, and note that it was sent."""
    answer: asyncio.Future[LogChunk] = asyncio.get_running_loop().create_future()

    def take(chunk: LogChunk, sent: Callable[[], None]) -> None:
        answer.set_result(chunk)
        sent()

    service.read(wanted, take)
    async with asyncio.timeout(60):
        return await answer


async def test_a_round_is_read_as_soon_as_it_has_begun(tmp_path: Path) -> None:
    service = a_service(tmp_path)
    assert service.folder == str(tmp_path / "job")
    assert (await read(service)).problem == "there are no log files of round 1: they were deleted, or none was written"
    service.begin_round(ROUND, range(1))
    write(tmp_path, "one\n")
    assert (await read(service)).data == b"one\n"
    elsewhere = structs.replace(WANTED, run="../../etc")
    assert (await read(service, elsewhere)).data == b""


async def test_who_follows_into_a_round_that_this_node_is_about_to_begin_gets_all_of_it(tmp_path: Path) -> None:
    service = a_service(tmp_path)
    follows = structs.replace(WANTED, follow=True)
    begins = await read(service, follows)
    assert (begins.data, begins.place, begins.problem) == (b"", LOG_START, "")
    service.begin_round(ROUND, range(1))
    write(tmp_path, "one\n")
    assert (await read(service, structs.replace(follows, after=begins.place))).data == b"one\n"
    later = structs.replace(follows, round=2, after=LOG_START)
    assert (await read(service, later)).problem == ""
    service.begin_round(structs.replace(ROUND, round=2), range(1))
    write(tmp_path, "two\n", structs.replace(ROUND, round=2))
    assert (await read(service, later)).data == b"two\n"


async def test_a_node_without_a_directory_says_so(tmp_path: Path) -> None:
    service = a_service(None)
    service.start()
    service.begin_round(ROUND, range(1))
    assert service.folder == ""
    assert (await read(service)).problem == "node a keeps no log files: see --log-dir"
    assert a_service(tmp_path / "line\nend").folder == "", "a name that cannot be sent"


@pytest.mark.parametrize(("folder", "why"), [("/proc/x", "No such file"), ("/dev/null/x", "Not a directory")])
async def test_a_directory_that_cannot_be_written_is_named_before_the_node_joins(folder: str, why: str) -> None:
    with pytest.raises(UnwritableError, match=f"log files cannot be written to {folder}/job: {why}.*; see --log-dir"):
        await a_service(Path(folder)).try_out()


async def test_a_directory_that_can_be_written_gets_no_file_before_the_first_output(tmp_path: Path) -> None:
    await a_service(tmp_path / "logs").try_out()
    assert list((tmp_path / "logs" / "job").iterdir()) == []


async def test_a_later_process_of_the_node_reads_and_deletes_what_an_earlier_one_has_written(tmp_path: Path) -> None:
    earlier = a_service(tmp_path)
    for number in (1, 2, 3):
        earlier.begin_round(LogPaths("job", "e-1", number), range(1))
        write(tmp_path, f"round {number}\n", LogPaths("job", "e-1", number))
        earlier.end_round()
    earlier.fail_round(1)
    await earlier.settle()
    rounds = tmp_path / "job" / "e-1"
    failed = {number: json.loads((rounds / f"round_{number}" / ".nodeclient-a.json").read_text()) for number in (1, 2)}
    assert {number: note["failed"] for number, note in failed.items()} == {1: True, 2: False}
    later = a_service(tmp_path, keep=1)
    later.start()
    await until(lambda: {path.name for path in rounds.iterdir()} == {"round_1", "round_3"})
    assert (await read(later)).data == b"round 1\n"


@pytest.mark.parametrize("readers", [1, 2])
async def test_a_read_that_hangs_holds_up_those_of_others_only_if_too_many_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, readers: int
) -> None:
    begins, heals, pread = threading.Event(), threading.Event(), os.pread

    def pread_of_a_disk(fd: int, size: int, offset: int) -> bytes:
        if Path(f"/proc/self/fd/{fd}").readlink().parent.name == "0":
            begins.set()
            heals.wait(TIMEOUT_S)
        return pread(fd, size, offset)

    monkeypatch.setattr(os, "pread", pread_of_a_disk)
    monkeypatch.setattr(log_service, "READERS_MAX", readers)
    monkeypatch.setattr(log_service, "HANGS_AFTER_S", 0.0)
    service = a_service(tmp_path)
    service.begin_round(ROUND, range(2))
    write(tmp_path, "one\n")
    write(tmp_path, "two\n", rank=1)
    hung = asyncio.ensure_future(read(service))
    await asyncio.to_thread(begins.wait, TIMEOUT_S)
    assert (await read(service)).problem == "the disk does not answer"
    other = await read(service, structs.replace(WANTED, rank=1))
    assert (other.data, other.problem) == ((b"two\n", "") if readers > 1 else (b"", "the disk does not answer"))
    heals.set()
    assert (await hung).data == b"one\n"


async def test_a_node_that_ends_waits_for_those_who_follow_and_for_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_service, "FOLLOWERS_WITHIN_S", 3_600.0)
    service = a_service(tmp_path)
    service.begin_round(ROUND, range(1))
    write(tmp_path, "one\n")
    await read(service)
    await service.await_followers()
    follows = structs.replace(WANTED, follow=True)
    await read(service, follows)
    write(tmp_path, "last\n")
    leaving = asyncio.ensure_future(service.await_followers())
    await asyncio.sleep(0)
    assert not leaving.done()
    assert (await read(service, structs.replace(follows, after=LogPlace(0, 0)))).data == b"one\nlast\n"
    await leaving


async def test_a_reader_that_is_gone_is_waited_for_within_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_service, "FOLLOWERS_WITHIN_S", 0.01)
    service = a_service(tmp_path)
    service.begin_round(ROUND, range(1))
    await read(service, structs.replace(WANTED, follow=True))
    await service.await_followers()


async def test_without_a_thread_to_read_in_a_request_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = a_service(tmp_path)
    service.begin_round(ROUND, range(1))

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as exhausted:
        exhausted.setattr(threading.Thread, "start", start)
        assert (await read(service)).problem == "the log cannot be read: the system has no thread to give"
    write(tmp_path, "one\n")
    assert (await read(service)).data == b"one\n"


async def test_a_full_disk_is_said_without_a_name_that_nobody_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    complaints: asyncio.Queue[str] = asyncio.Queue()

    def fail(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", fail)
    a_service(tmp_path, complain=complaints.put_nowait).begin_round(ROUND, range(1))
    async with asyncio.timeout(TIMEOUT_S):
        said = await complaints.get()
    assert said == "log files cannot be kept in order: No space left on device"
