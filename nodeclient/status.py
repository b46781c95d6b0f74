"""`nodeclient status`: the jobs of a coordinator, as a table for people or as JSON for programs."""

from __future__ import annotations

import http.client
import json
import sys
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import msgpack

from coordinatord.wire.exits import ExitCode
from nodeclient.config import Endpoint, StatusConfig

ANSWER_WITHIN_S = 10.0
"""A person waits no longer; a coordinator answers in milliseconds."""

ANSWER_BYTES_MAX = 64 * 1024 * 1024
"""Some 300 bytes a node: 20,000 nodes, the coordinator's own limit, ten times over."""

COLUMNS = ("NODE", "HOST", "ADDRESS", "STATE", "RANKS", "SEEN", "REASON")


class StatusError(RuntimeError):
    """No answer, or not one that can be shown; the text says why."""


def show(config: StatusConfig) -> int:
    """Print the jobs and return the exit code."""
    try:
        text = _text(config)
    except StatusError as error:
        sys.stderr.write(f"nodeclient: {error}\n")
        return ExitCode.UNAVAILABLE
    sys.stdout.write(f"{text}\n")
    return ExitCode.OK


def _text(config: StatusConfig) -> str:
    jobs = _ask_any(config)
    if config.job is not None and not jobs:
        raise StatusError(f"the coordinator knows no job {config.job!r}")
    return json.dumps({"jobs": jobs}) if config.json else "\n\n".join(map(_job_text, jobs)) or "no jobs"


def _ask_any(config: StatusConfig) -> list[dict[str, Any]]:
    troubles = []
    for coordinator in config.coordinators:
        try:
            return _ask(coordinator, config.job)
        except (OSError, UnicodeError, http.client.HTTPException, StatusError) as error:
            why = "this can be no host name" if isinstance(error, UnicodeError) else getattr(error, "strerror", None)
            troubles.append(f"{coordinator}: {why or error}")
    raise StatusError(f"{'; '.join(troubles)}: is coordinatord running there? see --coord")


def _ask(coordinator: Endpoint, job: str | None) -> list[dict[str, Any]]:
    connection = http.client.HTTPConnection(coordinator.host, coordinator.port, timeout=ANSWER_WITHIN_S)
    try:
        path = "/v1/jobs" if job is None else f"/v1/jobs/{quote(job, safe='')}"
        connection.request("GET", path, headers={"Accept": "application/msgpack"})
        answer = connection.getresponse()
        body = answer.read(ANSWER_BYTES_MAX)
    finally:
        connection.close()
    if answer.status == http.client.NOT_FOUND and job is not None:
        return []
    if answer.status != http.client.OK:
        raise StatusError(f"answers with HTTP {answer.status}, not as a coordinatord does")
    try:
        decoded = msgpack.unpackb(body)
        return [decoded] if job is not None else list(decoded["jobs"])
    except (ValueError, KeyError, TypeError, msgpack.UnpackException) as error:
        raise StatusError("gives no list of jobs, as a coordinatord does") from error


def _job_text(job: dict[str, Any]) -> str:
    try:
        restarts = job["restarts"]
        title = f"job {job['job']}  {job['state']}: {job['reason']}"
        facts = f"run {job['run']}, round {job['round']}, world size {job['world_size']}"
        limit = "" if restarts["max"] is None else f" of {restarts['max']}"
        budget = f"restarts {restarts['used']}{limit}"
        failure = f"\n{_failure_text(job['failure'])}" if job["failure"] else ""
        table = _table([COLUMNS, *map(_node_row, job["nodes"])]) if job["nodes"] else "  no nodes"
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise StatusError("the answer is not that of a coordinatord: see --coord") from error
    return f"{title}\n{facts}, {budget}{failure}\n{table}"


def _failure_text(failure: dict[str, Any]) -> str:
    where = f"rank {failure['rank']} on node {failure['node']} (host {failure['host']})"
    what = [failure["how"] if failure["pid"] else "not started", failure["message"], failure["error"]]
    when = f"round {failure['round']}, {failure['age_s']:.0f} s ago"
    return f"last failure: {where}, {when}: {': '.join(part for part in what if part)}"


def _node_row(node: dict[str, Any]) -> tuple[str, ...]:
    ranks = node["ranks"]
    span = "-" if not ranks else f"{ranks[0]}-{ranks[-1]}" if len(ranks) > 1 else str(ranks[0])
    seen = f"{node['last_seen_s']:.0f} s ago"
    return (node["node"], node["host"], node["address"], node["state"], span, seen, node["reason"])


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
