"""Looks up a coordinator's jobs for the commands: all, one, or the only one; explains unknown names.

Where a coordinator has only one job, commands need no name for it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any
from urllib.parse import quote

from msgspec import Struct

from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.protocol.http.api import JobsAnswer
from nodeclient.operate.client import Client, RequestError, UnknownNameError, read
from nodeclient.operate.formatting import listed


class Status(Struct, frozen=True):
    """All jobs of a coordinator, or one."""

    answer: JobsAnswer
    """Has only `jobs` if one job was requested."""
    data: dict[str, Any]
    """The same as the coordinator sent it, for programs."""


def get_status(client: Client, job: str | None) -> Status:
    """Return all jobs, or one."""
    data = client.get("/v1/jobs") if job is None else {"jobs": [get_job_data(client, job, "")]}
    return Status(read(JobsAnswer, data), data)


def get_job_data(client: Client, job: str, subpath: str) -> Any:
    """Return data about one job; `subpath` follows the path of the job, and may be a query."""
    try:
        return client.get(f"{job_path(job)}{subpath}")
    except UnknownNameError:
        raise unknown_job(client, job) from None


def job_path(job: str) -> str:
    """Return the path of a job, quoted."""
    return f"/v1/jobs/{_quoted(job)}"


def node_path(node: str) -> str:
    """Return the path of a node, quoted."""
    return f"/v1/nodes/{_quoted(node)}"


def only_job(client: Client, named: str | None, *, live: bool = False) -> str:
    """Return the named job, or else the only one. With `live`, ended jobs count only if all have ended.

    Raises `RequestError` if there is no job, or more than one.
    """
    if named is not None:
        return named
    jobs = read(JobsAnswer, client.get("/v1/jobs")).jobs
    living = [job.job for job in jobs if live and not job.ended]
    names = living or [job.job for job in jobs]
    if not names:
        raise RequestError("the coordinator knows no job: nodeclient join starts one")
    if len(names) > 1:
        noun = "jobs that have not ended" if living else "jobs"
        raise RequestError(f"there are {len(names)} {noun}, name one: {listed(names)}", ExitCode.USAGE)
    return names[0]


def unknown_job(client: Client, job: str) -> UnknownNameError:
    """Return the error for an unknown job, with a suggestion."""
    known = [status.job for status in read(JobsAnswer, client.get("/v1/jobs")).jobs]
    return UnknownNameError(f"the coordinator knows no job {job!r}{_suggestion(job, known)}")


def _suggestion(wrong: str, known: Collection[str]) -> str:
    if not known:
        return "; it knows none"
    from difflib import get_close_matches  # noqa: PLC0415 - few names are wrong

    likely = get_close_matches(wrong, known, n=1)
    return f"; did you mean {likely[0]!r}?" if likely else f"; it knows {listed(list(known))}"


def _quoted(name: str) -> str:
    """Quote a name as one segment of a path, `.` and `..` too, which a proxy would take for folders."""
    return quote(name, safe="").replace(".", "%2E")
