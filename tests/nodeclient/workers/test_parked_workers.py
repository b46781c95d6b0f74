"""What lives on, of real processes, when a round ends and its workers are held for the next one."""

import asyncio
import os
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from nodeclient.workers.leftover_processes import EndedWorker
from nodeclient.workers.local_workers import LocalWorkers
from nodeclient.workers.process_tree import kill_marked, marked
from nodeclient.workers.spawn import WorkerCommand
from tests.support.own_outputs import own_outputs
from tests.support.programs import TIMEOUT_S

pytestmark = [pytest.mark.timeout(TIMEOUT_S), pytest.mark.slow]


WITH_DAEMON = "echo $(setsid sh -c 'sleep 1000 > /dev/null & echo $!') > {fifo}; exec sleep 1000"
"""A worker that starts a process which is not its child, as some loggers do, and writes its number once all others that
it took have ended."""

WITH_CHILD = f"""exec {sys.executable} -I -S -c 'import os
child = os.spawnlp(os.P_NOWAIT, "sleep", "sleep", "1000")
open("{{fifo}}", "w").write(str(child))
os.wait()'"""
"""A worker that has a child in its process group, whose number it writes. It is no shell by then: the death of one
would end the child."""


class TwoWorkers:
    """A worker group of two, each with a daemon."""

    def __init__(self, folder: Path) -> None:
        self.mark = secrets.token_hex(16)
        self.exits = asyncio.Queue[tuple[int, int]]()
        self.workers = LocalWorkers(self.mark, lambda *ended: self.exits.put_nowait(ended), self._leave)
        self._fifos = [folder / str(local_rank) for local_rank in range(2)]
        for fifo in self._fifos:
            os.mkfifo(fifo)

    async def _leave(self, ended: Sequence[EndedWorker]) -> None:
        """End what has been left behind."""
        for worker in ended:
            kill_marked(worker.mark)

    async def start(self, script: str = WITH_DAEMON, stays: Sequence[int] = ()) -> list[int]:
        """Start them, except for those that were held and stay; return the numbers that the new ones have written."""
        scripts = [script.format(fifo=fifo) for fifo in self._fifos]
        commands = [WorkerCommand(("sh", "-c", script), dict(os.environ)) for script in scripts]
        self.workers.start(commands, own_outputs(len(commands)), dict.fromkeys(stays, lambda *_: None))
        new = [fifo for local_rank, fifo in enumerate(self._fifos) if local_rank not in stays]
        return [int(await asyncio.to_thread(fifo.read_text)) for fifo in new]


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[TwoWorkers]:
    workers = TwoWorkers(tmp_path)
    yield workers
    workers.workers.release_parked()
    await workers.workers.sweep()
    assert marked(workers.mark) == []


async def test_one_that_is_dismissed_ends_and_the_other_one_lives_on(two: TwoWorkers) -> None:
    daemons = await two.start()
    pids, stays = two.workers.pids, two.workers.pid_of(1)
    two.workers.park(0)
    two.workers.park(1)
    await two.workers.sweep()
    assert {*daemons, *pids} <= set(marked(two.mark)), "all are held, so their daemons live on"
    await two.workers.dismiss({0}, TIMEOUT_S)
    assert two.exits.get_nowait() == (0, -15)
    assert two.workers.pids == {stays}
    assert {*marked(two.mark)} == {stays, daemons[1]}


async def test_one_that_died_while_it_was_held_is_swept_after_the_next_round(two: TwoWorkers) -> None:
    [child, _] = await two.start(WITH_CHILD)
    two.workers.park(0)
    two.workers.park(1)
    await two.workers.sweep()
    os.kill(two.workers.pid_of(0), signal.SIGKILL)
    assert await two.exits.get() == (0, -9)
    await two.start(WITH_CHILD, stays=[1])
    assert child in marked(two.mark), "it is left behind"
    two.workers.park(0)
    two.workers.park(1)
    await two.workers.sweep()
    assert child not in marked(two.mark)
    assert two.workers.pids == {two.workers.pid_of(0), two.workers.pid_of(1)}
    await two.start(WITH_CHILD, stays=[0, 1])


async def test_no_round_starts_while_a_worker_is_dismissed(two: TwoWorkers) -> None:
    await two.start()
    two.workers.park(0)
    two.workers.park(1)
    dismissing = asyncio.ensure_future(two.workers.dismiss({0}, TIMEOUT_S))
    await asyncio.sleep(0)
    with pytest.raises(AssertionError, match="was not swept"):
        await two.start()
    await dismissing


async def test_the_daemon_of_a_worker_that_is_held_lives_on(two: TwoWorkers) -> None:
    daemons = await two.start()
    held = two.workers.pid_of(0)
    two.workers.park(0)
    await two.workers.sweep()
    assert two.exits.get_nowait() == (1, -9)
    assert {*marked(two.mark)} == {held, daemons[0]}
