"""The content of the store, replayed as it grows: the state that a crash at this moment would lead back to.

It is made of records that have become durable and of nothing else, so whatever the machine keeps beside them shows as a
difference. Messages are judged by it.
"""

from __future__ import annotations

from collections.abc import Sequence

from coordinatord.core.machine import Coordinator
from coordinatord.core.policy import Policy
from coordinatord.core.state.cluster import Cluster
from coordinatord.core.state.member import MemberState
from coordinatord.core.state.run import Run
from coordinatord.core.transitions import apply
from coordinatord.core.values.records import NodeReleased, Record, RoundFormed, RunEnded
from coordinatord.protocol.messages import Outcome
from tests.sim.projection import differences, durable_jobs, durable_member, durable_run


class DurableReplica:
    """The durable state of all jobs."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.cluster = Cluster()
        self.released: dict[tuple[str, str, int], Outcome] = {}
        """The outcome of each node that was released, by run, node and incarnation."""
        self.outcomes: dict[str, Outcome] = {}
        """The outcomes by run."""
        self._named: set[str] = set()
        """Nodes that records named since the last comparison."""
        self._all = False
        """All of them were."""

    @property
    def jobs(self) -> dict[str, Run]:
        """The live or last run of each job."""
        return self.cluster.jobs

    def apply(self, records: Sequence[Record], at: float) -> None:
        """Take in what has become durable."""
        for record in records:
            apply.apply(self.cluster, record, at, self._policy)
            if isinstance(record, NodeReleased):
                self.released[record.run, record.node, record.incarnation] = record.outcome
            if isinstance(record, RunEnded):
                self.outcomes[record.run] = record.outcome
            node = getattr(record, "node", None)
            if node is not None:
                self._named.add(node)
            else:
                self._all = self._all or isinstance(record, RoundFormed)

    def compare(self, machine: Coordinator, *, whole: bool) -> list[str]:
        """Return how the machine differs from this; nodes that no record named count only if `whole` is set."""
        whole, self._all = whole or self._all, False
        named, self._named = self._named, set()
        found = differences(machine.cluster.drained, self.cluster.drained, "drained ")
        if whole:
            return found + differences(durable_jobs(machine.jobs), durable_jobs(self.jobs))
        for job, run in machine.jobs.items():
            other = self.jobs.get(job)
            if other is None:
                return [f"job {job} is not in the store"]
            found += differences(durable_run(run), durable_run(other))
            if not run.state.ended:
                found += differences(_members(run, named), _members(other, named))
        return found


def _members(run: Run, nodes: set[str]) -> dict[str, object]:
    members = [run.members[node] for node in sorted(nodes) if node in run.members]
    return {one.node: durable_member(one) for one in members if one.state is not MemberState.RELEASED}
