"""The tables of the database, as steps from each of their versions to the next."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from coordinatord.store.interface import UnreadableStoreError

Steps = Sequence[Sequence[str]]

STEPS: Steps = (
    (
        """
        CREATE TABLE records (
            seq INTEGER PRIMARY KEY,
            at REAL NOT NULL,       -- seconds since 1970, by the clock of the host
            job TEXT NOT NULL,
            run TEXT NOT NULL,
            kind TEXT NOT NULL,     -- the name of a class in coordinatord/core/values/records.py
            node TEXT,              -- where the record is about one
            round INTEGER,          -- the same
            body TEXT NOT NULL      -- the rest of the record, a JSON object
        )
        """,
        "CREATE INDEX records_by_kind ON records (job, run, kind)",
        "CREATE INDEX records_by_node ON records (job, run, node) WHERE node IS NOT NULL",
    ),
    (
        """
        UPDATE records SET body = json_set(body, '$.spec.launcher', 'nodeclient') WHERE kind = 'RunOpened'
        """,
        """
        UPDATE records SET body = json_set(body, '$.offer.group_rank', NULL, '$.offer.probe_port', 1)
        WHERE kind = 'NodeJoined'
        """,
        """
        UPDATE records SET body = json_set(body, '$.first_failure.failure.pid', 1, '$.first_failure.failure.error', '',
            '$.first_failure.failure.last_lines', json('[]'), '$.first_failure.failure.followers', json('[]'))
        WHERE kind = 'RoundStopped' AND json_type(body, '$.first_failure') = 'object'
        """,
        "UPDATE records SET body = json_set(body, '$.report', NULL) WHERE kind IN ('RoundEnded', 'RunEnded')",
    ),
    (
        "CREATE INDEX records_of_forgotten ON records (seq) WHERE kind = 'JobForgotten'",
        "CREATE INDEX records_by_job ON records (job, seq)",
        "CREATE INDEX marks_by_name ON records (node, seq) WHERE job = ''",
        # A client that remembers the number of a record can see by it whether the record is of this database.
        "CREATE TABLE identity (word TEXT NOT NULL)",
        "INSERT INTO identity VALUES (lower(hex(randomblob(4))))",
    ),
    (
        # The time of a run by activity, as far as the times of its records show it. For rounds that are forgotten there
        # is only how the last of them ended, and most of the time up to then was training.
        "CREATE TABLE sums (seq INTEGER PRIMARY KEY, spent TEXT NOT NULL)",
        """
        INSERT INTO sums
        SELECT seq, json_object(
            'training', total(CASE cause WHEN 'training' THEN span END) OVER so_far,
            'waiting', total(CASE cause WHEN 'waiting' THEN span END) OVER so_far,
            'rendezvous', 0.0,
            'starting', total(CASE cause WHEN 'starting' THEN span END) OVER so_far,
            'detecting', 0.0,
            'stopping', total(CASE cause WHEN 'stopping' THEN span END) OVER so_far)
        FROM (
            SELECT seq, job, run, min(max(at - lag(at, 1, at) OVER each, 0.0), 1e8) AS span,
                CASE lag(kind) OVER each
                    WHEN 'RoundFormed' THEN 'starting'
                    WHEN 'RoundStarted' THEN 'training'
                    WHEN 'RoundStopped' THEN 'stopping'
                    WHEN 'RunOpened' THEN CASE kind WHEN 'RoundEnded' THEN 'training' ELSE 'waiting' END
                    ELSE 'waiting'
                END AS cause
            FROM records
            WHERE kind IN ('RunOpened', 'RoundFormed', 'RoundStarted', 'RoundStopped', 'RoundEnded', 'RunEnded')
            WINDOW each AS (PARTITION BY job, run ORDER BY seq))
        WINDOW so_far AS (PARTITION BY job, run ORDER BY seq)
        """,
        """
        UPDATE records SET body = json_set(body, '$.spent', json((SELECT spent FROM sums WHERE sums.seq = records.seq)))
        WHERE kind IN ('RoundFormed', 'RoundStarted', 'RoundStopped', 'RoundEnded', 'RunEnded')
        """,
        "UPDATE records SET body = json_set(body, '$.steps_awaited', json('false')) WHERE kind = 'RoundStarted'",
        "DROP TABLE sums",
        "UPDATE records SET body = json_set(body, '$.condition', '') WHERE kind IN ('RoundStopped', 'RunEnded')",
    ),
    (
        # Time that was put down to training in runs that never reported a step may have been something else.
        """
        UPDATE records SET body = json_set(body,
            '$.spent.running', iif(stepped, 0.0, json_extract(body, '$.spent.training')),
            '$.spent.training', iif(stepped, json_extract(body, '$.spent.training'), 0.0))
        FROM (
            SELECT job AS of_job, run AS of_run,
                max(kind = 'TrainingBegan' OR coalesce(json_extract(body, '$.steps_awaited'), 0)) AS stepped
            FROM records GROUP BY job, run)
        WHERE job = of_job AND run = of_run AND json_type(body, '$.spent') = 'object'
        """,
    ),
    (
        """
        UPDATE records SET body = json_set(body, '$.first_failure.failure.log', '',
            '$.first_failure.failure.followers', (
            SELECT json_group_array(json_set(value, '$.same_error', json('false')))
            FROM json_each(body, '$.first_failure.failure.followers')))
        WHERE kind = 'RoundStopped' AND json_type(body, '$.first_failure') = 'object'
        """,
        """
        UPDATE records SET body = json_set(body, '$.report.failure.log', '', '$.report.failure.followers', (
            SELECT json_group_array(json_set(value, '$.same_error', json('false')))
            FROM json_each(body, '$.report.failure.followers')), '$.report.consequences', (
            SELECT json_group_array(json_set(value, '$.same_error', json('false')))
            FROM json_each(body, '$.report.consequences')), '$.report.same_error_count', 0,
            '$.report.early', json('[]'), '$.report.step', NULL, '$.report.stragglers', json('[]'))
        WHERE kind IN ('RoundEnded', 'RunEnded') AND json_type(body, '$.report') = 'object'
        """,
        "UPDATE records SET body = json_set(body, '$.repeats', 0) WHERE kind = 'RoundEnded'",
    ),
    ("UPDATE records SET body = json_set(body, '$.step', NULL) WHERE kind = 'RunEnded'",),
    (
        """
        UPDATE records SET body = json_set(body, '$.spent.stalled', 0.0) WHERE json_type(body, '$.spent') = 'object'
        """,
    ),
    (
        "UPDATE records SET kind = 'NodeReleased' WHERE kind = 'NodeDismissed'",
        """
        UPDATE records SET body = json_set(body, '$.condition', 'node_stopped')
        WHERE kind = 'RoundStopped' AND json_extract(body, '$.condition') = 'node_halted'
        """,
    ),
    (
        """
        UPDATE records SET body = json_set(body, '$.outcome.result', 'left')
        WHERE kind = 'RunEnded' AND json_extract(body, '$.condition') = 'all_left'
        """,
    ),
    ("UPDATE records SET body = json_set(body, '$.offer.log_dir', '') WHERE kind = 'NodeJoined'",),
    (
        """
        UPDATE records SET body = json_set(body, '$.spent.redone', 0.0, '$.spent.silent', 0.0)
        WHERE json_type(body, '$.spent') = 'object'
        """,
        "UPDATE records SET body = json_set(body, '$.spent', NULL) WHERE kind IN ('NodesSilent', 'NodesHeard')",
        "UPDATE records SET body = json_set(body, '$.step', NULL) WHERE kind = 'TrainingBegan'",
        "UPDATE records SET body = json_set(body, '$.reached', NULL) WHERE kind = 'RoundEnded'",
    ),
    ("UPDATE records SET body = json_set(body, '$.resume', NULL) WHERE kind = 'RoundFormed'",),
    (
        "UPDATE records SET body = json_set(body, '$.spec.scale_up', 'now') WHERE kind = 'RunOpened'",
        "UPDATE records SET body = json_set(body, '$.token', '') WHERE kind = 'NodeJoined'",
        """
        UPDATE records
        SET body = json_set(body, '$.resume.nodes', json('[]'), '$.resume.others', 0, '$.resume.disk', NULL)
        WHERE kind = 'RoundFormed' AND json_type(body, '$.resume') = 'object'
        """,
    ),
    (
        "UPDATE records SET body = json_set(body, '$.spec.hang_timeout_s', NULL) WHERE kind = 'RunOpened'",
        """
        UPDATE records SET body = json_set(body, '$.first_failure.failure.hang', NULL)
        WHERE kind = 'RoundStopped' AND json_type(body, '$.first_failure') = 'object'
        """,
        """
        UPDATE records SET body = json_set(body, '$.report.failure.hang', NULL)
        WHERE kind IN ('RoundEnded', 'RunEnded') AND json_type(body, '$.report') = 'object'
        """,
    ),
    ("UPDATE records SET body = json_set(body, '$.spec.drain_laggards', 0.0) WHERE kind = 'RunOpened'",),
    ("UPDATE records SET body = json_set(body, '$.begun', NULL) WHERE kind = 'RoundStarted'",),
    (
        """
        UPDATE records SET body = json_set(body, '$.first_failure.failure.hang_ranks', json('[]'))
        WHERE kind = 'RoundStopped' AND json_type(body, '$.first_failure') = 'object'
        """,
        """
        UPDATE records SET body = json_set(body, '$.report.failure.hang_ranks', json('[]'))
        WHERE kind IN ('RoundEnded', 'RunEnded') AND json_type(body, '$.report') = 'object'
        """,
    ),
    (
        """
        UPDATE records SET body = json_set(body, '$.begun.why_cold', NULL)
        WHERE kind = 'RoundStarted' AND json_type(body, '$.begun') = 'object'
        """,
    ),
)
"""The statements that lead from version 0, which is empty, to version 1, and so on. Steps are added and never edited,
since there are databases of every version."""


def version_of(connection: sqlite3.Connection) -> int:
    """Return the version of the tables that are there; 0 if there are none."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


def refuse_newer(connection: sqlite3.Connection, steps: Steps = STEPS) -> None:
    """Refuse tables that a newer version has made. Raises `UnreadableStoreError`."""
    version = version_of(connection)
    if version > len(steps):
        raise UnreadableStoreError(
            f"it was written by a newer coordinatord (its version is {version}, this one knows up to {len(steps)}):"
            " install that release again, or choose another directory with --state-dir"
        )


def migrate(connection: sqlite3.Connection, steps: Steps = STEPS) -> None:
    """Bring the tables to the newest version, in one transaction: all steps are taken or none.

    The version is written even if there is no step to take, so a database that cannot be written is found out here.
    Raises `UnreadableStoreError`, and `sqlite3.Error`.
    """
    refuse_newer(connection, steps)
    connection.execute("BEGIN IMMEDIATE")
    try:
        for step in steps[version_of(connection) :]:
            for statement in step:
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {len(steps)}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
