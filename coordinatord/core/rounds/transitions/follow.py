"""Brings what only this life of the daemon knows up to date with a record: the live side of `apply`.

Each function here is called right after `apply` has changed the durable state. A daemon that starts again builds its
live state from the durable state alone, so nothing here may decide what is to outlive it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from coordinatord.core.rounds.policy import Policy
from coordinatord.core.rounds.state.cluster import Cluster
from coordinatord.core.rounds.state.member import Member
from coordinatord.core.rounds.state.run import Run
from coordinatord.core.rounds.values.records import (
    JobForgotten,
    NodeJoined,
    NodeLeftBehind,
    NodeLost,
    NodeReleased,
    NodeSucceeded,
    Record,
    RoundEnded,
    RoundFormed,
    RoundsMissed,
    RoundStopped,
    RunEnded,
    RunOpened,
)


def follow(cluster: Cluster, record: Record, policy: Policy) -> None:
    """Bring the live state up to date with a record that has just taken effect."""
    match record:
        case RunOpened():
            cluster.jobs.pop(record.job, None)
            cluster.jobs[record.job] = Run(cluster.durable.jobs[record.job], policy, cluster.wings)
        case JobForgotten():
            if record.job not in cluster.durable.jobs:
                cluster.jobs.pop(record.job, None)
        case _:
            run = cluster.jobs.get(record.job)
            if run is not None:
                run.followed += 1
                run.watching.follow(record)
                _CHANGES.get(type(record), _nothing)(run, record)
                run.keeping.follow(record)


def _node_joined(run: Run, record: NodeJoined) -> None:
    run.roll.add(Member(run.durable.members[record.node]))
    run.emptied_at = run.durable.emptied_at


def _node_lost(run: Run, record: NodeLost) -> None:
    run.remove(run.members[record.node])
    run.emptied_at = run.durable.emptied_at


def _node_released(run: Run, record: NodeReleased) -> None:
    member = run.members[record.node]
    run.gathering.join_timeouts.discard(member.node)
    run.leaving.discard(member.node)
    run.roll.place(member)
    run.emptied_at = run.durable.emptied_at


def _node_placed(run: Run, record: NodeSucceeded | NodeLeftBehind) -> None:
    run.roll.place(run.members[record.node])


def _round_formed(run: Run, record: RoundFormed) -> None:
    run.begin_round([run.members[ranks.node] for ranks in record.nodes])


def _round_stopped(run: Run, record: RoundStopped) -> None:
    del record
    run.begin_stop(run.durable.entered_at)


def _members_placed(run: Run, record: RoundsMissed | RoundEnded) -> None:
    del record
    for member in list(run.members.values()):
        run.roll.place(member)


def _nothing(run: Run, record: Record) -> None:
    """Change nothing: the record concerns durable state alone."""
    del run, record


def _run_ended(run: Run, record: RunEnded) -> None:
    """Drop what only another round would need: a thousand ended runs are kept, each of as many nodes as it had."""
    del record
    run.gathering.join_timeouts.clear()
    run.evidence.failures.clear()
    run.roll.missing.clear()
    run.leaving.clear()
    run.claims.clear()


_CHANGES: dict[type[Record], Callable[[Run, Any], None]] = {
    NodeJoined: _node_joined,
    NodeLost: _node_lost,
    NodeReleased: _node_released,
    NodeSucceeded: _node_placed,
    NodeLeftBehind: _node_placed,
    RoundFormed: _round_formed,
    RoundsMissed: _members_placed,
    RoundStopped: _round_stopped,
    RoundEnded: _members_placed,
    RunEnded: _run_ended,
}
"""What to do for each type of record; a record of any other type changes durable state alone."""
