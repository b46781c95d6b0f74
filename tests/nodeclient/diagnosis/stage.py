"""A node with one worker, a real process, which is asked where it stands and when it came to its last collectives."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

from coordinatord.protocol.arrival_messages import Arrivals, AskArrivals
from coordinatord.protocol.stack_messages import AskStacks, Stacks, WorkerStacks
from coordinatord.runtime.tasks import Tasks
from nodeclient.diagnosis.stack_service import StackService
from tests.support.programs import clean_environ

SCRIPT = """
import itertools, os, pdb, socket, subprocess, threading
{imports}
def lock():
    held = threading.Lock()
    held.acquire()
    ready()
    held.acquire()
def runs():
    read, write = os.pipe()
    ready()
    subprocess.run("cat", stdin=read)  # it ends with the worker, which has the other end
def writes():
    ready()
    print("x" * (1 << 20), flush=True)  # nobody reads it
def debugs():
    ready()
    pair = socket.socketpair()
    file = pair[0].makefile("rw")
    pdb.Pdb(stdin=file, stdout=file, nosigint=True).set_trace()
def spin():
    ready()
    while True:
        pass
def gil():
    ready()
    sum(itertools.repeat(0))
def reduce(number, backend, device="cpu"):
    import torch.distributed as dist
    if not dist.is_initialized():
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    some = torch.ones(1, device=device)
    for _ in range(number):
        dist.all_reduce(some)
def trains():
    reduce(60, "gloo")
    ready()
    threading.Event().wait()
def trains_on_gpu():
    both = "cpu:gloo,cuda:nccl"
    reduce(60, both, "cuda")
    torch.cuda.synchronize()
    reduce(30, both)
    ready()
    threading.Event().wait()
def ends():
    reduce(2500, "gloo")  # as many as the recorder holds: to write these out takes a while
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

KNOWN = "import workerlib; workerlib.step(0)"

TORCH = f"import site; site.main(); import torch; {KNOWN}"


class Stage:
    """A node with one worker, of rank 5."""

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
        environ = {**clean_environ(), **variables, "COORDINATORD_WORKER": "0", "PYTHONPATH": str(Path.cwd())}
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

    async def arrivals(self, number: int = 1, local_ranks: tuple[int, ...] = (0, 7)) -> Arrivals:
        """Ask when workers came to their last 50 collectives: the one that there is, and another one."""
        answer: asyncio.Future[Arrivals] = asyncio.get_running_loop().create_future()
        self.service.read(AskArrivals(3, "run", number, local_ranks, 50), answer.set_result)
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
    """Begin without a worker; leave none behind."""
    tasks = Tasks()
    with ExitStack() as stack:
        stage = Stage(StackService(lambda _: stage.pid_of(), tasks), tasks, folder, stack)
        try:
            yield stage
        finally:
            stage.service.close()
            await tasks.cancel()
