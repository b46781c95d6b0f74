"""Log files: every byte is there, in files of the wanted size, and errors pass."""

import os
import random
from pathlib import Path

import pytest

from nodeclient.output import files
from nodeclient.output.files import LogFile, LogFileErrors
from nodeclient.output.output_settings import Rotation


@pytest.fixture
def complaints() -> list[str]:
    return []


@pytest.fixture
def errors(complaints: list[str]) -> LogFileErrors:
    return LogFileErrors(complaints.append)


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try again, and look, at once."""
    monkeypatch.setattr(files, "RETRY_AFTER_S", 0.0)
    monkeypatch.setattr(files, "CHECK_S", 0.0)


def test_a_file_is_begun_with_its_first_byte_and_never_overwritten(tmp_path: Path, errors: LogFileErrors) -> None:
    path = tmp_path / "deep" / "down" / "stdout.log"
    file = LogFile(path, errors)
    assert not path.parent.exists()
    file.write(b"one\n\x00\xff")
    file.end()
    again = LogFile(path, errors)
    again.write(b"two\n")
    again.end()
    assert path.read_bytes() == b"one\n\x00\xfftwo\n"


def test_a_pipe_in_the_place_of_a_file_holds_nobody_up(
    tmp_path: Path, errors: LogFileErrors, complaints: list[str]
) -> None:
    path = tmp_path / "stdout.log"
    os.mkfifo(path)
    file = LogFile(path, errors)
    file.write(b"one\n")
    file.end()
    assert len(complaints) == 2
    assert all(f"{path}: No such device or address" in complaint for complaint in complaints)


def test_rotation_keeps_lines_whole_and_the_newest_files(tmp_path: Path, errors: LogFileErrors) -> None:
    path = tmp_path / "stdout.log"
    file = LogFile(path, errors, Rotation(1_000, 3))
    written = b"".join(b"line %d %s\n" % (number, b"x" * (number % 90)) for number in range(500))
    dice = random.Random(0)  # noqa: S311 - cuts at places of its own
    start = 0
    while start < len(written):
        size = dice.choice([1, 7, 300, 2_500])
        file.write(written[start : start + size])
        start += size
    file.end()
    names = ["stdout.log.3", "stdout.log.2", "stdout.log.1", "stdout.log"]
    assert {path.name for path in tmp_path.iterdir()} == set(names)
    kept = [(tmp_path / name).read_bytes() for name in names]
    assert all(part.endswith(b"\n") and part.startswith(b"line ") and 900 < len(part) <= 1_000 for part in kept[:-1])
    assert written.endswith(b"".join(kept))


def test_a_line_longer_than_a_file_has_a_file_to_itself(tmp_path: Path, errors: LogFileErrors) -> None:
    file = LogFile(tmp_path / "log", errors, Rotation(100, 5))
    long = b"y" * 5_000 + b"\n"
    for part in (b"before\n", long[:2_000], long[2_000:], b"after\n"):
        file.write(part)
    file.end()
    assert [(tmp_path / name).read_bytes() for name in ("log.2", "log.1", "log")] == [b"before\n", long, b"after\n"]


def test_what_has_no_lines_is_cut_somewhere(
    tmp_path: Path, errors: LogFileErrors, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "LINE_BYTES_MAX", 1_000)
    file = LogFile(tmp_path / "log", errors, Rotation(500, 2))
    for _ in range(100):
        file.write(b"z" * 100)
    file.end()
    assert {path.name for path in tmp_path.iterdir()} == {"log", "log.1", "log.2"}
    assert all(path.stat().st_size <= 1_600 for path in tmp_path.iterdir())


@pytest.mark.usefixtures("patience")
def test_a_full_disk_costs_lines_and_is_said_once(tmp_path: Path, errors: LogFileErrors, complaints: list[str]) -> None:
    path = tmp_path / "stdout.log"
    path.symlink_to("/dev/full")
    file = LogFile(path, errors)
    file.write(b"lost\n")
    file.write(b"lost too\n")
    path.unlink()
    file.write(b"here\n")
    file.end()
    assert path.read_bytes() == b"[nodeclient: 14 bytes are missing here: No space left on device]\nhere\n"
    assert len(complaints) == 1
    assert f"{path}: No space left on device" in complaints[0]
    assert "training goes on" in complaints[0]


def test_a_broken_file_is_not_tried_again_at_once_and_the_end_says_what_it_lacks(
    tmp_path: Path, errors: LogFileErrors, complaints: list[str]
) -> None:
    path = tmp_path / "stdout.log"
    path.symlink_to("/dev/full")
    file = LogFile(path, errors)
    file.write(b"lost\n")
    path.unlink()
    file.write(b"lost too\n")
    file.end()
    file.end()
    assert not path.exists()
    assert complaints[1:] == [f"the last 14 bytes of output are missing in {path}: No space left on device"]


@pytest.mark.usefixtures("patience")
def test_a_removed_directory_is_made_again(tmp_path: Path, errors: LogFileErrors, complaints: list[str]) -> None:
    path = tmp_path / "0" / "stdout.log"
    file = LogFile(path, errors)
    file.write(b"lost\n")
    path.unlink()
    path.parent.rmdir()
    file.write(b"here\n")
    file.end()
    assert path.read_bytes() == b"here\n"
    assert complaints[0].startswith(f"log files cannot be written: {path}: it was removed")


@pytest.mark.usefixtures("patience")
def test_a_file_that_its_system_knows_no_more_is_opened_again(
    tmp_path: Path, errors: LogFileErrors, complaints: list[str]
) -> None:
    path = tmp_path / "stdout.log"
    file = LogFile(path, errors)
    file.write(b"one\n")
    assert file._fd is not None
    os.close(file._fd)  # as a network file system answers ESTALE, so does this one EBADF
    for line in (b"lost\n", b"two\n"):
        file.write(line)
    file.end()
    assert b"one\n" in path.read_bytes()
    assert path.read_bytes().endswith(b"two\n")
    assert len(complaints) == 1
