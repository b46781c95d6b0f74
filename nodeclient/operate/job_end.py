"""`nodeclient wait`: waits for the end of a job's present run, and exits with the code of its nodes.

The coordinator answers as soon as the run has ended. So the answer also comes from a coordinator that serves only this
run, and ends with it. The request is repeated, over a restart of the coordinator too.
"""

from __future__ import annotations

import math
import sys
import time

from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.protocol.http.api import EarlierRunStatus, JobStatus
from nodeclient.config.operate import WaitConfig
from nodeclient.operate.client import Client, LostError, RequestError, read, repeat
from nodeclient.operate.formatting import duration
from nodeclient.operate.job_lookup import get_job_data, only_job
from nodeclient.operate.terminal_info import terminal, write

ANSWERED_EVERY_S = 5.0
"""How long the coordinator may hold a request while the run goes on: a connection may be lost without a trace."""

GRACE_S = 2.0
"""How long an answer may take beyond the timeout of the command."""


def run(config: WaitConfig) -> int:
    """Print how the job ended, and return the exit code of its nodes. Raises `RequestError` after the timeout."""
    timeout_s = math.inf if config.timeout_s is None else config.timeout_s
    ends_at = time.monotonic() + timeout_s
    try:
        return _wait(config, timeout_s, ends_at)
    except LostError as error:
        if time.monotonic() < ends_at + GRACE_S:
            raise
        raise RequestError(f"no answer within {duration(timeout_s)}: {error}", ExitCode.TIMED_OUT) from error


def _wait(config: WaitConfig, timeout_s: float, ends_at: float) -> int:
    client = Client(config.coordinators, config.access, ends_at + GRACE_S)
    name = only_job(client, config.job, live=True)
    job: JobStatus | EarlierRunStatus = read(JobStatus, get_job_data(client, name, ""))
    asked_at = answered_at = time.monotonic()

    def ask() -> list[JobStatus]:
        nonlocal asked_at
        asked_at = time.monotonic()
        wait_s = max(0.0, min(ANSWERED_EVERY_S, ends_at - asked_at))
        return [read(JobStatus, get_job_data(client, name, f"?wait={wait_s:.3f}"))]

    if job.exit_code is None:
        sys.stderr.write(f"nodeclient: job {name} is {job.state}, and is waited for\n")
        for later in repeat(ask, ends_at=ends_at):
            job, answered_at = _same_run(later, job.run), time.monotonic()
            if job.exit_code is not None:
                break
    if job.exit_code is None:
        text = f"job {name} has not ended within {duration(timeout_s)}: it is {job.state}"
        if answered_at < asked_at:
            text += f", as of {duration(time.monotonic() - answered_at)} ago"
        raise RequestError(text, ExitCode.TIMED_OUT)
    write(terminal().wrapped(f"job {name} {job.state}: {job.reason}"))
    return job.exit_code


def _same_run(job: JobStatus, run: str) -> JobStatus | EarlierRunStatus:
    """Return the run of this id, even after the job has begun another one. Raises `RequestError`."""
    runs: tuple[JobStatus | EarlierRunStatus, ...] = (job, *job.earlier)
    for known in runs:
        if known.run == run:
            return known
    raise RequestError(f"job {job.job} has begun run {job.run}, and how run {run} ended is no longer known")
