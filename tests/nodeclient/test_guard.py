"""Nothing outlives a nodeclient, however it dies; seen with a small parent in its place."""

# ruff: noqa: S607  # the tools are found as a person would find them

from __future__ import annotations

import os
import secrets
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from nodeclient.workers.guard import Guard
from nodeclient.workers.process_tree import MARK_VARIABLE, kill_marked, marked

TIMEOUT_MS = 60_000

NOWHERE = Path("/nowhere/at/all")
"""A directory that is gone already."""

PARENT = """
import asyncio, os, sys, uvloop
from pathlib import Path
from nodeclient.workers.guard import Guard
from nodeclient.workers.spawn import WorkerCommand
from nodeclient.workers.local_workers import LocalWorkers

async def main():
    mark, script, workers, folder = sys.argv[1:]
    guard = Guard(mark, Path(folder))
    guard.start()
    print(guard.pid, flush=True)
    group = LocalWorkers(mark, print)
    group.start([WorkerCommand(("sh", "-c", script), os.environ)] * int(workers))
    await asyncio.Event().wait()

uvloop.run(main())
"""

WORKER = """
trap '' TERM INT HUP
sleep 1000 & child=$!
setsid sleep 1000 & session=$!
orphan=$(setsid sh -c 'sleep 1000 > /dev/null & echo $!')
echo $$ $child $session $orphan
wait
"""


@pytest.fixture
def mark() -> Iterator[str]:
    token = secrets.token_hex(16)
    yield token
    kill_marked(token)


def _start_parent(mark: str, workers: int, folder: Path = NOWHERE) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PARENT, mark, WORKER, str(workers), str(folder)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _pidfds(lines: IO[str] | None, count: int) -> list[int]:
    assert lines
    return [os.pidfd_open(int(pid)) for _ in range(count) for pid in lines.readline().split()]


def _ignored(pidfd: int) -> set[int]:
    """Return the signals that a process ignores."""
    pid = dict(line.split(":") for line in Path(f"/proc/self/fdinfo/{pidfd}").read_text().splitlines())["Pid"].strip()
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    mask = int(status["SigIgn"], 16)
    return {signum for signum in signal.valid_signals() if mask >> (signum - 1) & 1}


def _await_end(pidfds: list[int]) -> None:
    for pidfd in pidfds:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        assert poll.poll(TIMEOUT_MS), "it outlived its nodeclient"
        os.close(pidfd)


def test_all_workers_and_their_descendants_die_with_a_killed_nodeclient(mark: str) -> None:
    with _start_parent(mark, workers=3) as parent:
        guard = _pidfds(parent.stdout, 1)
        descendants = _pidfds(parent.stdout, 3)
        assert len(descendants) == 12
        parent.kill()
        _await_end(descendants + guard)
    assert marked(mark) == []


def test_the_private_directory_goes_with_a_killed_nodeclient(mark: str, tmp_path: Path) -> None:
    folder, other = tmp_path / "private", tmp_path / "other"
    for made in (folder, other):
        made.mkdir(0o700)
        (made / "0.json").write_text("{}")
    with _start_parent(mark, workers=1, folder=folder) as parent:
        guard = _pidfds(parent.stdout, 1)
        descendants = _pidfds(parent.stdout, 1)
        parent.kill()
        _await_end(descendants + guard)
    assert list(tmp_path.iterdir()) == [other]


def test_the_workers_die_with_a_killed_nodeclient_even_without_a_guard(mark: str) -> None:
    with _start_parent(mark, workers=1) as parent:
        guard = _pidfds(parent.stdout, 1)
        worker, *others = _pidfds(parent.stdout, 1)
        signal.pidfd_send_signal(guard[0], signal.SIGKILL)
        _await_end(guard)
        parent.kill()
        _await_end([worker])
        kill_marked(mark)
        _await_end(others)


def test_the_guard_ignores_what_ends_a_session(mark: str) -> None:
    with _start_parent(mark, workers=1) as parent:
        guard = _pidfds(parent.stdout, 1)
        descendants = _pidfds(parent.stdout, 1)
        signums = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
        while not _ignored(guard[0]).issuperset(signums):
            os.sched_yield()
        for signum in signums:
            signal.pidfd_send_signal(guard[0], signum)
        parent.kill()
        _await_end(descendants + guard)
    assert marked(mark) == []


def test_after_a_clean_end_the_guard_is_gone(mark: str) -> None:
    guard = Guard(mark, NOWHERE)
    guard.start()
    pidfd = os.pidfd_open(guard.pid or 0)
    guard.close()
    _await_end([pidfd])
    guard.close()


def test_a_guard_that_died_is_replaced_at_the_next_start(mark: str) -> None:
    guard = Guard(mark, NOWHERE)
    guard.start()
    first = guard.pid or 0
    guard.start()
    second = guard.pid
    os.kill(first, signal.SIGKILL)
    os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
    guard.start()
    assert first == second != guard.pid
    guard.close()


def test_the_guard_carries_no_mark(mark: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MARK_VARIABLE, mark)
    guard = Guard(mark, NOWHERE)
    guard.start()
    assert marked(mark) == []
    guard.close()


def test_a_guard_without_anything_to_guard_harms_nobody(tmp_path: Path) -> None:
    guard = Guard(secrets.token_hex(16), NOWHERE)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, cwd=tmp_path) as bystander:
        guard.start()
        guard.close()
        assert bystander.poll() is None
