"""Lines for a reader that is slow, reads nothing or has gone: nobody waits, and what is lost is counted."""

import fcntl
import os
import threading
from collections.abc import Iterator

import pytest

from coordinatord.runtime.line_writer import UNREAD_BYTES_MAX, LineWriter
from tests.support.programs import TIMEOUT_S, wait_until

LINE = b"x" * 1023 + b"\n"

MANY = 2 * UNREAD_BYTES_MAX // len(LINE)


def lost(count: int) -> bytes:
    return b"lost %d\n" % count


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """Yield the ends of a pipe that holds a page."""
    read, write = os.pipe()
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 4096)
    yield read, write
    os.close(read)
    os.close(write)


@pytest.mark.parametrize("blocking", [True, False])
def test_who_writes_never_waits_and_the_reader_sees_how_many_were_lost(
    pipe: tuple[int, int], *, blocking: bool
) -> None:
    read, write = pipe
    os.set_blocking(write, blocking)
    writer = LineWriter(write, lost)
    for _ in range(MANY):
        writer.put(LINE)
    data = b""
    while b"lost" not in data:
        data += os.read(read, 65_536)
    *lines, written = data.splitlines(keepends=True)
    assert set(lines) == {LINE}
    assert written == lost(MANY - len(lines))
    assert len(lines) * len(LINE) >= UNREAD_BYTES_MAX - len(LINE)
    writer.put(b"on\n")
    assert os.read(read, 100) == b"on\n"
    writer.close()


@pytest.mark.parametrize("again", [True, False])
def test_lines_wait_where_no_thread_can_be_started(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch, *, again: bool
) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    read, write = pipe
    writer = LineWriter(write, lost)
    with monkeypatch.context() as system:
        system.setattr(threading.Thread, "start", refuse)
        writer.put(b"first\n")
        writer.put(b"second\n")
        if not again:
            writer.close()
    if again:
        writer.put(b"third\n")
        writer.close(TIMEOUT_S)
    assert os.read(read, 100) == b"first\nsecond\n" + b"third\n" * again


def test_all_that_waits_is_written_at_the_end(pipe: tuple[int, int]) -> None:
    read, write = pipe
    writer = LineWriter(write, lost)
    writer.put(b"first\n")
    writer.put(b"last\n")
    writer.close(TIMEOUT_S)
    assert os.read(read, 100) == b"first\nlast\n"
    writer.put(b"too late\n")
    os.set_blocking(read, False)
    with pytest.raises(BlockingIOError):
        os.read(read, 100)


def test_the_end_does_not_wait_for_a_reader_that_takes_nothing(pipe: tuple[int, int]) -> None:
    read, write = pipe
    writer = LineWriter(write, lost)
    for _ in range(9):
        writer.put(LINE)
    writer.close(0.01)
    while len(os.read(read, 4096)) == 4096:  # lets the thread go
        pass


def test_lines_that_cannot_be_written_are_counted_until_one_can() -> None:
    read, write = os.pipe()
    os.close(read)
    writer = LineWriter(write, lost)
    for _ in range(3):
        writer.put(b"nobody reads this\n")
    again, other = os.pipe()
    try:
        wait_until("the loss of three lines", lambda: writer.lost == 3)
        os.dup2(other, write)
        writer.put(b"on\n")
        data = b""
        while b"lost 3\n" not in data:
            data += os.read(again, 100)
        assert data == b"on\nlost 3\n"
        writer.close()
    finally:
        for fd in (write, again, other):
            os.close(fd)
