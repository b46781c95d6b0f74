"""Groups workers with equal stacks, for `nodeclient stacks`, so that a person sees a few places and not thousands."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import asdict

from coordinatord.core.rounds.effects import WorkerSource
from coordinatord.core.watching.worker_sources import SourceStacks
from coordinatord.protocol.http.stack_answers import CollectiveStatus, StackedWorker, StackGroup, ThreadStatus
from coordinatord.protocol.stack_messages import StackOrigin, WorkerStacks, unpack_stacks


def group_stacks(answers: Iterable[SourceStacks]) -> tuple[StackGroup, ...]:
    """Return the groups of workers with equal stacks, the largest first.

    Workers without a stack are in one group if they lack it for the same reason, and their processes are in the same
    state. Of equally large groups, the one with the lowest rank is first.
    """
    groups: dict[tuple[bytes, str, tuple[str, str]], list[StackedWorker]] = {}
    for source, worker in ((answer.source, worker) for answer in answers for worker in answer.workers):
        process = ("", "") if worker.stacks else (worker.state, worker.waits_in)
        groups.setdefault((worker.stacks, worker.problem, process), []).append(_stacked(source, worker))
    for workers in groups.values():
        workers.sort(key=lambda worker: worker.rank)
    ordered = sorted(groups.items(), key=lambda group: (-len(group[1]), group[1][0].rank))
    return tuple(
        StackGroup(
            threads=tuple(ThreadStatus(name=name, frames=frames) for name, frames in unpack_stacks(stacks)),
            workers=tuple(workers),
            problem=problem,
        )
        for (stacks, problem, _), workers in ordered
    )


def _stacked(source: WorkerSource, worker: WorkerStacks) -> StackedWorker:
    collective = worker.collective
    return StackedWorker(
        rank=worker.rank,
        node=source.node,
        host=source.host,
        origin=worker.origin if worker.stacks else StackOrigin.NONE,
        state=worker.state,
        waits_in=worker.waits_in,
        pid=worker.pid,
        cpus=worker.cpus,
        collective=None if collective is None else CollectiveStatus(**asdict(collective)),
    )
