"""Errors of output cost output at most: never the training, the event loop or the memory of the node."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from coordinatord.protocol.fields import EARLY_LINES_MAX
from coordinatord.protocol.messages import Ended
from nodeclient.diagnosis.diagnose import early_output
from nodeclient.output import file_thread, output, pump
from nodeclient.output.log_paths import LogPaths
from nodeclient.output.output import UNREAD_BYTES_MAX
from nodeclient.output.output_settings import OutputSettings, Streams
from nodeclient.output.streams import DRAIN_BYTES_MAX
from nodeclient.output.terminal_writer import QUEUE_BYTES_MAX
from nodeclient.workers.spawn import SpawnError, WorkerCommand
from tests.nodeclient.output.stage import Gate, Screen, Stage, by_rank, log_file, on_stage
from tests.support.programs import TIMEOUT_S, open_files, wait_until

pytestmark = pytest.mark.slow

FLOOD = 'for n in range(1_000_000): out(f"line {n}\\n")'


@pytest.fixture
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give up at once on a terminal that takes nothing."""
    monkeypatch.setattr(pump, "FLUSH_WITHIN_S", 0.1)


async def _full(stage: Stage) -> None:
    """Wait until workers are held, for nobody reads the screen."""
    terminal_writer = stage.output._terminal_writers[Streams.STDERR]
    await asyncio.to_thread(wait_until, "a screen that is full", lambda: terminal_writer.is_full)


def _held() -> int:
    return open_files() + threading.active_count()


# Nobody reads


@pytest.mark.usefixtures("impatience")
@pytest.mark.parametrize("is_terminal", [False, True])
async def test_the_end_of_stderr_is_known_though_the_terminal_is_stopped(is_terminal: bool, gate: Gate) -> None:
    dying = f'{gate.wait}; err("y\\n" * 5_000 + "ValueError: no\\n"); os.kill(os.getpid(), 9)'
    async with on_stage(is_terminal=is_terminal, is_read=False) as stage:
        stage.start(dying, FLOOD, FLOOD)
        await _full(stage)
        await gate.open()
        assert await stage.exits.get() == (0, -signal.SIGKILL)
        assert await stage.output.end_of_stderr(0) == b"y\n" * 5_000 + b"ValueError: no\n"
        await stage.workers.sweep()
        assert stage.output._terminal_writers[Streams.STDERR].size < 8 * (QUEUE_BYTES_MAX + DRAIN_BYTES_MAX)
    os.close(stage.stderr.reading)
    stage.stderr.leave()


@pytest.mark.usefixtures("impatience")
async def test_log_lines_do_not_wait_for_a_stopped_terminal_and_do_not_pile_up() -> None:
    async with on_stage(is_terminal=True, is_read=False) as stage:
        for number in range(30_000):
            stage.output.terminal.write_lines(f"log line {number} {'x' * 100}")
            stage.output.terminal.draw("waiting")
            if number % 100 == 0:
                await asyncio.sleep(0)
        assert stage.output._terminal_writers[Streams.STDERR].size < 2 * UNREAD_BYTES_MAX
    os.close(stage.stderr.reading)
    stage.stderr.leave()


MEMORY = """
import asyncio, os, resource, sys, threading
from tests.nodeclient.output.stage import on_stage

async def main():
    async with on_stage(is_read=False) as stage:
        def read_slowly():
            while chunk := os.read(stage.stderr.reading, 4096):
                taken.append(len(chunk))
        taken = []
        reader = threading.Thread(target=read_slowly)
        reader.start()
        await stage.run('err("warm\\\\n")', "")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        await stage.run(*['for _ in range(3_000): out("x" * 9_999 + "\\\\n")'] * 2)
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    stage.stderr.leave()
    reader.join()
    print(sum(taken) // 1024, after - before)

asyncio.run(main())
"""


@pytest.mark.long
async def test_the_node_does_not_grow_with_what_passes_through_it() -> None:
    def measure() -> str:
        command = [sys.executable, "-c", MEMORY]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=TIMEOUT_S).stdout

    passed_kib, grown_kib = map(int, (await asyncio.to_thread(measure)).split())
    assert passed_kib > 58_000
    assert grown_kib < 16_384


@pytest.mark.parametrize("workers", [1, pytest.param(3, marks=pytest.mark.long)])
async def test_a_reader_that_goes_away_ends_nothing(tmp_path: Path, workers: int) -> None:
    async with on_stage(OutputSettings(log_dir=tmp_path), is_read=False) as stage:
        stage.start(*['for n in range(50_000): print("training goes on", n, flush=True)\nsys.exit(5)'] * workers)
        os.read(stage.stderr.reading, 1)
        os.close(stage.stderr.reading)
        assert await stage.ended() == dict.fromkeys(range(workers), 5)
        assert not stage.output.terminal.is_live
    expected = b"".join(b"training goes on %d\n" % n for n in range(50_000))
    for rank in range(workers):
        assert log_file(tmp_path, rank, "stdout") == expected
    assert stage.complaints == []
    stage.stderr.leave()


async def test_a_terminal_that_hangs_up_ends_neither_the_only_worker_nor_the_next_round() -> None:
    async with on_stage(is_terminal=True, is_read=False) as stage:
        stage.start('for n in range(50_000): out("training goes on\\n")\nsys.exit(5)')
        os.read(stage.stderr.reading, 1)
        os.close(stage.stderr.reading)
        assert await stage.ended() == {0: 5}
        assert await stage.run('out("so does the next round\\n"); sys.exit(6)') == {0: 6}
    stage.stderr.leave()


# Files


async def test_a_log_directory_that_hangs_stops_no_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No real file system hangs on demand, so its thread stands still."""
    monkeypatch.setattr(file_thread, "HANGS_AFTER_S", 0.05)
    monkeypatch.setattr(file_thread, "WAITING_BYTES_MAX", 100_000)
    heals = threading.Event()
    async with on_stage(OutputSettings(log_dir=tmp_path)) as stage:
        stage.output._files.post(heals.wait)
        assert await stage.run('for _ in range(300): out("x" * 9_999 + "\\n")') == {0: 0}
        heals.set()
    stage.stderr.finish()
    assert len(stage.complaints) == 1
    assert "stdout.log: the file system does not answer" in stage.complaints[0]
    assert b"bytes are missing here: the file system did not answer" in log_file(tmp_path, 0, "stdout")


async def test_a_log_directory_that_hangs_at_the_end_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_thread, "END_WITHIN_S", 0.05)
    heals = threading.Event()
    async with on_stage(OutputSettings(log_dir=tmp_path)) as stage:
        stage.output._files.post(heals.wait)
    heals.set()
    stage.stderr.finish()
    [complaint] = stage.complaints
    assert complaint.startswith(f"the last lines are missing in {tmp_path}: its file system does not answer")


async def test_a_log_directory_that_cannot_be_made_does_not_stop_a_round(tmp_path: Path) -> None:
    (tmp_path / "job").write_text("in the way")
    async with on_stage(OutputSettings(log_dir=tmp_path)) as stage:
        assert await stage.run('out("here\\n"); open("/dev/null")') == {0: 0}
        file = stage.streams[0].error_file
        assert tmp_path not in file.parents
        assert file.parent.is_dir()
    assert stage.stderr.finish() == b"here\n"
    assert len(stage.complaints) == 2
    assert "the last 5 bytes of output are missing in" in stage.complaints[1]


async def test_our_own_output_on_a_full_disk_is_said_once(tmp_path: Path) -> None:
    full = Screen()
    os.close(full.fd)
    full.fd = os.open(tmp_path / "out", os.O_WRONLY | os.O_CREAT)
    limited = f"""
import asyncio, os, resource, signal
from tests.nodeclient.output.stage import Screen, on_stage
async def main():
    screen = Screen()
    os.close(screen.fd)
    screen.fd = {full.fd}
    async with on_stage(stdout=screen) as stage:
        codes = await stage.run(*['for n in range(3): out("x" * 3_000 + "\\\\n"); time.sleep(0.1)\\nsys.exit(5)'] * 2)
        assert codes == {{0: 5, 1: 5}}
    stage.stderr.finish()
    print(stage.complaints)
resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, 5_000))
asyncio.run(main())
"""

    def measure() -> str:
        done = subprocess.run(
            [sys.executable, "-c", limited],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            timeout=TIMEOUT_S,
            pass_fds=[full.fd],
        )
        return done.stdout

    complaints = await asyncio.to_thread(measure)
    assert complaints.count("output is lost") == 1
    assert f"{tmp_path}/out cannot be written: File too large" in complaints
    assert (tmp_path / "out").stat().st_size == 5_000
    full.leave()
    os.close(full.reading)


# Workers


async def test_a_child_that_holds_the_pipe_delays_nothing() -> None:
    script = 'if os.fork() == 0: time.sleep(1000)\nerr("no\\n")'
    async with on_stage() as stage:
        stage.start(script, "signal.pause()")
        assert await stage.exits.get() == (0, 0)
        assert await stage.output.end_of_stderr(0) == b"no\n"
        await stage.workers.sweep()
    assert by_rank(stage.stderr.finish(), range(2)) == {0: [b"no"], 1: []}


async def test_a_slow_disk_delays_the_end_of_stderr_for_a_while_only(monkeypatch: pytest.MonkeyPatch) -> None:
    written = threading.Event()
    async with on_stage() as stage:
        assert await stage.run('err("no\\n")') == {0: 0}
        assert await stage.output.end_of_stderr(0) == b"no\n"
        monkeypatch.setattr(output, "ANSWER_WITHIN_S", 0.1)
        stage.output._files.post(written.wait)
        try:
            async with asyncio.timeout(TIMEOUT_S / 10):
                assert await stage.output.end_of_stderr(0) == b"no\n"
        finally:
            written.set()
    stage.stderr.finish()


async def test_what_a_worker_that_exited_with_0_wrote_last_is_read_to_its_end(tmp_path: Path) -> None:
    async with on_stage(OutputSettings(log_dir=tmp_path)) as stage:
        stage.start('err("first\\n" * 1_000 + "\\nno data is left\\n")', "")
        assert await stage.ended() == {0: 0, 1: 0}
        assert await early_output((), stage.output, range(2)) is None
        said = await early_output((Ended(0, 1.0), Ended(1, 1.0)), stage.output, range(2))
        assert said is not None
        assert said.lines == ("first",) * (EARLY_LINES_MAX - 1) + ("no data is left",)
        assert said.log == str(tmp_path / "job" / "run" / "round_1" / "0" / "stderr.log")


async def test_a_worker_may_close_its_stderr_and_go_on() -> None:
    async with on_stage() as stage:
        assert await stage.run('err("before\\n"); os.close(2); out("after\\n"); sys.exit(4)', "") == {0: 4, 1: 0}
        assert await stage.output.end_of_stderr(0) == b"before\n"
        assert await stage.output.end_of_stderr(1) == b""
        assert await stage.output.end_of_stderr(2) == b""
    assert by_rank(stage.stderr.finish(), range(1)) in ({0: [b"before", b"after"]}, {0: [b"after", b"before"]})


async def test_a_worker_that_cannot_be_started_leaves_nothing_open() -> None:
    async with on_stage() as stage:
        await stage.run("", "")
        before = open_files()
        bad = WorkerCommand(("/no/such/program",), {})
        with (
            pytest.raises(SpawnError),
            stage.output.begin(LogPaths("job", "run", 2), range(2), several_hosts=False) as streams,
        ):
            stage.workers.start([bad, bad], streams)
        await asyncio.to_thread(wait_until, "closed descriptors", lambda: open_files() <= before)
        assert await stage.output.end_of_stderr(0) == b""
    stage.stderr.finish()


@pytest.mark.parametrize("is_terminal", [False, pytest.param(True, marks=pytest.mark.long)])
async def test_many_rounds_leak_neither_descriptors_nor_threads(tmp_path: Path, is_terminal: bool) -> None:
    async with on_stage(OutputSettings(log_dir=tmp_path), is_terminal=is_terminal) as stage:
        most = _held() + 20
        for number in range(2_000):
            place = LogPaths("job", "run", number)
            with stage.output.begin(place, range(1 + number % 2), several_hosts=False) as streams:
                os.write(streams[0].stderr, b"from round %d\n" % number)
            if number % 500 == 0:
                assert await stage.output.end_of_stderr(0) == b"from round %d\n" % number
                # The threads of files may still be about to close those of the last rounds.
                await asyncio.to_thread(wait_until, "earlier rounds to be let go of", lambda: _held() < most)
    written = stage.stderr.finish()
    assert all(b"from round %d\n" % number in written for number in range(2_000))


# Bugs


async def test_a_pump_that_dies_is_no_secret() -> None:
    async with on_stage() as stage:
        stage.output._pump.post(_bug)
        with pytest.raises(ZeroDivisionError):
            await stage.output.watch()
    stage.stderr.finish()


def _bug() -> None:
    raise ZeroDivisionError


async def test_last_words_after_the_end_are_written_still() -> None:
    async with on_stage() as stage:
        await stage.run("")
    stage.output.terminal.write_lines("last words")
    stage.output.terminal.draw("waiting")
    assert await stage.output.end_of_stderr(0) == b""
    assert stage.stderr.finish() == b"last words\n"
