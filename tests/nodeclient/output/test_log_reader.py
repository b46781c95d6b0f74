"""A log is read piece by piece, over its rotated files, and nothing else is read."""

import os
from pathlib import Path

import pytest

from coordinatord.protocol.log_messages import (
    LOG_BYTES_MAX,
    LOG_CHUNK_BYTES_MAX,
    LogChunk,
    LogPlace,
    LogStream,
    ReadLog,
)
from nodeclient.output import log_reader
from nodeclient.output.log_reader import read_chunk

PARTS = ("job", "e-1", "round_1")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Return the file of rank 3's stderr, whose directory is there."""
    folder = tmp_path.joinpath(*PARTS, "3")
    folder.mkdir(parents=True)
    return folder / "stderr.log"


def wanted(after: LogPlace | None = None, *, lines: int | None = None, most: int = LOG_BYTES_MAX) -> ReadLog:
    return ReadLog(7, "e-1", 1, 3, LogStream.STDERR, after, last_bytes=most, last_lines=lines, follow=False)


def read(log: Path, request: ReadLog) -> LogChunk:
    chunk = read_chunk(log.parents[4], PARTS, request)
    assert chunk.request == 7
    return chunk


def whole(log: Path, request: ReadLog) -> bytes:
    chunk = read(log, request)
    data = chunk.data
    while chunk.more:
        chunk = read(log, wanted(chunk.place))
        data += chunk.data
    assert not chunk.problem
    return data


@pytest.mark.parametrize(
    ("lines", "most", "expected"),
    [
        (None, LOG_BYTES_MAX, b"one\ntwo\nthree\n"),
        (2, LOG_BYTES_MAX, b"two\nthree\n"),
        (3, LOG_BYTES_MAX, b"one\ntwo\nthree\n"),
        (9, LOG_BYTES_MAX, b"one\ntwo\nthree\n"),
        (0, LOG_BYTES_MAX, b""),
        (None, 4, b"ree\n"),
        (None, 0, b""),
        (2, 8, b"o\nthree\n"),
    ],
)
def test_the_end_of_a_log_is_so_many_lines_or_bytes(log: Path, lines: int | None, most: int, expected: bytes) -> None:
    log.write_bytes(b"one\ntwo\nthree\n")
    assert whole(log, wanted(lines=lines, most=most)) == expected


def test_a_last_line_without_an_end_is_a_line(log: Path) -> None:
    log.write_bytes(b"one\ntwo\nthr")
    assert whole(log, wanted(lines=1)) == b"thr"


@pytest.mark.parametrize(
    ("text", "least"), [("é".encode(), 1), ("€".encode(), 2), ("🙂".encode(), 3), (b"\xff", 0), (b"\x80\x80", 0)]
)
def test_each_piece_ends_with_a_whole_character(log: Path, text: bytes, least: int) -> None:
    log.write_bytes(b"\xe2" + b"x" * (LOG_CHUNK_BYTES_MAX - 2) + text)
    first = read(log, wanted())
    assert len(first.data) == LOG_CHUNK_BYTES_MAX - (1 if least else 0)
    assert first.data + read(log, wanted(first.place)).data == log.read_bytes()
    for size in range(1, len(text)):
        log.write_bytes(text[:size])
        chunk = read(log, wanted())
        assert (chunk.data, chunk.more) == (b"" if least else text[:size], False), "the rest may come"


def test_a_long_log_comes_in_pieces_and_goes_on_as_it_grows(log: Path) -> None:
    text = b"".join(b"line %d\n" % number for number in range(20_000))
    log.write_bytes(text)
    assert whole(log, wanted()) == text
    assert whole(log, wanted(lines=15_000)) == b"".join(text.splitlines(keepends=True)[5_000:])
    last = read(log, wanted(lines=1))
    assert (last.data, last.more, last.gap) == (b"line 19999\n", False, False)
    assert read(log, wanted(last.place)).data == b""
    with log.open("ab") as file:
        file.write(b"more")
    assert read(log, wanted(last.place)).data == b"more"
    assert len(read(log, wanted()).data) == LOG_CHUNK_BYTES_MAX


def test_rotated_files_are_read_as_one_log(log: Path) -> None:
    log.with_name("stderr.log.2").write_bytes(b"1\n2\n")
    log.with_name("stderr.log.1").write_bytes(b"3\n4\n")
    log.write_bytes(b"5\n")
    assert whole(log, wanted()) == b"1\n2\n3\n4\n5\n"
    assert whole(log, wanted(lines=4)) == b"2\n3\n4\n5\n"
    before = read(log, wanted(lines=1)).place
    log.rename(log.with_name("stderr.log.0"))
    for number in (2, 1, 0):
        log.with_name(f"stderr.log.{number}").rename(log.with_name(f"stderr.log.{number + 1}"))
    log.write_bytes(b"6\n")
    chunk = read(log, wanted(before))
    assert (chunk.data, chunk.gap) == (b"6\n", False)


def test_a_file_that_is_rotated_between_two_looks_is_read_once(log: Path) -> None:
    log.with_name("stderr.log.2").write_bytes(b"1\n")
    log.write_bytes(b"2\n")
    os.link(log, log.with_name("stderr.log.1"))
    assert whole(log, wanted()) == b"1\n2\n"


def test_older_files_are_read_while_one_is_between_two_names(log: Path) -> None:
    log.with_name("stderr.log.1").write_bytes(b"1\n")
    place = read(log, wanted()).place
    log.with_name("stderr.log.1").rename(log.with_name("stderr.log.2"))
    log.write_bytes(b"2\n")
    assert whole(log, wanted()) == b"1\n2\n"
    chunk = read(log, wanted(place))
    assert (chunk.data, chunk.gap) == (b"2\n", False)


def test_what_was_rotated_away_meanwhile_is_a_gap(log: Path) -> None:
    log.write_bytes(b"new\n")
    chunk = read(log, wanted(LogPlace(1, 10)))
    assert (chunk.data, chunk.gap) == (b"new\n", True)


def test_another_file_with_the_number_of_one_that_is_gone_is_read_from_its_beginning(log: Path) -> None:
    log.write_bytes(b"old 1\n")
    place = read(log, wanted()).place
    log.write_bytes(b"new 1\nnew 2\n")  # in place, as file systems give the number of a deleted file to the next
    chunk = read(log, wanted(place))
    assert (chunk.data, chunk.gap) == (b"new 1\nnew 2\n", True)


def test_a_file_that_was_cut_in_place_is_read_from_its_beginning(log: Path) -> None:
    log.write_bytes(b"x" * 2 * log_reader.IDENTIFYING_BYTES)
    place = read(log, wanted()).place
    log.write_bytes(b"x" * log_reader.IDENTIFYING_BYTES)
    chunk = read(log, wanted(place))
    assert (len(chunk.data), chunk.gap) == (log_reader.IDENTIFYING_BYTES, True)


def test_lines_are_looked_for_within_bounds(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reader, "SEARCH_BYTES_MAX", 5)
    log.write_bytes(b"12345678\n")
    chunk = read(log, wanted(lines=1))
    assert (chunk.data, chunk.gap) == (b"5678\n", True)


def test_a_worker_that_has_written_nothing_has_an_empty_log_that_may_begin(log: Path) -> None:
    chunk = read(log, wanted(lines=0))
    assert (chunk.data, chunk.problem, chunk.more) == (b"", "", False)
    log.write_bytes(b"first\n")
    later = read(log, wanted(chunk.place, lines=0))
    assert (later.data, later.gap) == (b"first\n", False)


@pytest.mark.parametrize("link", ["file", "rank", "round"])
def test_no_symbolic_link_is_followed(log: Path, tmp_path: Path, link: str) -> None:
    other = tmp_path / "other"
    (other / "3").mkdir(parents=True)
    (other / "3" / "stderr.log").write_bytes(b"secret")
    if link == "file":
        log.symlink_to(other / "3" / "stderr.log")
    elif link == "rank":
        log.parent.rmdir()
        log.parent.symlink_to(other / "3")
    else:
        log.parent.rmdir()
        log.parents[1].rmdir()
        log.parents[1].symlink_to(other)
    chunk = read(log, wanted())
    assert (chunk.data, chunk.place) == (b"", None)
    assert chunk.problem.startswith("the log cannot be read: ")


def test_what_is_no_plain_file_is_not_read(log: Path) -> None:
    os.mkfifo(log)
    assert read(log, wanted()).problem == "the log cannot be read: stderr.log is no plain file"


def test_that_the_files_were_deleted_is_said(log: Path) -> None:
    log.parent.rmdir()
    log.parents[1].rmdir()
    assert read(log, wanted()).problem == "the files of round 1 were deleted"
