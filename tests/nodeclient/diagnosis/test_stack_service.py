"""Real processes are asked where they stand: while they train, and in each kind of standstill."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import pytest

from coordinatord.protocol.arrival_messages import Arrivals, AskArrivals, unpack_ages
from coordinatord.protocol.stack_messages import AskStacks, StackOrigin, Stacks, WorkerStacks, unpack_stacks
from coordinatord.runtime.tasks import Tasks
from nodeclient.diagnosis.stack_service import StackService
from tests.support.programs import clean_environ

pytestmark = pytest.mark.asyncio

SCRIPT = """
import itertools, threading
{imports}
def lock():
    held = threading.Lock()
    held.acquire()
    ready()
    held.acquire()
def spin():
    ready()
    while True:
        pass
def gil():
    ready()
    sum(itertools.repeat(0))
def trains():
    import torch.distributed as dist
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    some = torch.ones(1)
    for _ in range(60):
        dist.all_reduce(some)
    ready()
    threading.Event().wait()
def ends():
    import torch.distributed as dist
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    some = torch.ones(1)
    for _ in range(2500):  # as many as the recorder holds: to write these out takes a while
        dist.all_reduce(some)
    c10d, asked = torch._C._distributed_c10d, threading.Event()
    get_handler = c10d._get_handler
    def get_when_asked(name):
        asked.set()
        return get_handler(name)
    c10d._get_handler = get_when_asked
    ready()
    asked.wait()
def ready():
    print("ready", flush=True)
{call}()
"""

KNOWN = "import workerlib"


class Stage:
    """A node with one worker."""

    def __init__(self, service: StackService, tasks: Tasks, folder: Path, stack: ExitStack) -> None:
        self.service = service
        self._tasks = tasks
        self._folder = folder
        self._stack = stack
        self.pid = 0
        self.looked = asyncio.Event()
        """Set when the service has asked for the worker's process id: it looks at the worker from then on."""
        self.poll: Callable[[], int | None] = lambda: None
        """Returns the exit code of a worker that has ended."""

    def pid_of(self) -> int:
        """Return the worker's process id, as nodeclient has it."""
        self.looked.set()
        return self.pid

    def start(self, call: str, imports: str = KNOWN) -> None:
        """Start the worker and wait until it is where it stays."""
        variables = self.service.listen(self._folder, "run", 1, range(5, 6))
        environ = {**clean_environ(), **variables, "LOCAL_RANK": "0", "PYTHONPATH": str(Path.cwd())}
        script = SCRIPT.format(call=call, imports=imports)
        worker = subprocess.Popen((sys.executable, "-S", "-c", script), env=environ, stdout=subprocess.PIPE)
        self._stack.callback(worker.stdout.close)  # type: ignore[union-attr]  # it is a pipe
        self._stack.callback(worker.wait)
        self._stack.callback(worker.kill)
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"ready\n"
        self.pid, self.poll = worker.pid, worker.poll

    async def ask(self, number: int = 1) -> Stacks:
        """Ask where the worker stands, and another one that there is not."""
        answer: asyncio.Future[Stacks] = asyncio.get_running_loop().create_future()
        self.service.read(AskStacks(3, "run", number, (0, 7)), answer.set_result)
        async with asyncio.timeout(60):
            return await self._tasks.guard(answer)

    async def arrivals(self, number: int = 1) -> Arrivals:
        """Ask when the worker came to its last 50 collectives, and another one that there is not."""
        answer: asyncio.Future[Arrivals] = asyncio.get_running_loop().create_future()
        self.service.read_arrivals(AskArrivals(3, "run", number, (0, 7), 50), answer.set_result)
        async with asyncio.timeout(60):
            return await self._tasks.guard(answer)

    async def look(self, until: Callable[[WorkerStacks], bool]) -> WorkerStacks:
        """Ask until this is so: a busy host may take its time."""
        async with asyncio.timeout(60):
            while True:
                [found] = (await self.ask()).workers
                if until(found):
                    return found


@asynccontextmanager
async def staged(folder: Path) -> AsyncIterator[Stage]:
    tasks = Tasks()
    with ExitStack() as stack:
        stage = Stage(StackService(lambda _: stage.pid_of(), tasks), tasks, folder, stack)
        try:
            yield stage
        finally:
            stage.service.close()
            await tasks.cancel()


def innermost(found: WorkerStacks) -> str:
    threads = unpack_stacks(found.stacks)
    return threads[0][1][0] if threads else ""


async def test_a_worker_that_waits_for_a_lock_answers_itself(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        stage.start("lock")
        found = await stage.look(lambda found: found.origin is StackOrigin.WORKER and found.cpus == 0)
        assert (found.rank, found.origin, found.state) == (5, StackOrigin.WORKER, "sleeping")
        assert [name for name, _ in unpack_stacks(found.stacks)] == ["MainThread"]
        assert innermost(found).startswith("lock (<string>:")


async def test_an_endless_loop_answers_and_is_seen_to_use_a_cpu(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        stage.start("spin")
        found = await stage.look(lambda found: found.origin is StackOrigin.WORKER and found.cpus > 0)
        assert innermost(found).startswith("spin (")
        assert found.state == "running"


async def test_a_worker_whose_c_code_holds_the_lock_of_python_is_had_by_the_signal(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        stage.start("gil")
        for _ in range(2):  # asked again, it is as it was
            found = await stage.look(lambda found: found.origin is not StackOrigin.NONE)
            assert found.origin is StackOrigin.SIGNAL
            assert innermost(found).startswith("gil (")


async def test_a_stopped_process_is_not_asked_and_its_state_is_told(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        stage.start("spin")
        await stage.look(lambda found: found.origin is StackOrigin.WORKER)
        os.kill(stage.pid, signal.SIGSTOP)
        found = await stage.look(lambda found: found.state == "stopped")
        assert (found.origin, found.stacks) == (StackOrigin.NONE, b"")
        assert found.problem == "it cannot answer: its process is stopped"
        os.kill(stage.pid, signal.SIGCONT)
        assert (await stage.look(lambda found: found.origin is StackOrigin.WORKER)).problem == ""


async def test_of_a_worker_that_knows_nothing_of_it_the_kernel_tells(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        stage.start("lock", imports="")
        found = await stage.look(lambda found: found.state == "sleeping")
        assert found.origin is StackOrigin.NONE
        why = "it does not answer: its script has not come to `import workerlib`, or starts without --preload"
        assert found.problem == why


async def test_a_worker_that_has_taken_the_signal_for_itself_is_never_sent_it(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        stage.start("gil", imports=f"import signal; signal.signal(signal.SIGRTMAX - 3, print); {KNOWN}")
        found = await stage.look(lambda found: found.problem == "it does not answer")
        assert (found.origin, found.state) == (StackOrigin.NONE, "running")


async def test_a_worker_that_has_ended_is_said_to_have_ended(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        stage.start("ready")
        found = await stage.look(lambda found: found.state in {"ended", ""})
        assert found.stacks == b""


async def test_a_round_that_begins_meanwhile_does_not_change_whose_stacks_are_told(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        stage.start("lock", imports="")
        async with asyncio.TaskGroup() as group:
            asked = group.create_task(stage.ask())
            await stage.looked.wait()
            stage.service.listen(tmp_path, "run", 2, range(9, 10))
        [found] = asked.result().workers
        assert found.rank == 5


async def test_workers_of_another_round_are_not_asked(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        stage.start("lock")
        assert await stage.ask(2) == Stacks(3, (), "this node has no workers of that round")


async def test_whatever_else_connects_leaves_the_worker_its_place(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        stage.start("lock")
        await stage.look(lambda found: found.origin is StackOrigin.WORKER)
        folder = os.open(tmp_path, os.O_RDONLY)
        speeches = (b"", b"{}", b'{"local_rank":1e999,"signal":1}', b'{"local_rank":0,"signal":1}')
        for speech in speeches:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as strange:
                strange.connect(str(tmp_path / "stacks"))
                socket.send_fds(strange, [speech], [folder])
                assert await asyncio.to_thread(strange.recv, 1) == b"", "it is shown out"
        os.close(folder)
        assert (await stage.look(lambda found: found.origin is StackOrigin.WORKER)).problem == ""


async def test_a_worker_says_when_it_came_to_its_last_collectives(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        stage.start("trains", imports=f"import site; site.main(); import torch; {KNOWN}")
        arrivals = await stage.arrivals()
        while not arrivals.workers:  # a busy host may take its time
            arrivals = await stage.arrivals()
        [worker] = arrivals.workers
        [group] = worker.groups
        ages = unpack_ages(group.ages)
        assert (arrivals.request, arrivals.problem, worker.rank, group.group) == (3, "", 5, "default_pg")
        assert len(ages) == 50
        assert ages == sorted(ages, reverse=True)
        assert 0 <= arrivals.held_s <= arrivals.clock_s
        again = (await stage.arrivals()).workers
        assert all(group.first == other.groups[0].first for other in again), "it has gone no further"


async def test_a_worker_that_ends_while_it_is_asked_when_it_came_ends_well(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        stage.start("ends", imports=f"import site; site.main(); import torch; {KNOWN}")
        while stage.poll() is None:  # its first answers may be that nobody has connected yet
            await stage.arrivals()
        assert stage.poll() == 0


async def test_a_worker_without_a_recorder_says_nothing_of_collectives(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        stage.start("lock")
        found = await stage.arrivals()
        assert (found.workers, found.problem) == ((), "")


async def test_of_another_round_there_are_no_arrivals(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        stage.start("lock")
        assert (await stage.arrivals(2)).problem == "this node has no workers of that round"


async def test_a_worker_that_goes_as_it_is_asked_for_arrivals_has_none(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        stage.start("lock")
        await stage.look(lambda found: found.origin is StackOrigin.WORKER)
        asked = asyncio.ensure_future(stage.arrivals())
        await asyncio.sleep(0)  # the question is on its way
        await asyncio.sleep(0)  # whom it goes to is chosen
        stage.service.close()
        found = await asked
        assert (found.workers, found.problem) == ((), "")
