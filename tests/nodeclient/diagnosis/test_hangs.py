"""Real workers hang in each way, on a node of one worker and on a node of two: the verdict names the culprit."""

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import IO

import pytest
from msgspec.structs import replace

from coordinatord.core.watching.look_comparison import judge_pair, may_be_slow
from coordinatord.hints.hang_verdict import HangVerdict, find_hang
from coordinatord.hints.seen_worker import BUSY_BYTES, SeenWorker
from coordinatord.protocol.messages import HangKind
from coordinatord.protocol.stack_messages import AskStacks, CollectiveState, Stacks, WorkerStacks
from coordinatord.runtime.tasks import Tasks
from nodeclient.diagnosis.stack_service import StackService
from tests.support.flight_recorder import needs_flight_recorder
from tests.support.namespaces import apart
from tests.support.programs import clean_environ

pytestmark = [pytest.mark.slow, needs_flight_recorder]

WORKERS = """
import ctypes, json, os, signal, subprocess, sys, threading, time
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset
from workerlib import responder
from workerlib.contract import recorders

CULPRIT = 2

class Blocked(Dataset):
    def __len__(self):
        return 1
    def __getitem__(self, index):
        threading.Event().wait()

def stopped():
    os.kill(os.getpid(), signal.SIGSTOP)
def lock():
    held = threading.Lock()
    held.acquire()
    held.acquire()
new_group = monitored_barrier = lock
def loop():
    while True:
        pass
def gil():
    mutex = ctypes.create_string_buffer(64)
    libc = ctypes.PyDLL(None)
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)
def loader():
    next(iter(DataLoader(Blocked(), num_workers=1)))
def skipped():
    dist.barrier()
def sizes():
    dist.all_reduce(torch.ones(0))  # gloo itself finds most other sizes, and fails
def disk():
    open(os.environ["PIPE"]).read()
def cut():
    subprocess.run(["ip", "link", "set", "lo", "down"], check=True)
def slow(rate="16mbit"):
    subprocess.run(f"tc qdisc add dev lo root tbf rate {rate} burst 256kb latency 30s".split(), check=True)

def cut_between_collectives(rank, size, store):
    # The last packets of a barrier may still be on their way when a worker has left it.
    open(f"{store}.{rank}", "w").close()
    if rank == CULPRIT:
        for each in range(size):
            await_file(f"{store}.{each}")
        cut()
        open(store + ".cut", "w").close()
    await_file(store + ".cut")
def await_file(path):
    while not os.path.exists(path):
        time.sleep(0.01)

def halves(rank, pairs):
    dist.all_reduce(torch.ones(8 << 20), group=pairs[rank // 2])
def tree(rank, pairs):
    dist.broadcast(torch.ones(1 << 20), src=0)  # the kernel's buffers take all of it
    dist.all_reduce(torch.ones(8))

def work(kind, rank, size, store):
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=size)
    some = torch.ones(8 << 20 if kind == "slow" else 8)
    for step in range(3):
        dist.all_reduce(some)
    if kind in ("halves", "halves cut", "tree"):
        pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        for pair in pairs:
            dist.barrier()
            if dist.get_rank(pair) >= 0:
                dist.barrier(pair)
        if rank == CULPRIT and "cut" not in kind:
            slow("8mbit" if kind == "tree" else "16mbit")
        dist.barrier()
        os.write(1, b"ready\\n")
        if "cut" in kind:
            cut_between_collectives(rank, size, store)
        return globals()[kind.split()[0]](rank, pairs)
    os.write(1, b"ready\\n")
    if kind in ("new_group", "monitored_barrier") and rank != CULPRIT:
        getattr(dist, kind)()
    if rank == CULPRIT:
        globals()[kind]()
    dist.all_reduce(some)

torch.set_num_threads(1)
for line in sys.stdin:
    order = json.loads(line)
    children = []
    for rank, variables in enumerate(order["variables"]):
        child = os.fork()
        if child == 0:
            os.environ.update(variables)
            responder.start(recorders)
            try:
                work(order["kind"], rank, len(order["variables"]), order["store"])
            except BaseException as error:
                print(error, file=sys.stderr)
            os._exit(1)
        os.setpgid(child, child)  # it has what it starts: a process that loads data and is stuck sees no parent end
        children.append(child)
    sys.stdin.readline()
    for child in children:
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
    os.write(1, b"ended\\n")
"""

LOADS = 1 + next(at for at, line in enumerate(WORKERS.splitlines()) if "next(iter(DataLoader" in line)
"""The line at which a worker waits for its data."""


@contextmanager
def started(*prefix: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """Run a process that has torch, and forks the workers of one test after the other."""
    environ = {**clean_environ(), "PYTHONPATH": str(Path.cwd()), **variables}
    with subprocess.Popen(
        (*prefix, sys.executable, "-W", "ignore", "-c", WORKERS),
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield process
        process.kill()


@pytest.fixture(scope="module")
def parent() -> Iterator[subprocess.Popen[str]]:
    with started() as process:
        yield process


@pytest.fixture
def isolated() -> Iterator[subprocess.Popen[str]]:
    """Yield such a process whose workers have a network of their own."""
    if shutil.which("ip") is None or shutil.which("tc") is None:
        pytest.skip("a network of its own needs ip and tc of iproute2")
    with started(*apart("--net", setup="ip link set lo up mtu 1500"), GLOO_SOCKET_IFNAME="lo") as process:
        yield process


def _pipes(process: subprocess.Popen[str]) -> tuple[IO[str], IO[str]]:
    assert process.stdin is not None
    assert process.stdout is not None
    return process.stdin, process.stdout


UNEVEN = {"a": range(1), "b": range(1, 3)}
PAIRS = {"a": range(2), "b": range(2, 4)}


class Job:
    """Two nodes, by default one of one worker and one of two."""

    def __init__(self, folder: Path, tasks: Tasks, nodes: dict[str, range]) -> None:
        self.nodes = nodes
        self.services = {name: StackService(lambda _: 0, tasks) for name in self.nodes}
        self.variables: list[dict[str, str]] = []
        self._before: dict[int, WorkerStacks] = {}
        for name, ranks in self.nodes.items():
            (folder / name).mkdir()
            shared = self.services[name].listen(folder / name, "run", 1, ranks)
            self.variables += [{**shared, "COORDINATORD_WORKER": str(rank - ranks.start)} for rank in ranks]

    async def look(self) -> list[SeenWorker]:
        """Ask all workers."""
        asked = [self._ask(name) for name in self.nodes]
        answers = zip(self.nodes.items(), await asyncio.gather(*asked), strict=True)
        found = [
            SeenWorker(name, worker.rank, worker, self._before.get(worker.rank))
            for (name, _), told in answers
            for worker in told.workers
        ]
        self._before = {worker.rank: worker.now for worker in found if worker.now is not None}
        return found

    async def _ask(self, name: str) -> Stacks:
        answer: asyncio.Future[Stacks] = asyncio.get_running_loop().create_future()
        ranks = tuple(range(len(self.nodes[name])))
        self.services[name].read(AskStacks(1, "run", 1, ranks), answer.set_result)
        return await answer


async def await_line(told: IO[str], word: str) -> None:
    """Wait for a line; gloo writes others."""
    while (line := await asyncio.to_thread(told.readline)) != f"{word}\n":
        assert line


@asynccontextmanager
async def hung(
    parent: subprocess.Popen[str], folder: Path, kind: str, nodes: dict[str, range] = UNEVEN
) -> AsyncIterator[Job]:
    tasks = Tasks()
    job = Job(folder, tasks, nodes)
    tell, told = _pipes(parent)
    store = folder / "store"
    variables = [{**each, "PIPE": str(folder / "pipe")} for each in job.variables]
    tell.write(json.dumps({"kind": kind, "store": str(store), "variables": variables}) + "\n")
    tell.flush()
    try:
        for _ in job.variables:
            await await_line(told, "ready")
        yield job
    finally:
        tell.write("\n")
        tell.flush()
        await await_line(told, "ended")
        for service in job.services.values():
            service.close()
        await tasks.cancel()


async def verdict(job: Job, kind: HangKind, *ranks: int) -> HangVerdict:
    """Look until this is the verdict on these ranks: on a busy host a worker may not answer in time."""
    async with asyncio.timeout(60):
        while True:
            await job.look()
            found = find_hang(await job.look())
            if found is not None and (found.kind, found.ranks) == (kind, ranks):
                return found


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("stopped", HangKind.STUCK, "rank 2 on node b has been stopped by a signal for"),
        ("lock", HangKind.STUCK, r"rank 2 on node b stands in lock \(<string>:"),
        pytest.param("loop", HangKind.BUSY, r"rank 2 on node b computes in loop \(<string>:", marks=pytest.mark.long),
        pytest.param("gil", HangKind.STUCK, r"rank 2 on node b stands in gil \(<string>:", marks=pytest.mark.long),
        pytest.param(
            "loader",
            HangKind.STUCK,
            rf"rank 2 on node b stands in _BaseDataLoaderIter\.__next__ \(<string>:{LOADS}\)",
            marks=pytest.mark.long,
        ),
        ("skipped", HangKind.MISMATCHED, "rank 2 on node b waits in barrier 4, where 2 others wait in all_reduce 4"),
        pytest.param(
            "sizes",
            HangKind.MISMATCHED,
            "rank 2 on node b waits in all_reduce 5, where 2 others wait in all_reduce 4",
            marks=pytest.mark.long,
        ),
        pytest.param("disk", HangKind.STUCK, r"rank 2 on node b stands in disk \(<string>:", marks=pytest.mark.long),
    ],
)
async def test_the_culprit_is_named(
    parent: subprocess.Popen[str], tmp_path: Path, name: str, kind: HangKind, words: str
) -> None:
    os.mkfifo(tmp_path / "pipe")
    async with hung(parent, tmp_path, name) as job:
        found = await verdict(job, kind, 2)
        assert re.match(words, found.sentence)
        assert kind is HangKind.MISMATCHED or found.sentence.endswith("; the 2 others wait in all_reduce 4")


@pytest.mark.parametrize("waits", ["new_group", pytest.param("monitored_barrier", marks=pytest.mark.long)])
async def test_the_culprit_is_named_where_no_recorder_shows_that_others_wait(
    parent: subprocess.Popen[str], tmp_path: Path, waits: str
) -> None:
    async with hung(parent, tmp_path, waits) as job:
        found = await verdict(job, HangKind.STUCK, 2)
    assert re.fullmatch(
        rf"rank 2 on node b stands in lock \(<string>:\d+\); the 2 others wait in {waits} \(<string>:\d+\)",
        found.sentence,
    )


async def test_a_network_that_is_cut_is_found(isolated: subprocess.Popen[str], tmp_path: Path) -> None:
    async with hung(isolated, tmp_path, "cut") as job:
        found = await verdict(job, HangKind.NETWORK, 0, 1, 2)
        async with asyncio.timeout(60):
            first = await job.look()
            while (again := judge_pair(first, second := await job.look())) is None:
                first = second  # on a busy host a worker may not answer in time
        assert again.kind is HangKind.NETWORK, "a second look shows the same, and no data that comes or goes"
    assert found.sentence.startswith("all 3 workers wait in all_reduce 4 for ")
    assert found.sentence.endswith(", and it completes for none: look at the network between nodes a, b")


@pytest.mark.long
async def test_a_collective_of_many_bytes_over_a_slow_network_is_let_alone(
    isolated: subprocess.Popen[str], tmp_path: Path
) -> None:
    async with hung(isolated, tmp_path, "slow") as job, asyncio.timeout(120):
        while not _transfers(looked := await job.look()):
            pass
        assert find_hang(looked) is None
        once = [replace(worker, before=None) for worker in looked]
        found = find_hang(once)
        assert found is not None, "one look alone does not show that data moves"
        assert found.kind is HangKind.NETWORK
        assert may_be_slow(found, once), "so whoever asks is told of a second look"
        assert judge_pair([SeenWorker(worker.node, worker.rank, worker.before) for worker in looked], once) is None


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "places"),
    [
        ("halves", {("group 1", "all_reduce"), ("group 2@2", "all_reduce")}),
        ("tree", {("default_pg", "broadcast"), ("default_pg", "all_reduce")}),
    ],
)
async def test_workers_may_wait_at_several_places_while_their_data_comes_and_goes(
    isolated: subprocess.Popen[str], tmp_path: Path, kind: str, places: set[tuple[str, str]]
) -> None:
    """Two groups reduce by themselves; and a broadcast is over for its root before the last ones have its data."""
    async with hung(isolated, tmp_path, kind, PAIRS) as job, asyncio.timeout(120):
        while _places(looked := await job.look()) != places:
            pass
        assert find_hang(looked) is None
        once = [replace(worker, before=None) for worker in looked]
        found = find_hang(once)
        assert found is not None, "one look alone does not show that data moves"
        assert may_be_slow(found, once), "so whoever asks is told of a second look"


@pytest.mark.long
async def test_a_network_that_is_cut_is_found_where_groups_use_it(
    isolated: subprocess.Popen[str], tmp_path: Path
) -> None:
    async with hung(isolated, tmp_path, "halves cut", PAIRS) as job:
        found = await verdict(job, HangKind.NETWORK, 0, 1, 2, 3)
    assert found.sentence.startswith("all 4 workers wait in collectives of 2 groups, such as all_reduce 2 of group 1, ")
    assert found.sentence.endswith(", and none of them completes: look at the network between nodes a, b")


def _places(looked: list[SeenWorker]) -> set[tuple[str, str]]:
    """Return the groups and operations in which workers wait in two looks; nothing if one is at another place."""
    found = set[tuple[str, str]]()
    for worker in looked:
        for seen in (worker.before, worker.now):
            collective = None if seen is None else seen.collective
            if collective is None or collective.state is not CollectiveState.WAITS:
                return set()
            found.add((collective.group, collective.operation.removeprefix("gloo:")))
    return found


def _transfers(looked: list[SeenWorker]) -> bool:
    """Whether all workers wait in one collective in two looks, and data of it came or went between them."""
    waits = all(_waits(worker.now) and _waits(worker.before) for worker in looked)
    pairs = [(worker.before, worker.now) for worker in looked if worker.before is not None and worker.now is not None]
    return waits and any(now.io_bytes - before.io_bytes >= BUSY_BYTES for before, now in pairs)


def _waits(worker: WorkerStacks | None) -> bool:
    collective = None if worker is None else worker.collective
    return collective is not None and (collective.state, collective.number) == (CollectiveState.WAITS, 4)
