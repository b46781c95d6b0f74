"""What a look at workers shows, for tests: `waits`, `done`, `moves`, `computes`, `stands`, `stopped`, `skipped`, ...

It shows when workers have arrived in their last collectives, too.
"""

from msgspec.structs import replace

from coordinatord.core.rounds.events import NodeArrivals
from coordinatord.hints.seen_worker import SeenWorker
from coordinatord.protocol.arrival_messages import GroupArrivals, WorkerArrivals, pack_ages
from coordinatord.protocol.stack_messages import Collective, CollectiveState, StackOrigin, WorkerStacks, pack_stacks

WAITS = Collective("default_pg", 7, CollectiveState.WAITS, "gloo:all_reduce", "8 Float", 12.0)
DONE = replace(WAITS, number=6, state=CollectiveState.DONE)

REDUCES = pack_stacks(
    [("MainThread", ("all_reduce (torch/c10d.py:9)", "main (train.py:47)", "<module> (train.py:60)"))]
)
LOADS = pack_stacks([("MainThread", ("get (queue.py:180)", "main (train.py:41)", "<module> (train.py:60)"))])
EVALUATES = pack_stacks([("MainThread", ("evaluate (train.py:50)", "<module> (train.py:61)"))])

MAKES_GROUP = pack_stacks(
    [
        (
            "MainThread",
            (
                "_create_c10d_store (torch/distributed/rendezvous.py:198)",
                "init_process_group (torch/distributed/distributed_c10d.py:1764)",
                "wrapper (torch/distributed/c10d_logger.py:95)",
                "main (train.py:38)",
                "<module> (train.py:60)",
            ),
        )
    ]
)

CONNECTS = pack_stacks(
    [
        (
            "MainThread",
            ("barrier (torch/distributed/distributed_c10d.py:5352)", "main (train.py:47)", "<module> (x.py:1)"),
        )
    ]
)

PID = 4_711

COLLECTIVES = 50

_WAITING = WorkerStacks(0, StackOrigin.WORKER, REDUCES, "sleeping", "futex_do_wait", 0.0, WAITS, "", PID)

KINDS = {
    "waits": _WAITING,
    "further": replace(_WAITING, collective=replace(WAITS, number=8)),
    "moves": replace(_WAITING, collective=Collective("0", 7, CollectiveState.MOVES)),
    "makes_group": replace(_WAITING, stacks=MAKES_GROUP, collective=DONE),
    "connects": replace(_WAITING, stacks=CONNECTS, collective=DONE, cpus=1.0, state="running"),
    "unrecorded": replace(_WAITING, stacks=CONNECTS, collective=None),
    "stands": replace(_WAITING, stacks=LOADS, collective=DONE),
    "saves": replace(_WAITING, stacks=LOADS, collective=DONE, state="waiting for IO"),
    "runs": replace(_WAITING, stacks=LOADS, collective=DONE, waits_for="the program rsync (process 99)"),
    "computes": replace(_WAITING, stacks=EVALUATES, collective=DONE, cpus=1.0, state="running"),
    "skipped": replace(_WAITING, collective=replace(WAITS, operation="gloo:barrier")),
    "stopped": replace(_WAITING, origin=StackOrigin.NONE, stacks=b"", collective=None, state="stopped", problem="x"),
    "traced": replace(_WAITING, origin=StackOrigin.NONE, stacks=b"", collective=None, state="traced", problem="traced"),
    "debugged": replace(_WAITING, stacks=LOADS, collective=DONE, state="traced"),
    "ended": replace(_WAITING, origin=StackOrigin.NONE, stacks=b"", collective=None, state="", problem="ended", pid=0),
    "untold": replace(_WAITING, collective=None),
    "unknown": replace(_WAITING, origin=StackOrigin.NONE, stacks=b"", collective=None, problem="import workerlib"),
    "held": replace(_WAITING, origin=StackOrigin.SIGNAL, stacks=LOADS, collective=None),
    "other": replace(_WAITING, pid=PID + 1),
}


def seen(node: str, rank: int, kind: str) -> SeenWorker:
    """Return the result of a look at a worker; `silent` if its node does not answer."""
    return SeenWorker(node, rank, None if kind == "silent" else replace(KINDS[kind], rank=rank))


def arrived(node: str, rank: int, now: float, step_s: float, late_s: float) -> NodeArrivals:
    """Return the answer of a node whose one worker comes `late_s` late to the one collective of each step."""
    ages_s = [number * step_s - late_s for number in range(COLLECTIVES, 0, -1)]
    group = GroupArrivals("default_pg", 1, pack_ages(ages_s))
    return NodeArrivals(node, now, 0.0001, now, (WorkerArrivals(rank, (group,)),))
