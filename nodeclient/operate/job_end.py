"""`nodeclient wait`: waits for the end of a job's present run, and exits with the code of its nodes.

It polls every second, so it survives a restart of the coordinator.
"""

from __future__ import annotations

import math
import sys
import time

from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.protocol.http.api import EarlierRunStatus, JobStatus
from nodeclient.config.operate import WaitConfig
from nodeclient.operate.client import Client, RequestError, pause, read
from nodeclient.operate.formatting import duration
from nodeclient.operate.job_lookup import get_job_data, only_job
from nodeclient.operate.terminal_info import terminal, write
from nodeclient.operate.watch import POLL_EVERY_S


def run(config: WaitConfig) -> int:
    """Print how the job ended, and return the exit code of its nodes. Raises `RequestError` after the timeout."""
    client = Client(config.coordinators, config.access)
    timeout_s = math.inf if config.timeout_s is None else config.timeout_s
    ends_at = time.monotonic() + timeout_s
    name = only_job(client, config.job, live=True)
    job: JobStatus | EarlierRunStatus = read(JobStatus, get_job_data(client, name, ""))
    if job.exit_code is None:
        sys.stderr.write(f"nodeclient: job {name} is {job.state}, and is waited for\n")
    is_warned = False
    while job.exit_code is None:
        left_s = ends_at - time.monotonic()
        if left_s <= 0:
            text = f"job {name} has not ended within {duration(timeout_s)}: it is {job.state}"
            raise RequestError(text, ExitCode.TIMED_OUT)
        pause(min(left_s, POLL_EVERY_S))
        try:
            job = _same_run(read(JobStatus, get_job_data(client, name, "")), job.run)
            is_warned = False
        except RequestError as error:
            if not error.is_temporary:
                raise
            if not is_warned:
                sys.stderr.write(f"nodeclient: {error}; trying again\n")
            is_warned = True
    write(terminal().wrapped(f"job {name} {job.state}: {job.reason}"))
    return job.exit_code


def _same_run(job: JobStatus, run: str) -> JobStatus | EarlierRunStatus:
    """Return the run of this id, even after the job has begun another one. Raises `RequestError`."""
    runs: tuple[JobStatus | EarlierRunStatus, ...] = (job, *job.earlier)
    for known in runs:
        if known.run == run:
            return known
    raise RequestError(f"job {job.job} has begun run {job.run}, and how run {run} ended is no longer known")
