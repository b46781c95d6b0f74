"""Our own outputs are written to without waiting, whatever they are, and stay as they were for everybody else."""

import os
import select
import socket
from pathlib import Path
from typing import Any

import pytest

from nodeclient.output.descriptors import Writer, open_writer, same_place

OPEN = os.open


def _fill(out: Writer, data: bytes) -> int:
    """Write until there is no room; return how much went in."""
    written = 0
    try:
        while True:
            written += out.write(data, 0)
    except BlockingIOError:
        return written


def _no_reopening(path: Any, flags: int, *rest: Any, **others: Any) -> int:
    if str(path).startswith("/proc/self/fd/"):
        raise PermissionError
    return OPEN(path, flags, *rest, **others)


def _pair(kind: str) -> tuple[int, int]:
    if kind == "socket":
        return tuple(end.detach() for end in socket.socketpair())  # type: ignore[return-value]
    return os.pipe() if kind == "pipe" else os.openpty()


@pytest.mark.parametrize("may_reopen", [True, False])
@pytest.mark.parametrize("kind", ["pipe", "terminal", "socket"])
def test_what_is_full_is_not_waited_for_and_is_not_changed(
    monkeypatch: pytest.MonkeyPatch, kind: str, may_reopen: bool
) -> None:
    reading, writing = _pair(kind)
    if not may_reopen:
        monkeypatch.setattr(os, "open", _no_reopening)
    out = open_writer(writing)
    assert _fill(out, b"x" * 100_000) > 1_000
    assert os.get_blocking(writing)
    assert os.read(reading, 10_000)
    out.close()
    os.fstat(writing)  # is open still
    os.close(reading)
    os.close(writing)


def test_lines_stay_whole_in_a_pipe_that_others_write_to_as_well() -> None:
    reading, writing = os.pipe()
    out = open_writer(writing)
    line = b"y" * 99 + b"\n"
    assert out.write(line * 100, 0) == select.PIPE_BUF // 100 * 100
    assert out.write(line * 100, 50) == (select.PIPE_BUF + 50) // 100 * 100 - 50
    assert out.write(b"z" * 10_000, 0) == select.PIPE_BUF
    out.close()
    os.close(reading)
    os.close(writing)


def test_files_and_devices_are_written_to_as_they_are(tmp_path: Path) -> None:
    for path in (tmp_path / "file", Path(os.devnull)):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT)
        os.write(fd, b"before ")
        out = open_writer(fd)
        assert out.write(b"and after", 4) == 5
        out.close()
        os.write(fd, b" us")
        os.close(fd)
    assert (tmp_path / "file").read_bytes() == b"before after us"


def test_a_place_is_known_by_whatever_descriptor(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    copy = os.dup(writing)
    file = os.open(tmp_path / "file", os.O_WRONLY | os.O_CREAT)
    assert same_place(writing, copy)
    assert not same_place(writing, file)
    for fd in (reading, writing, copy, file):
        os.close(fd)
