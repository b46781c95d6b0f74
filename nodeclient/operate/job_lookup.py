"""What the commands ask for: the jobs, one of them, the only one; and what they say about a name that is not known."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from coordinatord.protocol.api import DrainedStatus, JobsAnswer, JobStatus
from coordinatord.protocol.exit_codes import ExitCode
from nodeclient.operate.client import Client, read
from nodeclient.operate.formatting import listed, meant
from nodeclient.operate.request_errors import RequestError, UnknownNameError


@dataclass(frozen=True, slots=True)
class Status:
    """What a coordinator says about its jobs."""

    jobs: tuple[JobStatus, ...]
    drained: tuple[DrainedStatus, ...]
    """Empty where one job was asked for."""
    data: dict[str, Any]
    """The same as the coordinator has it, for programs."""


def get_status(client: Client, job: str | None) -> Status:
    """Ask for all jobs, or for one."""
    if job is None:
        data = client.get("/v1/jobs")
        answer = read(JobsAnswer, data)
        return Status(answer.jobs, answer.drained, data)
    data = get_of_job(client, job, "")
    return Status((read(JobStatus, data),), (), {"jobs": [data]})


def get_of_job(client: Client, job: str, what: str) -> Any:
    """Ask something about one job; `what` is the rest of the path."""
    try:
        return client.get(f"{job_path(job)}{what}")
    except UnknownNameError:
        raise unknown_job(client, job) from None


def job_path(job: str) -> str:
    """Return the path of a job, whatever its name."""
    return f"/v1/jobs/{_quoted(job)}"


def node_path(node: str) -> str:
    """Return the path of a node, whatever its name."""
    return f"/v1/nodes/{_quoted(node)}"


def only_job(client: Client, named: str | None, *, live: bool = False) -> str:
    """Return the job that was named, or the one that there is; with `live`, those that have ended count if all have."""
    if named is not None:
        return named
    jobs = read(JobsAnswer, client.get("/v1/jobs")).jobs
    living = [job.job for job in jobs if live and not job.ended]
    names = living or [job.job for job in jobs]
    if not names:
        raise RequestError("the coordinator has no job")
    if len(names) > 1:
        which = "jobs that have not ended" if living else "jobs"
        raise RequestError(f"there are {len(names)} {which}, say which one: {listed(names)}", ExitCode.USAGE)
    return names[0]


def unknown_job(client: Client, job: str) -> UnknownNameError:
    """Say that there is no such job, and which there are."""
    known = [one.job for one in read(JobsAnswer, client.get("/v1/jobs")).jobs]
    return UnknownNameError(f"the coordinator knows no job {job!r}{_instead(job, known)}")


def _instead(wrong: str, known: Collection[str]) -> str:
    if not known:
        return "; it knows none"
    likely = meant(wrong, known)
    return f"; did you mean {likely!r}?" if likely else f"; it knows {listed(list(known))}"


def _quoted(name: str) -> str:
    """Quote a name as one segment of a path: `.` and `..` would be taken for a folder by what stands in between."""
    return quote(name, safe="").replace(".", "%2E")
