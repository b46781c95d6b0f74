"""The durable records, replayed as they come: the state that a crash at this moment would lead back to.

It is made of durable records alone. So it equals the durable state of the machine whenever nothing waits to be written,
and all messages are checked against it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import fields, is_dataclass

from msgspec.structs import replace

from coordinatord.core.journal import Decided
from coordinatord.core.rounds.state.durable import DurableCluster, DurableRun
from coordinatord.core.rounds.transitions.apply import apply
from coordinatord.core.rounds.values.records import NodeReleased, RunEnded
from coordinatord.protocol.messages import Outcome


class DurableReplica:
    """The durable state of all jobs."""

    def __init__(self) -> None:
        self.cluster = DurableCluster()
        self.released: dict[tuple[str, str, int], Outcome] = {}
        """The outcome of each released node, keyed by (run, node, incarnation)."""
        self.outcomes: dict[str, Outcome] = {}
        """The outcome of each run that has ended."""

    @property
    def jobs(self) -> dict[str, DurableRun]:
        """The live or last run of each job."""
        return self.cluster.jobs

    def apply(self, decided: Iterable[Decided]) -> None:
        """Apply records that have become durable."""
        for at, record in decided:
            apply(self.cluster, record, at)
            if isinstance(record, NodeReleased):
                self.released[record.run, record.node, record.incarnation] = record.outcome
            if isinstance(record, RunEnded):
                self.outcomes[record.run] = record.outcome

    def begin_life(self, past: Iterable[Decided]) -> None:
        """Begin a new life with the records that the store returned, at times of its clock."""
        self.cluster = DurableCluster()
        self.apply(past)


def timeless(cluster: DurableCluster) -> DurableCluster:
    """Return durable state without its times: each life of the coordinator has a clock of its own."""
    cluster = copy.deepcopy(cluster)
    cluster.hosts = {host: replace(known, at=0.0) for host, known in cluster.hosts.items()}
    cluster.host_forgotten_at = 0.0
    for run in cluster.jobs.values():
        run.entered_at = run.reported_at = run.formed_at = 0.0
        run.emptied_at = None if run.emptied_at is None else 0.0
        run.ledger = replace(run.ledger, settled_at=0.0)
        run.lost = [replace(loss, at=0.0) for loss in run.lost]
        run.earlier = tuple(replace(earlier, ended_at=0.0) for earlier in run.earlier)
        run.losses = [replace(loss, silent_since=0.0) for loss in run.losses]
        if run.first_failure is not None:
            run.first_failure = replace(run.first_failure, at=0.0)
        for member in (*run.members.values(), *run.released.values()):
            member.joined_at = 0.0
    return cluster


def differences(ours: object, theirs: object, path: str = "") -> list[str]:
    """Return where two states differ, one line each, such as `jobs.job.members.n1.succeeded: True, False`."""
    if ours == theirs:
        return []
    if isinstance(ours, dict) and isinstance(theirs, dict):
        keys = dict.fromkeys([*ours, *theirs])
        return [line for key in keys for line in differences(ours.get(key), theirs.get(key), f"{path}.{key}")]
    if is_dataclass(ours) and type(ours) is type(theirs):
        names = [field.name for field in fields(ours)]
        return [
            line for name in names for line in differences(getattr(ours, name), getattr(theirs, name), f"{path}.{name}")
        ]
    return [f"{path.removeprefix('.')}: {ours}, {theirs}"]
