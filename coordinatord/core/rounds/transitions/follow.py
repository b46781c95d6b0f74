"""Updates the live state after each record, once `apply` has updated the durable state.

The live state ends with the daemon. A restarted daemon builds it from the durable state and does not call this, so
nothing here may decide anything that has to outlive the daemon.
"""

from __future__ import annotations

from coordinatord.core.rounds.state.cluster import Cluster, apply_quarantine, apply_quarantines
from coordinatord.core.rounds.state.member import Member
from coordinatord.core.rounds.state.run import Run
from coordinatord.core.rounds.values import records
from coordinatord.core.rounds.values.records import Record


def follow(cluster: Cluster, record: Record, now: float) -> None:
    """Bring the live state up to date with a record that has just taken effect, at `now`."""
    match record:
        case records.RunOpened():
            cluster.jobs.pop(record.job, None)  # so that the new run comes last, in the order of opening
            cluster.jobs[record.job] = Run(cluster.durable.jobs[record.job], cluster.policy, cluster.wings)
        case records.JobForgotten():
            cluster.jobs.pop(record.job, None)
        case records.HostJudged():
            apply_quarantines(cluster, now, record.node)  # its `node` is a host
        case _:
            run = cluster.jobs.get(record.job)
            if run is not None:
                run.followed += 1  # so that its nodes get new messages
                # The watching wing comes before the run, and the keeping wing after it: `wings` says why.
                run.watching.follow(record)
                _follow(run, record)
                if isinstance(record, records.NodeJoined):
                    apply_quarantine(cluster, run, run.members[record.node])
                run.keeping.follow(record)


def _follow(run: Run, record: Record) -> None:
    """Bring a run up to date; records of other types change only durable state."""
    match record:
        case records.NodeJoined():
            run.roll.add(Member(run.durable.members[record.node]))
        case records.NodeLost():
            run.remove(run.members[record.node])
        case records.NodeReleased():
            run.gathering.join_timeouts.discard(record.node)
            run.leaving.discard(record.node)
            run.roll.place(run.members[record.node])
        case records.NodeSucceeded() | records.NodeLeftBehind():
            run.roll.place(run.members[record.node])
        case records.RoundFormed():
            run.begin_round(record.nodes)
        case records.RoundStopped():
            run.begin_stop(run.durable.entered_at)
        case records.RoundsMissed() | records.RoundEnded():
            run.roll.place_all()
        case records.RunEnded():
            run.end()
    if isinstance(record, records.NodeJoined | records.NodeLost | records.NodeReleased):
        run.emptied_at = run.durable.emptied_at
