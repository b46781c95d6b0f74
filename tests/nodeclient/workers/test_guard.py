"""Nothing outlives a nodeclient, however it dies; seen with a small parent in its place."""

import asyncio
import errno
import os
import secrets
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.runtime import own_python
from nodeclient.workers import guard as guard_module
from nodeclient.workers.guard import Guard
from nodeclient.workers.process_tree import MARK_VARIABLE, kill_marked, marked
from tests.support.programs import TIMEOUT_S, Program, wait_until

pytestmark = [pytest.mark.timeout(TIMEOUT_S), pytest.mark.slow]

NOWHERE = Path("/nowhere/at/all")
"""A directory that is gone already."""

PARENT = """
import asyncio, os, sys, uvloop
from pathlib import Path
from nodeclient.output.output import WorkerStreams
from nodeclient.workers.guard import Guard
from nodeclient.workers.spawn import WorkerCommand
from nodeclient.workers.local_workers import LocalWorkers

async def main():
    mark, script, workers, folder = sys.argv[1:]
    guard = Guard(mark, Path(folder))
    guard.start()
    print(guard.pid, flush=True)
    group = LocalWorkers(mark, print, print)
    streams = [WorkerStreams(1, 2, Path(), {})] * int(workers)
    group.start([WorkerCommand(("sh", "-c", script), os.environ)] * int(workers), streams)
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


@contextmanager
def _parent(mark: str, workers: int, folder: Path = NOWHERE) -> Iterator[Program]:
    """Start the parent, which waits for ever unless it is killed."""
    with Program(sys.executable, "-c", PARENT, mark, WORKER, str(workers), str(folder)) as program:
        yield program


def _pidfds(parent: Program, workers: int) -> tuple[int, list[list[int]]]:
    """Wait for the lines of the parent and its workers, and open the guard and the processes of each worker."""
    guard = int(parent.await_line(r"^\d+$")[0])
    wait_until(f"{workers} workers", lambda: len(parent.lines) > workers or not parent.reading)
    assert len(parent.lines) == 1 + workers, parent.output
    return os.pidfd_open(guard), [[os.pidfd_open(int(pid)) for pid in line.split()] for line in parent.lines[1:]]


def _ignored(pidfd: int) -> set[int]:
    pid = dict(line.split(":") for line in Path(f"/proc/self/fdinfo/{pidfd}").read_text().splitlines())["Pid"].strip()
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    mask = int(status["SigIgn"], 16)
    return {signum for signum in signal.valid_signals() if mask >> (signum - 1) & 1}


def _await_end(pidfds: list[int]) -> None:
    for pidfd in pidfds:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        assert poll.poll(TIMEOUT_S * 1000), "it outlived its nodeclient"
        os.close(pidfd)


def test_all_workers_and_their_descendants_die_with_a_killed_nodeclient(mark: str, tmp_path: Path) -> None:
    folder, other = tmp_path / "private", tmp_path / "other"
    for made in (folder, other):
        made.mkdir(0o700)
        (made / "0.json").write_text("{}")
    with _parent(mark, workers=3, folder=folder) as parent:
        guard, workers = _pidfds(parent, 3)
        descendants = [pidfd for worker in workers for pidfd in worker]
        assert len(descendants) == 12
        parent.process.kill()
        _await_end([*descendants, guard])
    assert marked(mark) == []
    assert list(tmp_path.iterdir()) == [other], "its private directory is gone too"


def test_the_workers_die_with_a_killed_nodeclient_even_without_a_guard(mark: str) -> None:
    with _parent(mark, workers=1) as parent:
        guard, [[worker, *others]] = _pidfds(parent, 1)
        signal.pidfd_send_signal(guard, signal.SIGKILL)
        _await_end([guard])
        parent.process.kill()
        _await_end([worker])
        kill_marked(mark)
        _await_end(others)


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


@pytest.mark.parametrize(
    ("signum", "what"), [(signal.SIGKILL, "has ended (killed by SIGKILL)"), (signal.SIGSTOP, "was stopped")]
)
async def test_a_guard_that_ends_or_is_stopped_is_replaced_at_once_in_one_line(
    mark: str, signum: int, what: str
) -> None:
    guard, said = Guard(mark, NOWHERE), asyncio.Queue[str]()
    watching = asyncio.ensure_future(guard.watch(said.put_nowait))
    await asyncio.sleep(0)  # it watches from now on; one that ended before would be replaced without a word
    await guard.await_ready_in_loop()
    first = guard.pid or 0
    os.kill(first, signum)
    text = "the guard, which ends the workers should this process be killed"
    assert await said.get() == f"{text}, {what}: another one takes its place"
    await asyncio.to_thread(wait_until, "another guard", lambda: guard.pid != first)
    await guard.await_ready_in_loop()
    assert said.empty()
    watching.cancel()
    guard.close()


async def test_a_node_may_end_while_no_guard_has_replaced_the_last_one(
    mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard_module, "REPLACED_EVERY_S", TIMEOUT_S)

    guard, said = Guard(mark, NOWHERE), asyncio.Queue[str]()
    watching = asyncio.ensure_future(guard.watch(said.put_nowait))
    await asyncio.sleep(0)
    os.kill(guard.pid or 0, signal.SIGKILL)
    await said.get()
    assert guard.pid is None
    guard.close()
    watching.cancel()


async def test_a_guard_that_cannot_be_watched_is_reported_once(mark: str, monkeypatch: pytest.MonkeyPatch) -> None:
    said, refused, again = list[str](), list[int](), asyncio.Event()

    def refuse(pid: int) -> int:
        refused.append(pid)
        if len(refused) > 1:
            again.set()
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    guard = Guard(mark, NOWHERE)
    guard.await_ready()
    with monkeypatch.context() as patched:
        patched.setattr(os, "pidfd_open", refuse)
        watching = asyncio.ensure_future(guard.watch(said.append))
        await again.wait()
        watching.cancel()
    text = "the guard, which ends the workers should this process be killed, cannot be started or watched"
    assert said == [f"{text}: Too many open files; another try follows"]
    assert refused == [guard.pid] * 2
    guard.close()


def test_a_guard_is_up_before_workers_are_started_and_gone_after_a_clean_end(
    mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MARK_VARIABLE, mark)
    guard = Guard(mark, NOWHERE)
    guard.await_ready()
    pidfd = os.pidfd_open(guard.pid or 0)
    assert _ignored(pidfd).issuperset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})
    assert marked(mark) == [], "the guard has no mark itself"
    guard.await_ready()
    guard.close()
    _await_end([pidfd])
    guard.close()


def _broken_package(folder: Path) -> str:
    """Return a directory with our `workerlib`, and with a `nodeclient` that lacks its modules."""
    (folder / "nodeclient").mkdir()
    (folder / "nodeclient" / "__init__.py").touch()
    (folder / "workerlib").symlink_to(Path(own_python.PACKAGE_PARENT, "workerlib"))
    return str(folder)


def test_a_node_that_gets_no_guard_ends_before_it_joins(tmp_path: Path) -> None:
    broken = f"from coordinatord.runtime import own_python; own_python.PACKAGE_PARENT = {_broken_package(tmp_path)!r}"
    code = f"{broken}; from nodeclient.cli import main; main()"
    with Program(sys.executable, "-c", code, "join", "--coord", "127.0.0.1:1", "--", "true") as node:
        assert node.wait() == ExitCode.OS_ERROR
    [line] = [line for line in node.lines if "guard" in line or "Error" in line]
    assert "does not start: ModuleNotFoundError: No module named 'nodeclient.workers'" in line
    assert "no coordinator" not in node.output
