"""Times how long it takes to know where all workers of a large job stand, and counts what that sends.

python -m benchmarks.stacks --ranks 1000

README.md beside this file explains the figures.
"""

import argparse
import asyncio
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial

import uvloop
from aiohttp import ClientSession
from daemon import NO_HEARTBEAT_S, coordinatord
from fleet import Node, fleet_of
from link import framed
from msgspec.structs import replace
from tables import (
    BenchmarkError,
    Table,
    add_flags,
    allow_connections,
    errors_in_one_line,
    positive,
    runs_words,
    spread,
    write_report,
)

from coordinatord.protocol.codec import decode, encode
from coordinatord.protocol.messages import Desired
from coordinatord.protocol.stack_messages import (
    BRIEF_BYTES_MAX,
    PACKED_BYTES_MAX,
    AskStacks,
    Collective,
    CollectiveState,
    StackOrigin,
    Stacks,
    WorkerStacks,
    pack_places,
    pack_stacks,
)

JOB = "stacks"

RUNNING_WITHIN_S = 300.0
"""A bound for the join, so that a benchmark of something broken ends."""

FRAMES = (
    "all_reduce (torch/distributed/distributed_c10d.py:3252)",
    "wrapper (torch/distributed/c10d_logger.py:83)",
    "_call_impl (torch/nn/modules/module.py:1775)",
    "_wrapped_call_impl (torch/nn/modules/module.py:1773)",
    "backward (torch/autograd/__init__.py:353)",
    "backward (torch/_tensor.py:629)",
    "train_one_epoch (train.py:47)",
    "main (train.py:60)",
    "<module> (train.py:71)",
)
"""Where the main thread of a training stands, and two threads beside it."""

WAITS = ("wait (threading.py:359)", "get (queue.py:180)", "run (threading.py:1012)")

THREADS = (("MainThread", FRAMES), ("loader", WAITS), ("checkpoint", WAITS))

WAITING = Collective("default_pg", 120_417, CollectiveState.WAITS, "gloo:all_reduce", "25557032 Float", 12.3)
PLACES = pack_places([WAITING, *(replace(WAITING, group=f"tp {41 + number}@12") for number in range(12))])
"""Those of a worker of Megatron with four kinds of parallelism."""

LOADING = Collective("default_pg", 120_416, CollectiveState.DONE, "gloo:all_reduce", "25557032 Float", 12.3)


@dataclass(frozen=True, slots=True)
class Run:
    """One question to all workers of a job."""

    ranks: int
    seconds: float
    """The time from the request over HTTP to its answer."""
    cpu_s: float
    """The coordinatord's processor time for it."""
    bytes_from_nodes: int
    bytes_of_look: int
    """The same if the coordinator asks by itself, for the alarm: then stacks are at their limit here."""
    sentence: str


def stacks_of(rank: int, culprit: int, *, brief: bool) -> WorkerStacks:
    """Return where a worker stands: one loads data, and all others wait for it."""
    is_culprit = rank == culprit
    threads = [("MainThread", WAITS)] if is_culprit else THREADS
    stacks = pack_stacks(threads, BRIEF_BYTES_MAX if brief else PACKED_BYTES_MAX - len(PLACES))
    collective = LOADING if is_culprit else WAITING
    state, waits_in = "sleeping", "futex_do_wait"
    return WorkerStacks(
        *(rank, StackOrigin.WORKER, stacks, state, waits_in, 0.0, collective, "", 4_000_000 + rank, 10**12 + rank),
        places=PLACES,
    )


async def measure(ranks: int) -> Run:
    """Have so many nodes of one worker each, and ask where these stand. Raises `BenchmarkError`."""
    culprit, sent = ranks // 3, 0

    def answer(node: Node, message: bytes) -> None:
        nonlocal sent
        wanted = decode(message, AskStacks, Desired)
        if isinstance(wanted, AskStacks):
            assert node.assignment is not None  # noqa: S101 - all have ranks
            assert node.link is not None  # noqa: S101 - a message has come over it
            worker = stacks_of(node.assignment.first_rank, culprit, brief=False)
            packed = encode(Stacks(wanted.request, (worker,), ""))
            sent += len(packed)
            node.link.put_frame(framed(packed))

    async with (
        coordinatord(NO_HEARTBEAT_S) as daemon,
        fleet_of(ranks, daemon.url, JOB) as fleet,
        ClientSession() as http,
    ):
        async with asyncio.timeout(RUNNING_WITHIN_S):
            fleet.join()
            await fleet.ranked()
            await daemon.ledger.started(JOB, 1)
        for node in fleet.nodes:
            assert node.link is not None  # noqa: S101 - it has joined
            node.link.receive = partial(answer, node)
        began_at, cpu_s = time.monotonic(), daemon.cpu_s()
        async with http.get(f"{daemon.url}/v1/jobs/{JOB}/stacks") as response:
            shown = await response.json()
        seconds, cpu_s = time.monotonic() - began_at, daemon.cpu_s() - cpu_s
    if shown.get("verdict") is None or shown["notes"]:
        raise BenchmarkError(f"not all have answered, or nobody is named: {str(shown)[:500]}")
    look = sum(len(encode(Stacks(2**62, (stacks_of(rank, culprit, brief=True),), ""))) for rank in range(ranks))
    return Run(ranks, seconds, cpu_s, sent, look, shown["verdict"]["sentence"])


def table(runs: Sequence[Run]) -> Table:
    """Return the figures."""
    shown = Table(f"{runs[0].ranks:,} ranks on as many nodes, {runs_words(len(runs))}", "")
    shown.add("from the question to the answer, s", spread([run.seconds for run in runs], ".2f"))
    shown.add("the coordinator's processor time for it, s", spread([run.cpu_s for run in runs], ".2f"))
    shown.add("bytes from all nodes", spread([run.bytes_from_nodes for run in runs], ",.0f"))
    shown.add("bytes of a look of the alarm", spread([run.bytes_of_look for run in runs], ",.0f"))
    return shown


def main() -> None:
    """Run as the flags say. Exits with 0, or with 1 after one line that says why not."""
    parser = argparse.ArgumentParser(prog="stacks", description="Time a question to all workers of a large job.")
    parser.add_argument("--ranks", type=positive, default=1_000, help="how many (default: 1000)")
    add_flags(parser, repeat=5)
    options = parser.parse_args()
    runs: list[Run] = []
    with errors_in_one_line("stacks"), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        allow_connections(options.ranks)
        for _ in range(options.repeat):
            runs.append(runner.run(measure(options.ranks)))  # noqa: PERF401 - each is a life of a coordinatord
    print(table(runs))
    print(f"  {runs[-1].sentence}")
    write_report(options.json, "stacks", [asdict(run) for run in runs])


if __name__ == "__main__":
    main()
