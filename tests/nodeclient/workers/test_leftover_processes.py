"""Leftovers as real processes: they go on, are asked, are killed by name, and nothing of them is missed."""

import asyncio
import os
import secrets
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from coordinatord.runtime.tasks import Tasks
from nodeclient.core.effects import Level
from nodeclient.workers.leftover_processes import EndedWorker, LeftoverProcesses, program_of
from nodeclient.workers.process_tree import MARK_VARIABLE, kill_marked, marked
from tests.support.programs import TIMEOUT_S

pytestmark = [pytest.mark.timeout(TIMEOUT_S), pytest.mark.slow]

SHORT_S = 0.3
"""A `--stop-timeout` that is over soon."""

IGNORES = (sys.executable, "-I", "-S", "-c", "import signal; signal.signal(15, 1); print(flush=True); signal.pause()")
"""A program that ignores SIGTERM, and says when it does."""


class Stage:
    """One ended worker, what it has left, and what the user is told of it."""

    def __init__(self, stop_timeout_s: float) -> None:
        self.mark = secrets.token_hex(16)
        self.worker = EndedWorker(f"{self.mark}:1", None, "3")
        self.said: list[tuple[Level, str]] = []
        self.failed = asyncio.Event()
        """Whether an error was told."""
        self.tasks = Tasks()
        self.leftovers = LeftoverProcesses(stop_timeout_s, self.tasks, self.hear)
        self.processes: list[subprocess.Popen[bytes]] = []

    def hear(self, level: Level, text: str) -> None:
        """Note what the user is told."""
        self.said.append((level, text))
        if level is Level.ERROR:
            self.failed.set()

    def start(self, *argv: str, **options: object) -> subprocess.Popen[bytes]:
        """Start a leftover; return when it has written a line."""
        environ = {**os.environ, MARK_VARIABLE: self.worker.mark}
        process: subprocess.Popen[bytes] = subprocess.Popen(  # type: ignore[call-overload]
            argv, **{"env": environ, "stdout": subprocess.PIPE, **options}
        )
        self.processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline()
        return process


@asynccontextmanager
async def on_stage(stop_timeout_s: float) -> AsyncIterator[Stage]:
    """Yield a stage, and leave nothing of it."""
    stage = Stage(stop_timeout_s)
    try:
        yield stage
        assert marked(stage.mark) == []
    finally:
        await stage.tasks.cancel()
        kill_marked(stage.mark)
        for process in stage.processes:
            process.communicate()


async def test_one_that_waits_for_the_end_of_a_pipe_ends_by_itself(tmp_path: Path) -> None:
    async with on_stage(TIMEOUT_S) as stage:
        script = f"trap '' TERM; echo; cat > {tmp_path}/records"
        tracker = stage.start("sh", "-c", script, stdin=subprocess.PIPE, start_new_session=True)
        await stage.leftovers.watch([stage.worker])
        assert tracker.stdin is not None
        tracker.stdin.write(b"loss 1\n")
        tracker.stdin.close()
        tracker.stdin = None
        await stage.leftovers.end()
        assert (tmp_path / "records").read_text() == "loss 1\n"
        assert stage.said == []


async def test_one_that_ignores_sigterm_is_killed_at_last_and_named() -> None:
    async with on_stage(SHORT_S) as stage:
        process = stage.start(*IGNORES, start_new_session=True)
        await stage.leftovers.watch([stage.worker])
        await stage.leftovers.end()
        name = Path(sys.executable).name
        text = f"killed, since it did not end in time after its worker: rank 3: {name} (pid {process.pid})"
        assert stage.said == [(Level.WARNING, f"{text}; see --stop-timeout")]
        assert process.wait() == -9


async def test_what_one_has_started_since_is_ended_with_it() -> None:
    async with on_stage(SHORT_S) as stage:
        script = "echo; read line; (setsid sh -c 'trap \"\" TERM; echo up; sleep 1000 & wait' &)"
        parent = stage.start("sh", "-c", script, stdin=subprocess.PIPE)
        await stage.leftovers.watch([stage.worker])
        assert parent.stdin is not None
        assert parent.stdout is not None
        parent.stdin.write(b"\n")
        parent.stdin.flush()
        await asyncio.to_thread(parent.stdout.readline)
        await stage.leftovers.end()
        [(_, text)] = stage.said
        assert text.startswith(
            "killed, since it did not end in time after its worker: rank 3: s"
        )  # sh, or still setsid


async def test_one_that_wiped_its_environment_is_found_in_the_group_of_its_worker() -> None:
    async with on_stage(SHORT_S) as stage:
        process = stage.start(*IGNORES, env={}, start_new_session=True)
        await stage.leftovers.watch([EndedWorker(stage.worker.mark, process.pid, "3")])
        await stage.leftovers.end()
        assert process.wait() == -9
        assert len(stage.said) == 1


async def test_one_that_wiped_its_environment_and_outlives_its_end_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nodeclient.workers.leftover_processes.DEAD_WITHIN_S", 0.0)  # so any process outlives SIGKILL
    async with on_stage(SHORT_S) as stage:
        process = stage.start(*IGNORES, env={}, start_new_session=True)
        await stage.leftovers.watch([EndedWorker(stage.worker.mark, process.pid, "3")])
        await stage.leftovers.end()
        await stage.failed.wait()
        assert stage.said[-1][1].startswith(f"these processes are still there 0 s after SIGKILL: {process.pid}; ")


async def test_the_second_signal_kills_at_once() -> None:
    async with on_stage(TIMEOUT_S) as stage:
        process = stage.start(*IGNORES)
        await stage.leftovers.watch([stage.worker])
        ending = asyncio.ensure_future(stage.leftovers.end())
        stage.leftovers.on_signal()
        stage.leftovers.on_signal()
        await ending
        assert process.wait() == -9


async def test_one_that_listens_on_a_port_of_its_choice_gives_way_and_no_other_does() -> None:
    listens = """
import socket
print(flush=True)
input()
first = int(open("/proc/sys/net/ipv4/ip_local_port_range").read().split()[0])
for port in range(first - 1, 1023, -1):
    try:
        server = socket.create_server(("127.0.0.1", port))
    except OSError:
        continue
    break
print(flush=True)
server.accept()
"""
    async with on_stage(TIMEOUT_S) as stage:
        other = stage.start("sh", "-c", "echo; exec sleep 1000")
        server = stage.start(sys.executable, "-I", "-S", "-c", listens, stdin=subprocess.PIPE)
        await stage.leftovers.watch([stage.worker])
        await stage.leftovers.free_resources()
        assert stage.said == [], "it does not listen yet"
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(b"\n")
        server.stdin.flush()
        server.stdout.readline()
        await stage.leftovers.free_resources()
        assert server.wait() == -9
        [(_, text)] = stage.said
        assert text.endswith(f"rank 3: {Path(sys.executable).name} (pid {server.pid})")
        assert other.poll() is None
        other.kill()
        await stage.leftovers.end()


def test_a_leftover_that_has_ended_before_it_could_be_named_is_said_to_have() -> None:
    process = subprocess.Popen((sys.executable, "--version"), stdout=subprocess.DEVNULL)
    process.wait()
    assert program_of(process.pid) == "a program that has ended"
