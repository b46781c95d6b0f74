"""All jobs of one coordinator, and the marks on their members that follow from drains and quarantines.

Both apply to all jobs: drained nodes leave, and rounds do without nodes on quarantined hosts if they can. The durable
state has the names, and each member has a copy of the reason. The functions here bring these copies up to date: all
when the daemon is restarted, and then those that a record changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from coordinatord.core.rounds.policy import Policy
from coordinatord.core.rounds.state.durable import DurableCluster, State
from coordinatord.core.rounds.state.member import Member, MemberState
from coordinatord.core.rounds.state.run import Run, Wings
from coordinatord.core.rounds.values import records

DRAINED_MAX = 20_000
"""The most names that are drained, as many as there may be nodes."""

HOSTS_MAX = 20_000
"""The most hosts that are on record, as many as there may be nodes; a further one is not charged."""


@dataclass(slots=True)
class Cluster:
    """The runs of all jobs."""

    policy: Policy
    """The present one, as each run has it as well."""
    wings: Wings
    """The wings to make for each run."""
    durable: DurableCluster = field(default_factory=DurableCluster)
    jobs: dict[str, Run] = field(default_factory=dict)
    """The live or last run of each job, in the order in which they were opened."""

    @property
    def live(self) -> Iterator[Run]:
        """Iterate over the runs that have not ended."""
        return (run for run in self.jobs.values() if not run.durable.state.ended)

    def follow(self, record: records.Record, now: float) -> None:
        """Bring the live state up to date with a record that has just changed the durable state, at `now`.

        The live state ends with the daemon. A restarted daemon builds it from the durable state and does not call this,
        so nothing that follows here may decide anything that has to outlive the daemon.
        """
        match record:
            case records.RunOpened():
                self.jobs.pop(record.job, None)  # so that the new run comes last, in the order of opening
                self.jobs[record.job] = Run(self.durable.jobs[record.job], self.policy, self.wings)
            case records.JobForgotten():
                self.jobs.pop(record.job, None)
            case records.HostJudged():
                apply_quarantines(self, now, record.node)  # its `node` is a host
            case _:
                if run := self.jobs.get(record.job):
                    # The watching wing comes before the run, and the keeping wing after it: `wings` says why.
                    run.watching.follow(record)
                    run.follow(record)
                    if isinstance(record, records.NodeJoined):
                        apply_quarantine(self, run, run.members[record.node])
                    run.keeping.follow(record)


def apply_quarantines(cluster: Cluster, now: float, host: str | None = None) -> None:
    """Mark the members on quarantined hosts, and unmark the others; with `host`, only those on that host.

    A member that becomes ready because its host is no longer quarantined arrives `now`. It does not arrive while the
    run is forming: the next round need not wait for more nodes because of that.
    """
    there = [
        (run, member)
        for run in cluster.live
        for member in run.members.values()
        if host is None or member.offer.host == host
    ]
    were_quarantined = [(run, member) for run, member in there if member.state is MemberState.QUARANTINED]
    for run, member in there:
        apply_quarantine(cluster, run, member)
    for run, member in were_quarantined:
        if member.state is MemberState.READY and run.durable.state is not State.FORMING:
            run.gathering.record_ready(member, now)


def apply_quarantine(cluster: Cluster, run: Run, member: Member) -> None:
    """Mark a member, which may just have joined, if its host is quarantined, and unmark it otherwise."""
    why = cluster.durable.why_quarantined(member.offer.host)
    if why != member.readiness.quarantined:
        member.readiness.quarantined = why
        run.roll.place(member)


def apply_drains(cluster: Cluster) -> list[Run]:
    """Mark the members that are drained as leaving; return the runs with a newly marked one, for the caller to advance.

    No mark is taken back here: `observations.cancel_drain` does that, since the member may become ready by it.
    """
    touched = []
    for run in cluster.live if cluster.durable.drained else ():
        for member in run.members.values():
            drained = cluster.durable.why_drained(run.job, member.node, member.offer.host)
            if drained is not None and not member.drained and member.durable.outcome is None:
                _, member.drained = drained
                run.roll.place(member)
                run.claims[member.node] = None  # `record_claims` lets it leave
                if run not in touched:
                    touched.append(run)
    return touched
