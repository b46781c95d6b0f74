"""`nodeclient report`: the first cause of a job's last failure, as its nodes have shown it, for whoever came later."""

from __future__ import annotations

import json

from coordinatord.shared.times import now
from coordinatord.wire.exits import ExitCode
from nodeclient.config import ReportConfig
from nodeclient.failures import block
from nodeclient.operate.answers import read_job
from nodeclient.operate.asking import ask_of_job, only_job
from nodeclient.operate.client import Client
from nodeclient.operate.surface import surface, write


def show(config: ReportConfig) -> int:
    """Print the report and return the exit code."""
    client = Client(config.coordinators)
    said = ask_of_job(client, only_job(client, config.job), "")
    job = read_job(said)
    if config.json:
        write([json.dumps(said.get("failure"))])
    elif job.report is None:
        write([f"no worker of job {job.name} has failed in run {job.run}"])
    else:
        budget = f"restarts {job.restarts_used}" + ("" if job.restarts_max is None else f" of {job.restarts_max}")
        where = surface()
        write(where.wrapped(f"job {job.name}, run {job.run}, now {job.state}: {job.reason} ({budget} used)"))
        write(block.lines(job.report, now()))
    return ExitCode.OK
