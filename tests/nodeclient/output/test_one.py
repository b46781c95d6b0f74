"""One worker has the terminal to itself: what it writes arrives at once and unchanged, and a terminal stays one."""

import asyncio
import os
import signal
import termios
from pathlib import Path

import pytest

from nodeclient.output.output_settings import Choice, OutputSettings, Streams
from tests.nodeclient.output.stage import Gate, log_file, on_stage
from tests.support.programs import wait_until

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("is_terminal", [False, True])
async def test_each_byte_arrives_at_once(is_terminal: bool, gate: Gate) -> None:
    async with on_stage(is_terminal=is_terminal) as stage:
        stage.start(f'err("\\r 10%"); {gate.wait}; err("\\r 20%\\n\\x1b[A\\x04\\x03")')
        await stage.stderr.shows(rb"^\r 10%$")
        await gate.open()
        await stage.ended()
    assert stage.stderr.finish() == b"\r 10%\r 20%\n\x1b[A\x04\x03"


@pytest.mark.parametrize("is_terminal", [False, True])
async def test_all_of_a_flood_arrives(is_terminal: bool) -> None:
    junk = bytes(range(256))
    async with on_stage(is_terminal=is_terminal) as stage:
        await stage.run("err(bytes(range(256)) * 20_000)")
    assert stage.stderr.finish() == junk * 20_000


async def test_a_terminal_is_a_terminal_to_the_worker_and_nobody_s_controlling_one() -> None:
    script = """
size = os.get_terminal_size(2)
try:
    os.open("/dev/tty", os.O_RDWR)
    err("has a controlling terminal")
except OSError as error:
    pass
err(f"{os.isatty(1)} {os.isatty(2)} {size.lines}x{size.columns}")
"""
    async with on_stage(is_terminal=True) as stage:
        await stage.run(script)
    assert stage.stderr.finish() == b"True True 24x80"


async def test_a_window_that_changes_its_size_does_so_for_the_worker(gate: Gate) -> None:
    script = f"""
err("before")
{gate.wait}
while os.get_terminal_size(2).columns != 132: time.sleep(0.01)
err("after")
"""
    async with on_stage(is_terminal=True) as stage:
        stage.start(script)
        await stage.stderr.shows(b"before")
        termios.tcsetwinsize(stage.stderr.fd, (50, 132))
        os.kill(os.getpid(), signal.SIGWINCH)
        await gate.open()
        await stage.ended()
    assert stage.stderr.finish() == b"beforeafter"


async def test_with_a_directory_it_is_all_in_files_and_on_the_terminal(tmp_path: Path) -> None:
    async with on_stage(OutputSettings(log_dir=tmp_path), is_terminal=True) as stage:
        await stage.run('out(f"out {os.isatty(1)}\\n"); err("\\rbar")')
        await stage.run('out("second\\n")')
    assert stage.stderr.finish() in {b"out True\n\rbarsecond\n", b"\rbarout True\nsecond\n"}
    assert log_file(tmp_path, 0, "stdout") == b"out True\n"
    assert log_file(tmp_path, 0, "stderr") == b"\rbar"
    assert log_file(tmp_path, 0, "stdout", 2) == b"second\n"


async def test_a_rank_that_is_shown_alone_is_raw() -> None:
    async with on_stage(OutputSettings(terminal_ranks=frozenset({1}), redirects=Choice(Streams.STDOUT))) as stage:
        await stage.run(*['out("no\\n"); err(f"\\rbar {rank}")'] * 3)
    assert stage.stderr.finish() == b"\rbar 1"


async def test_without_a_directory_error_files_are_in_a_private_place() -> None:
    async with on_stage() as stage:
        await stage.run("open('/dev/null')", "")
        first = [stream.error_file for stream in stage.streams]
        assert len({file.name for file in first}) == 2
        assert all(file.parent.stat().st_mode & 0o777 == 0o700 for file in first)
        await asyncio.to_thread(first[0].write_text, "{}")
        await stage.run("", "")
        assert not any(file.exists() for file in first)
        last = stage.streams[0].error_file.parent
        assert last.is_dir()
    assert not last.exists()


async def test_log_lines_and_the_live_line_begin_on_a_line_of_their_own(gate: Gate) -> None:
    async with on_stage(is_terminal=True) as stage:
        stage.start(f'err("bar 10%"); {gate.wait}; err("bar 20%\\n")')
        await stage.stderr.shows(b"10%$")
        terminal = stage.output.terminal
        terminal.write_lines("log line")
        terminal.draw("waiting (9 s left)")
        await stage.stderr.shows(rb"left\)$")
        terminal.draw("waiting (8 s left)")
        await stage.stderr.shows(rb"8 s left\)$")
        await gate.open()
        await stage.ended()
        terminal.draw("w" * 200)
        terminal.draw("")
        terminal.write_lines("last words")
    drawn = stage.stderr.finish()
    erase = b"\r\x1b[K"
    assert drawn == (
        b"bar 10%\nlog line\n"
        + erase
        + b"waiting (9 s left)"
        + erase
        + b"waiting (8 s left)"
        + erase
        + b"bar 20%\n"
        + erase
        + b"w" * 79
        + erase
        + b"last words\n"
    )


async def test_where_there_are_no_pseudo_terminals_a_pipe_does(monkeypatch: pytest.MonkeyPatch) -> None:
    async with on_stage(is_terminal=True) as stage:
        monkeypatch.setattr(os, "openpty", _no_pseudo_terminal)
        await stage.run('err(f"{os.isatty(2)}")')
    assert stage.stderr.finish() == b"False"


def _no_pseudo_terminal() -> tuple[int, int]:
    raise OSError("there are none")


async def test_a_reader_that_comes_back_late_gets_everything() -> None:
    async with on_stage(is_read=False) as stage:
        stage.start('for n in range(100_000): out(f"line {n}\\n")')
        wait = asyncio.to_thread(
            wait_until, "a full queue", lambda: stage.output._terminal_writers[Streams.STDOUT].is_full
        )
        await wait
        assert len(stage.workers.pids) == 1
        stage.stderr.start_reading()
        await stage.ended()
    assert stage.stderr.finish() == b"".join(b"line %d\n" % n for n in range(100_000))
