"""Deletes old history, so that a job may run for years: whole runs, old rounds, and nodes that only passed by.

Numbers in records are absolute, so the remaining records lead to the same state. Each function is called for one new
record, within its transaction. Beside what it deletes, it costs a few steps in an index.
"""

from __future__ import annotations

import sqlite3

from coordinatord.core.rounds.values.records import (
    BusyWorkerAwaited,
    ClusterRecord,
    FirstStepOverdue,
    JobForgotten,
    NodeLeftBehind,
    NodeLost,
    NodeReleased,
    NodesHeard,
    NodesSilent,
    NodeSucceeded,
    Record,
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
from coordinatord.core.rounds.values.round_history import ROUNDS_KEPT

RUNS_KEPT = 3
"""Runs that are kept of each job: the daemon goes on with the last one, and `replay` can compare it with the two
before."""

VISITORS_KEPT = 200
"""Nodes that came and went while no round was formed, kept for each run and each way to leave. A host that comes and
goes every few seconds for a month would otherwise leave a million records."""

MARKS_KEPT = 1_000
"""Drains and undrains that are no longer in force, and forgotten jobs, that are kept: whoever looks for one looks at
the last weeks."""

REPEATED_KEPT = 200
"""Records that are kept of each run and repeated kind: training that stalls at each evaluation, in a round that lasts
for months, leaves many."""

_REPEATED = (TrainingStalled, TrainingResumed, BusyWorkerAwaited, NodesSilent, NodesHeard)
"""The kinds that come again and again in one round. Only the last record of each is needed to go on."""

_OF_ROUNDS = (
    RoundFormed,
    RoundsMissed,
    RoundStarted,
    TrainingBegan,
    FirstStepOverdue,
    TrainingCaughtUp,
    *_REPEATED,
    RoundStopped,
    RoundEnded,
    NodeSucceeded,
    NodeLeftBehind,
)

_CAUSES = (JobForgotten, RunOpened, RoundFormed, NodeLost, NodeReleased, ClusterRecord, *_REPEATED)


def makes_forget(newest: Record) -> bool:
    """Whether a record may make others superfluous."""
    return isinstance(newest, _CAUSES)


def forget(connection: sqlite3.Connection, newest: Record) -> None:
    """Delete what this record, the newest one, makes superfluous."""
    match newest:
        case JobForgotten():
            _forget_job(connection, newest.job)
        case RunOpened():
            _forget_runs(connection, newest.job)
        case RoundFormed():
            _forget_rounds(connection, newest.job, newest.run, newest.round - ROUNDS_KEPT)
        case NodeLost() | NodeReleased():
            _forget_visitor(connection, newest.job, newest.run, newest.KIND)
        case TrainingStalled() | TrainingResumed() | BusyWorkerAwaited() | NodesSilent() | NodesHeard():
            _forget_repeated(connection, newest.job, newest.run, newest.KIND)
        case ClusterRecord():
            _forget_drains(connection, newest)


def _forget_repeated(connection: sqlite3.Connection, job: str, run: str, kind: str) -> None:
    """Forget the record that is now beyond the last `REPEATED_KEPT` of its kind."""
    connection.execute(
        "DELETE FROM records WHERE seq = (SELECT seq FROM records WHERE job = ? AND run = ? AND kind = ?"
        " ORDER BY seq DESC LIMIT 1 OFFSET ?)",
        (job, run, kind, REPEATED_KEPT),
    )


def _forget_drains(connection: sqlite3.Connection, newest: ClusterRecord) -> None:
    """Forget the oldest drain or undrain beyond `MARKS_KEPT`, and the one that this record ends; keep what is in force.

    A drain is in force if there is no later undrain of the same name.
    """
    beyond = connection.execute(
        "SELECT seq, node FROM records WHERE job = '' ORDER BY seq DESC LIMIT 1 OFFSET ?", (MARKS_KEPT,)
    ).fetchone()
    if beyond is None:
        return
    seq, name = beyond
    connection.execute(
        # Without the named index SQLite would go through all drains and undrains up to there.
        "DELETE FROM records AS old INDEXED BY marks_by_name WHERE job = '' AND node IN (?, ?) AND seq <= ?"
        " AND (kind = 'NodeUndrained' OR EXISTS (SELECT 1 FROM records AS newer WHERE newer.job = ''"
        " AND newer.node = old.node AND newer.kind = 'NodeUndrained' AND newer.seq > old.seq))",
        (name, newest.node, seq),
    )


def _forget_job(connection: sqlite3.Connection, job: str) -> None:
    """Forget a job, except the record that it is forgotten: the newest one stays, so that its number is not reused."""
    connection.execute("DELETE FROM records WHERE job = ? AND kind <> 'JobForgotten'", (job,))
    connection.execute(
        "DELETE FROM records WHERE kind = 'JobForgotten' AND seq <="
        " (SELECT seq FROM records WHERE kind = 'JobForgotten' ORDER BY seq DESC LIMIT 1 OFFSET ?)",
        (MARKS_KEPT,),
    )


def _forget_runs(connection: sqlite3.Connection, job: str) -> None:
    runs = connection.execute(
        "SELECT run FROM records WHERE job = ? AND kind = 'RunOpened' ORDER BY seq DESC LIMIT -1 OFFSET ?",
        (job, RUNS_KEPT),
    ).fetchall()
    for (run,) in runs:
        connection.execute("DELETE FROM records WHERE job = ? AND run = ?", (job, run))


def _forget_rounds(connection: sqlite3.Connection, job: str, run: str, last: int) -> None:
    """Forget the rounds up to `last`, except how that one ended: it has the used part of the budget."""
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


def _forget_visitor(connection: sqlite3.Connection, job: str, run: str, kind: str) -> None:
    """Forget the oldest node beyond `VISITORS_KEPT` that left in this way, unless a round was formed meanwhile.

    Before the first round, a run counts on from the round that its nodes remember, so a node that remembers one is kept
    until then.
    """
    beyond = connection.execute(
        "SELECT seq, node FROM records WHERE job = ? AND run = ? AND kind = ? ORDER BY seq DESC LIMIT 1 OFFSET ?",
        (job, run, kind, VISITORS_KEPT),
    ).fetchone()
    if beyond is None:
        return
    left_at, node = beyond
    joined_at, remembered = connection.execute(
        "SELECT max(seq), round FROM records WHERE job = ? AND run = ? AND node = ? AND kind = 'NodeJoined'"
        " AND seq < ?",
        (job, run, node, left_at),
    ).fetchone()
    (formed,) = connection.execute(
        "SELECT max(seq) FROM records WHERE job = ? AND run = ? AND kind = 'RoundFormed'", (job, run)
    ).fetchone()
    if joined_at is not None and (joined_at > formed if formed is not None else remembered == 0):
        connection.execute(
            "DELETE FROM records WHERE job = ? AND run = ? AND node = ? AND seq BETWEEN ? AND ?",
            (job, run, node, joined_at, left_at),
        )
