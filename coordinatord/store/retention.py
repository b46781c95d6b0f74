"""Deletes old history, so that a job may run for years: old runs, old rounds, visitors, and cluster records.

A *visitor* is a node that joined a run and left it without having been in a round. A *cluster record* is about a node
or a host, and no job: a drain, its end, or a judgement of a host.

Records have totals and no increments, so that the remaining records lead to the same state. Each new record deletes the
records that it supersedes, in its own transaction, at the cost of a few index steps.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from functools import partial

from coordinatord.core.rounds.values.records import (
    BusyWorkerAwaited,
    ClusterRecord,
    ExitOverdue,
    FirstStepOverdue,
    JobForgotten,
    NodeLeftBehind,
    NodeLost,
    NodeReleased,
    NodesHeard,
    NodesSilent,
    NodeSucceeded,
    PreflightBegan,
    PreflightEnded,
    Record,
    ReplicasDiverged,
    RoundEnded,
    RoundFormed,
    RoundsMissed,
    RoundStarted,
    RoundStopped,
    RunOpened,
    TrainingBegan,
    TrainingCaughtUp,
    TrainingResumed,
    TrainingStalled,
)
from coordinatord.core.rounds.values.round_history import ROUNDS_RETAINED

RUNS_RETAINED = 3
"""Runs to keep of each job: the last one continues, and `replay` can compare it with the two before."""

VISITORS_RETAINED = 200
"""Visitors to keep of each run, for each of the two ways to leave: lost, or released. A node that comes and goes every
few seconds for a month would otherwise leave a million records."""

CLUSTER_RECORDS_RETAINED = 1_000
"""The last cluster records, kept for people whether they are in force or not; older ones are kept while in force. As
many records of forgotten jobs are kept."""

REPEATED_RETAINED = 200
"""Records to keep of each run and recurring kind. Training may stall at each evaluation, in a round of months."""

_REPEATED = (
    TrainingStalled,
    TrainingResumed,
    BusyWorkerAwaited,
    NodesSilent,
    NodesHeard,
    PreflightBegan,
    PreflightEnded,
)
"""The kinds that recur within a round. Only the last record of each matters for the state."""

_OF_ROUNDS = (
    RoundFormed,
    RoundsMissed,
    RoundStarted,
    TrainingBegan,
    FirstStepOverdue,
    TrainingCaughtUp,
    ReplicasDiverged,
    ExitOverdue,
    *_REPEATED,
    RoundStopped,
    RoundEnded,
    NodeSucceeded,
    NodeLeftBehind,
)
"""The kinds to delete with their round."""

Deletion = Callable[[sqlite3.Connection], None]
"""Deletes the records that a new record supersedes, once the new one is inserted."""


def deletion_by(newest: Record) -> Deletion | None:
    """Return the deletion of the records that a new one may supersede; None if its kind supersedes none."""
    match newest:
        case JobForgotten():
            return partial(_delete_job, job=newest.job)
        case RunOpened():
            return partial(_delete_runs, job=newest.job)
        case RoundFormed():
            return partial(_delete_rounds, job=newest.job, run=newest.run, last=newest.round - ROUNDS_RETAINED)
        case NodeLost() | NodeReleased():
            return partial(_delete_visitor, job=newest.job, run=newest.run, kind=newest.KIND)
        case ClusterRecord():
            return partial(_delete_cluster_records, newest=newest)
        case _:
            is_repeated = isinstance(newest, _REPEATED)
            return partial(_delete_repeated, job=newest.job, run=newest.run, kind=newest.KIND) if is_repeated else None


def _delete_repeated(connection: sqlite3.Connection, job: str, run: str, kind: str) -> None:
    """Delete the record of this kind that is beyond the last `REPEATED_RETAINED`."""
    connection.execute(
        "DELETE FROM records WHERE seq = (SELECT seq FROM records WHERE job = ? AND run = ? AND kind = ?"
        " ORDER BY seq DESC LIMIT 1 OFFSET ?)",
        (job, run, kind, REPEATED_RETAINED),
    )


def _delete_cluster_records(connection: sqlite3.Connection, newest: ClusterRecord) -> None:
    """Delete the cluster records of two names that are beyond the limit and not in force.

    One is the name of the record at the limit, which was kept so far. The other is that of the newest record, which may
    have ended an older one: a drain is in force until an undrain of its name, and a judgement until the host's next.
    """
    beyond = connection.execute(
        "SELECT seq, node FROM records WHERE job = '' ORDER BY seq DESC LIMIT 1 OFFSET ?", (CLUSTER_RECORDS_RETAINED,)
    ).fetchone()
    if beyond is None:
        return
    seq, name = beyond
    connection.execute(
        # Without the named index SQLite would scan all cluster records up to `seq`.
        "DELETE FROM records AS old INDEXED BY marks_by_name WHERE job = '' AND node IN (?, ?) AND seq <= ?"
        " AND (kind = 'NodeUndrained' OR EXISTS (SELECT 1 FROM records AS newer WHERE newer.job = ''"
        " AND newer.node = old.node AND newer.seq > old.seq"
        " AND newer.kind = CASE old.kind WHEN 'HostJudged' THEN 'HostJudged' ELSE 'NodeUndrained' END))",
        (name, newest.node, seq),
    )


def _delete_job(connection: sqlite3.Connection, job: str) -> None:
    """Delete a job except its `JobForgotten`: this is the newest record, and its number must not be reused."""
    connection.execute("DELETE FROM records WHERE job = ? AND kind <> 'JobForgotten'", (job,))
    connection.execute(
        "DELETE FROM records WHERE kind = 'JobForgotten' AND seq <="
        " (SELECT seq FROM records WHERE kind = 'JobForgotten' ORDER BY seq DESC LIMIT 1 OFFSET ?)",
        (CLUSTER_RECORDS_RETAINED,),
    )


def _delete_runs(connection: sqlite3.Connection, job: str) -> None:
    """Delete the runs of a job before the last `RUNS_RETAINED`."""
    runs = connection.execute(
        "SELECT run FROM records WHERE job = ? AND kind = 'RunOpened' ORDER BY seq DESC LIMIT -1 OFFSET ?",
        (job, RUNS_RETAINED),
    ).fetchall()
    for (run,) in runs:
        connection.execute("DELETE FROM records WHERE job = ? AND run = ?", (job, run))


def _delete_rounds(connection: sqlite3.Connection, job: str, run: str, last: int) -> None:
    """Delete the rounds up to number `last`, except the last `RoundEnded`, which has the restarts used so far.

    So are the records of nodes that left before that `RoundEnded`.
    """
    (end,) = connection.execute(
        "SELECT max(seq) FROM records WHERE job = ? AND run = ? AND kind = 'RoundEnded' AND round <= ?",
        (job, run, last),
    ).fetchone()
    if end is None:
        return
    for kind in _OF_ROUNDS:
        connection.execute(
            "DELETE FROM records WHERE job = ? AND run = ? AND kind = ? AND seq < ?", (job, run, kind.KIND, end)
        )
    gone = connection.execute(
        "SELECT node, max(seq) FROM records WHERE job = ? AND run = ? AND kind IN ('NodeLost', 'NodeReleased')"
        " AND seq < ? GROUP BY node",
        (job, run, end),
    ).fetchall()
    for node, left_at in gone:
        connection.execute(
            "DELETE FROM records WHERE job = ? AND run = ? AND node = ? AND seq <= ?", (job, run, node, left_at)
        )


def _delete_visitor(connection: sqlite3.Connection, job: str, run: str, kind: str) -> None:
    """Delete the oldest node beyond `VISITORS_RETAINED` that left in this way, if no round was formed since it joined.

    Before the first round, a node that remembers a round is kept: if records were lost, the numbers of rounds continue
    from those that nodes remember.
    """
    beyond = connection.execute(
        "SELECT seq, node FROM records WHERE job = ? AND run = ? AND kind = ? ORDER BY seq DESC LIMIT 1 OFFSET ?",
        (job, run, kind, VISITORS_RETAINED),
    ).fetchone()
    if beyond is None:
        return
    left_at, node = beyond
    # The `round` of a `NodeJoined` is the one that the node remembers.
    joined_at, remembered = connection.execute(
        "SELECT max(seq), round FROM records WHERE job = ? AND run = ? AND node = ? AND kind = 'NodeJoined'"
        " AND seq < ?",
        (job, run, node, left_at),
    ).fetchone()
    (formed,) = connection.execute(
        "SELECT max(seq) FROM records WHERE job = ? AND run = ? AND kind = 'RoundFormed'", (job, run)
    ).fetchone()
    has_joined_later = joined_at is not None and formed is not None and joined_at > formed
    if has_joined_later or (formed is None and remembered == 0):
        connection.execute(
            "DELETE FROM records WHERE job = ? AND run = ? AND node = ? AND seq BETWEEN ? AND ?",
            (job, run, node, joined_at, left_at),
        )
