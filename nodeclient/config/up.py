"""The flags of `nodeclient up`, besides those of `nodeclient join`, which it passes on to the nodes.

`up` starts one `nodeclient join` on each of several hosts by ssh, and a coordinator unless one is named. A flag names
the hosts, or a host file of DeepSpeed or of MPI.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable
from pathlib import Path

from coordinatord.protocol.text import clip
from coordinatord.runtime.private_files import PrivateFileError, read_given
from coordinatord.runtime.settings import SettingsParser, filled, folder, joined
from nodeclient.config import flag_values
from nodeclient.config.access_flags import read_access
from nodeclient.config.command_line import CommandLine
from nodeclient.config.join import HINTS, UNNAMED, add_join_flags
from nodeclient.config.join_config import DEFAULT_JOB
from nodeclient.config.operate import OperatorConfig

OWN_HEADING = "the hosts"
"""The heading of the flags that `join` lacks."""

_OWN = ("hosts", "hostfile", "coordinator_host", "remote_python", "workdir", "coord", "token_file")
"""The attributes of settings that are not passed on as they are."""

_OF_ONE_NODE = frozenset({"--standalone", "--node-id", "--node-rank", "--advertise-addr"})
"""The flags of `join` that cannot be the same on all hosts."""

_OF_A_COORDINATOR = ("token_file", "authorities", "certificate", "key", "insecure")
"""The attributes of settings for a coordinator that somebody else has started."""

_PREFIX_FLAG = "--log-line-prefix-template=[rank ${rank}] "
"""The flag with the default prefix of workers' lines; `up` puts the name of their host before it."""

_PLAIN_PATH = re.compile(r"[\w@%+=:,./ -]+", re.ASCII)
"""A path that all login shells read alike if it is quoted."""


HOSTS_MAX = 128
"""The limit of hosts. Each costs an ssh and four descriptors, of which a process usually has 1,024."""

_HOST = re.compile(
    r"""(?P<user> \w[\w.-]*@ )?
        (?: (?P<name> \w[\w.-]* ) | \[ (?P<bracketed> [0-9a-f:.]+ ) \] | (?P<bare> [0-9a-f]*:[0-9a-f.]*:[0-9a-f:.]* ) )
        (?: : (?P<slots> \d+ ) )?
        (?: \s+ (?: slots \s*=\s* (?P<named_slots> \S+ ) | max[_-]slots \s*=\s* \S+ ) )*""",
    re.VERBOSE | re.ASCII | re.IGNORECASE,
)
"""A host as ssh(1) takes it, with or without slots; an IPv6 address with slots stands in brackets. None begins with a
dash, so ssh takes none for a flag. `max_slots`, Open MPI's limit for overloading, is ignored: `up` overloads none."""


Hosts = dict[str, int | None]
"""The names of hosts for ssh, such as `gpu1` or `ana@gpu1`, each with its number of workers; None for the default."""


class UpConfig(OperatorConfig, frozen=True):
    """All settings of `nodeclient up`; durations in seconds. Without `coordinators`, `up` starts a coordinator."""

    MODULE = "remote.bring_up"
    hosts: Hosts
    coordinator_host: str
    remote_python: str
    workdir: Path
    nodes: tuple[int, int]
    """The least and the largest number of nodes of a round."""
    stop_timeout_s: float
    arguments: tuple[str, ...]
    """The flags of `nodeclient join` that are the same on all hosts."""
    command: tuple[str, ...]
    log_level: str
    log_format: str
    remarks: tuple[str, ...]
    """Lines to log at the start."""


def read_hosts(text: str) -> Hosts:
    """Parse `HOST[:SLOTS][,...]`. Raises `ArgumentTypeError`."""
    return _merged(_host(part.strip()) for part in text.split(",") if part.strip())


def read_hostfile(path: str) -> Hosts:
    """Parse a host file: `gpu1 slots=8` (DeepSpeed), `gpu1 slots=8 max_slots=8` (Open MPI) or `gpu1:8` (MPICH).

    Raises `ArgumentTypeError`, which names the line.
    """
    hosts = []
    try:
        text = read_given(Path(path)).removeprefix("\ufeff")  # the mark with which some editors begin a file
    except PrivateFileError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    for number, line in enumerate(text.splitlines(), 1):
        if words := line.partition("#")[0].strip():
            try:
                hosts.append(_host(words))
            except argparse.ArgumentTypeError as error:
                raise argparse.ArgumentTypeError(f"line {number}: {error}") from None
    return _merged(hosts)


def _host(text: str) -> tuple[str, int | None]:
    match = _HOST.fullmatch(text)
    if match is None:
        expected = "expected HOST, HOST:SLOTS or HOST slots=SLOTS, such as gpu1, ana@gpu1:8 or [fd00::5]:8"
        raise argparse.ArgumentTypeError(f"{clip(text)!r}: {expected}")
    name = (match["user"] or "") + (match["name"] or match["bracketed"] or match["bare"])
    slots = match["named_slots"] or match["slots"]
    return name, None if slots is None else flag_values.slots(slots)


def _merged(hosts: Iterable[tuple[str, int | None]]) -> Hosts:
    """Add up the slots of a host that is named more than once. As in MPI, a host without slots then counts as one."""
    merged: Hosts = {}
    for name, slots in hosts:
        # The sum is parsed as a flag, to check its limit.
        merged[name] = flag_values.slots(str((merged[name] or 1) + (slots or 1))) if name in merged else slots
    if len(merged) > HOSTS_MAX:
        text = f"{len(merged)} hosts are more than {HOSTS_MAX}: have a scheduler start nodeclient join"
        raise argparse.ArgumentTypeError(text)
    return merged


def _add_up_flags(parser: SettingsParser) -> None:
    parser.add_heading(OWN_HEADING)
    add = parser.add_setting
    add("--hosts HOST[:SLOTS][,...]", "start a node on each, with SLOTS workers", read_hosts, array=joined, default={})
    add("--hostfile FILE", "hosts in a file, as of DeepSpeed (gpu1 slots=8) or MPI (gpu1:8)", read_hostfile, default={})
    add(
        "--coordinator-host HOST",
        "where to start the coordinator, unless --coord names one",
        flag_values.name,
        default="localhost",
        by_default="this host",
    )
    add(
        "--remote-python PATH",
        "on the hosts, the Python that has nodeclient; its directory is first in the workers' PATH",
        default=sys.executable,
        by_default="the path of the one here",
    )
    add("--workdir DIR", "on the hosts, the directory of the workers", folder, by_default="the path of this one")
    add_join_flags(parser, nodes="all hosts", of_one_node=False)
    parser.usage = "nodeclient up --hosts HOST[:SLOTS],... [flags] -- COMMAND ..."


def _read_up(parser: SettingsParser, given: argparse.Namespace) -> UpConfig:
    parser.exclude(given, "hosts", "hostfile", "give --hosts or --hostfile, and not both")
    flags = parser.given_flags()
    if given.coord and "coordinator_host" in flags:
        parser.error("--coord names a coordinator that is there: leave --coordinator-host out")
    for dest in _OF_A_COORDINATOR:
        if dest in flags and not given.coord:
            parser.error(f"{flags[dest]} is for a coordinator that is there: name it by --coord, or leave this out")
    hosts = given.hosts or given.hostfile
    if not hosts:
        parser.error("name the hosts: --hosts gpu1,gpu2, or --hostfile FILE")
    if not given.command:
        parser.error("give the command that each worker runs, after --, such as: -- python train.py")
    if not _PLAIN_PATH.fullmatch(given.remote_python):
        parser.error(
            f"--remote-python {given.remote_python!r}: a login shell could read these characters in its own way"
        )
    defaults = {
        "job_id": f"--job-id={DEFAULT_JOB}",
        "nnodes": f"--nnodes={len(hosts)}",
        "log_line_prefix_template": _PREFIX_FLAG,
    }
    passed_on = {dest: flag for dest, flag in (defaults | flags).items() if dest not in _OWN}
    workdir = (given.workdir or Path()).absolute()
    for word in (str(workdir), *passed_on.values(), *given.command):
        if word != word.encode(errors="replace").decode():
            parser.error(f"{word!r} is not in UTF-8, so it cannot be sent to other hosts: rename it")
    return filled(
        UpConfig,
        given,
        hosts=hosts,
        coordinators=given.coord,
        workdir=workdir,
        nodes=given.nnodes or (len(hosts), len(hosts)),
        arguments=tuple(passed_on.values()),
        command=tuple(given.command),
        access=read_access(parser, given),
        remarks=(*parser.misspelt, *([UNNAMED] if given.coord and "job_id" not in flags else [])),
    )


_HINTS = HINTS | {flag: f"{flag} is for one node, and up starts several" for flag in _OF_ONE_NODE}

COMMAND_LINES = {"up": CommandLine(_add_up_flags, _read_up, _HINTS)}
