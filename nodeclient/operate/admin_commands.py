"""`nodeclient drain`, `pardon`, `stop`, `restart` and the like: sends a command to a coordinator, prints the result.

Nothing is decided here. A request without an answer is not repeated, since it may have been carried out. A command that
changes nothing says so, and is no error.
"""

from __future__ import annotations

import getpass
import os
import socket
import sys

from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.protocol.http.api import AdminAnswer, AdminBody, DrainBody, StopBody
from coordinatord.protocol.text import clip
from nodeclient.config.operate import CommandConfig, Verb
from nodeclient.operate.client import Client, RequestError, UnknownNameError, read
from nodeclient.operate.job_lookup import job_path, known_job, node_path, only_job
from nodeclient.operate.terminal_info import write

PERSON_MAX = 128
"""The limit of a name in characters, as of any name."""


def run(config: CommandConfig) -> int:
    """Send a command for a job, or for each node in turn; return the exit code of the first failure, or 0."""
    client = Client(config.coordinators, config.access)
    body = AdminBody(person(), config.reason, config.dry_run)
    if config.verb is Verb.STOP:
        body = StopBody(body.by, body.reason, body.dry_run, config.no_persist)
    if config.verb in {Verb.STOP, Verb.RESTART, Verb.FORGET}:
        job = only_job(client, config.job, live=config.verb is not Verb.FORGET)
        with known_job(client, job):
            _write(read(AdminAnswer, client.post(f"{job_path(job)}/{config.verb}", body)))
        return ExitCode.OK
    code: int = ExitCode.OK
    for number, node in enumerate(config.nodes):
        if config.verb is Verb.DRAIN:
            before = config.nodes[:number] if config.dry_run else ()  # a dry run only assumes that these are drained
            body = DrainBody(body.by, body.reason, body.dry_run, config.ahead, before)
        try:
            _write(read(AdminAnswer, client.post(f"{node_path(node)}/{config.verb}", body)))
        except RequestError as error:
            remedy = " (--ahead)" if config.verb is Verb.DRAIN and isinstance(error, UnknownNameError) else ""
            sys.stderr.write(f"nodeclient: {error}{remedy}\n")
            code = code or error.exit_code
    return code


def _write(answer: AdminAnswer) -> None:
    write([clip(line) for line in answer.message.split("\n")])


def person() -> str:
    """Return the user and host of this process, for the events; the user may have no name in a container."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = f"uid{os.getuid()}"
    return clip(f"{user}@{socket.gethostname()}", PERSON_MAX)
