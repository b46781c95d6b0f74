"""`nodeclient report`: prints the report of a job's last failed round, as its nodes have printed it."""

from __future__ import annotations

import json

from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.protocol.http.api import JobStatus
from coordinatord.runtime.local_time import now
from nodeclient.config.operate import ReportConfig
from nodeclient.diagnosis import report_text
from nodeclient.operate.client import Client, read
from nodeclient.operate.formatting import budget
from nodeclient.operate.job_lookup import get_job_data, only_job
from nodeclient.operate.terminal_info import terminal, write


def run(config: ReportConfig) -> int:
    """Print the report and return the exit code."""
    client = Client(config.coordinators, config.access)
    data = get_job_data(client, only_job(client, config.job), subpath="")
    job = read(JobStatus, data)
    if config.json:
        write([json.dumps(data.get("failure"))])
    elif job.failure is None:
        write(terminal().wrapped(_without_failure(job)))
    else:
        state = job.state if job.ended else f"is {job.state}"
        write(terminal().wrapped(f"job {job.job} {state} in run {job.run} ({budget(job.restarts)})"))
        write(report_text.lines(job.failure, now()))
    return ExitCode.OK


def _without_failure(job: JobStatus) -> str:
    """Say that no worker has failed by itself; name the last round that broke, and the last earlier run that failed."""
    text = f"no worker of job {job.job} has failed by itself in run {job.run}"
    broken = next((past for past in reversed(job.rounds) if past.ended is not None and not past.planned), None)
    if broken is not None:
        text += f"; round {broken.round} ended: {broken.ended}"
    # `ended_s` is how long ago a run ended, so the last run has the least.
    failed = min((run for run in job.earlier if run.state == "failed"), key=lambda run: run.ended_s, default=None)
    if failed is not None:
        text += (
            f"; run {failed.run} failed before it: {failed.reason}; see nodeclient logs {job.job} --run {failed.run}"
        )
    return text
