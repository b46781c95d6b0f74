"""Looks up a coordinator's jobs for the commands: all, one, or the only one; explains unknown names.

Where a coordinator has only one job, commands need no name for it. The paths and the queries of requests are made here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, urlencode

from msgspec import Struct

from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.protocol.http.api import JobsAnswer
from coordinatord.protocol.text import listed, most_similar
from nodeclient.operate.client import Client, RequestError, UnknownNameError, read


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
    with known_job(client, job):
        return client.get(f"{job_path(job)}{subpath}")


def job_path(job: str) -> str:
    """Return the path of a job, quoted."""
    return f"/v1/jobs/{_quoted(job)}"


def node_path(node: str) -> str:
    """Return the path of a node, quoted."""
    return f"/v1/nodes/{_quoted(node)}"


def query(**values: object) -> str:
    """Return a query with those of the values that are given."""
    given = {name: value for name, value in values.items() if value is not None}
    # A query may have colons (RFC 3986, 3.4), and the place of a log has four.
    return f"?{urlencode(given, doseq=True, safe=':')}" if given else ""


def only_job(client: Client, named: str | None, *, live: bool = False) -> str:
    """Return the named job, or else the only one. With `live`, ended jobs count only if all have ended.

    Raises `RequestError` if there is no job, or more than one: it then names live jobs first, and the latest of the
    ended ones before the others.
    """
    if named is not None:
        return named
    jobs = sorted(read(JobsAnswer, client.get("/v1/jobs")).jobs, key=lambda job: (job.ended, job.state_s or 0.0))
    living = [job.job for job in jobs if live and not job.ended]
    names = living or [job.job for job in jobs]
    if not names:
        raise RequestError("the coordinator knows no job: nodeclient join starts one")
    if len(names) > 1:
        what = f"there are {len(names)} jobs{' that have not ended' if living else ''}"
        if live and not living:
            what = f"no job runs now, and {len(names)} have ended"
        raise RequestError(f"{what}, name one: {listed(names, len(names))}", ExitCode.USAGE)
    return names[0]


@contextmanager
def known_job(client: Client, job: str) -> Iterator[None]:
    """Add a suggestion to the error of a request, if the coordinator does not know its job."""
    try:
        yield
    except UnknownNameError:
        known = [status.job for status in read(JobsAnswer, client.get("/v1/jobs")).jobs]
        likely = most_similar(job, known)
        hint = f"did you mean {likely!r}?" if likely else f"it knows {listed(known, len(known)) or 'none'}"
        raise UnknownNameError(f"the coordinator knows no job {job!r}; {hint}") from None


def _quoted(name: str) -> str:
    """Quote a name as one segment of a path, `.` and `..` too, which a proxy would take for folders."""
    return quote(name, safe="").replace(".", "%2E")
