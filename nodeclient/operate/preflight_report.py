"""`nodeclient preflight`: has the nodes of a job tested in pairs while it has no workers, and prints what was found.

It searches for bad hosts and links before a job trains on them. The coordinator runs the preflight; this command starts
it, waits for its end, and prints a line for each node.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.protocol.http.api import AdminAnswer, AdminBody, PreflightStatus
from coordinatord.protocol.text import clip, counted
from nodeclient.config.operate import PreflightConfig
from nodeclient.operate.admin_commands import person
from nodeclient.operate.client import Client, RequestError, read, repeat
from nodeclient.operate.formatting import Column, table
from nodeclient.operate.job_lookup import get_job_data, job_path, known_job, only_job
from nodeclient.operate.terminal_info import Colour, terminal, write

SUSPECT = 1
"""The exit code if a node or a link is suspect."""

GOOD = "good"

COLUMNS = (Column("NODE"), Column("HOST", 1), Column("GFLOP/S"), Column("MB/S"), Column("VERDICT"))


def run(config: PreflightConfig) -> int:
    """Print the table of the nodes and a sentence; return 1 if any node or link is suspect, otherwise 0.

    Raises `RequestError` if the preflight could not begin, or ended early.
    """
    client = Client(config.coordinators, config.access)
    job = only_job(client, config.job, live=True)
    body = AdminBody(person(), config.reason, config.dry_run)
    with known_job(client, job):
        answer = read(AdminAnswer, client.post(f"{job_path(job)}/preflight", body))
    if config.dry_run:
        write([clip(answer.message)])
        return ExitCode.OK
    sys.stderr.write(f"nodeclient: {clip(answer.message)}\n")
    data = _await_end(client, job)
    found = read(PreflightStatus, data)
    if config.json:
        write([json.dumps(data)])
    elif not found.stopped:  # otherwise some nodes were not tested
        write(_lines(found))
    if found.stopped:
        raise RequestError(f"the preflight of job {job} ended early: {found.stopped}", ExitCode.TEMPFAIL)
    return SUSPECT if _suspects(found) else ExitCode.OK


def _await_end(client: Client, job: str) -> dict[str, Any]:
    """Return the preflight once it is over. Raises `RequestError` if the coordinator no longer knows it."""
    jobs = repeat(lambda: [get_job_data(client, job, "")])
    preflights: Iterator[dict[str, Any] | None] = (data.get("preflight") for data in jobs)
    found = next(each for each in preflights if each is None or each.get("is_over"))
    if found is None:
        text = f"the preflight of job {job} is gone: the coordinator, or the job, was started again"
        raise RequestError(text, ExitCode.TEMPFAIL)
    return found


def _lines(found: PreflightStatus) -> list[str]:
    """Return the table, and what is suspect as a sentence."""
    output = terminal()
    rows = [(each.node, each.host, _figure(each.gflops), _figure(each.mb_s), each.verdict) for each in found.nodes]

    def paint(row: int, title: str, cell: str) -> str:
        if row < 0:
            return output.paint(cell, Colour.FAINT)
        return output.paint(cell, Colour.BAD) if title == "VERDICT" and cell != GOOD else cell

    suspects = "; ".join(_suspects(found)) or f"{counted(len(rows), 'node')}: all are good"
    return [*table(COLUMNS, rows, output, paint, indent=""), *output.wrapped(suspects)]


def _suspects(found: PreflightStatus) -> list[str]:
    """Return what is wrong with each suspect node and link."""
    nodes = [f"{each.node} {each.text}" for each in found.nodes if each.verdict != GOOD]
    return nodes + [f"the link between {' and '.join(pair)} is bad" for pair in found.bad_links]


def _figure(figure: float | None) -> str:
    return "-" if figure is None else f"{figure:,.0f}"
