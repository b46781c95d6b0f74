"""A disk that hangs costs bytes, which are counted; one that is slow costs none."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeclient.output import file_thread
from nodeclient.output.file_thread import FileSink, FileThread, Filter
from nodeclient.output.files import LogFileErrors
from tests.support.programs import TIMEOUT_S

CHUNK = b"x" * 999 + b"\n"


@pytest.fixture
def files() -> Iterator[FileThread]:
    """Return a thread that has no bug."""
    failures: list[Exception] = []
    thread = FileThread(failures.append)
    yield thread
    thread.stop()
    assert failures == []


class HeldDisk:
    """A disk that takes nothing until it is let go: no real one hangs on demand."""

    def __init__(self, files: FileThread) -> None:
        self._heals, begins = threading.Event(), threading.Event()

        def hang() -> None:
            begins.set()
            self._heals.wait(TIMEOUT_S)

        files.post(hang)
        assert begins.wait(TIMEOUT_S)

    def let_go(self) -> None:
        """Let it take all."""
        self._heals.set()


def test_bytes_that_come_while_the_disk_hangs_are_counted_as_lost(
    tmp_path: Path, files: FileThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_thread, "HANGS_AFTER_S", 0.05)
    monkeypatch.setattr(file_thread, "WAITING_BYTES_MAX", 10_000)
    warnings: list[str] = []
    sink = FileSink(files, tmp_path / "log", LogFileErrors(warnings.append), None)
    disk = HeldDisk(files)
    for _ in range(100):
        sink.write(CHUNK)
    [warning] = warnings
    assert f"log files cannot be written: {tmp_path}/log: the file system does not answer" in warning
    disk.let_go()
    sink.end()
    files.stop()
    lines = (tmp_path / "log").read_bytes().splitlines(keepends=True)
    kept = lines.count(CHUNK)
    assert 0 < kept < 10
    lost = 1000 * (100 - kept)
    assert lines[-1] == f"[nodeclient: {lost} bytes are missing here: the file system did not answer]\n".encode()


def test_a_disk_that_is_slow_costs_nothing(tmp_path: Path, files: FileThread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_thread, "WAITING_BYTES_MAX", 10_000)
    warnings: list[str] = []
    sink = FileSink(files, tmp_path / "log", LogFileErrors(warnings.append), None)
    for _ in range(1000):
        sink.write(CHUNK)
    sink.end()
    files.stop()
    assert (tmp_path / "log").read_bytes() == 1000 * CHUNK
    assert warnings == []


def test_a_filter_copies_whole_lines_with_the_prefix(tmp_path: Path, files: FileThread) -> None:
    path = tmp_path / "filtered_stdout.log"
    warnings: list[str] = []
    file = FileSink(files, path, LogFileErrors(warnings.append), None)
    first, second = Filter(["loss", "bad"], b"[rank 0] ", file), Filter(["loss"], b"[rank 1] ", file)
    first.write(b"epoch 1\nlo")
    second.write(b"nothing\n")
    first.write(b"ss 0.5\nmore\nbad")
    second.end()
    first.end()
    files.stop()
    assert path.read_bytes() == b"[rank 0] loss 0.5\n[rank 0] bad\n"
