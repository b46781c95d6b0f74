"""The flags of `nodeclient up`, besides those of `nodeclient join`, which it passes on to the nodes.

`up` starts one `nodeclient join` on each of several hosts by ssh, and a coordinator unless one is named.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal

from msgspec import Struct

from coordinatord.runtime.settings import SettingsParser, filled, folder, joined
from nodeclient.access.endpoint import Endpoint
from nodeclient.access.keyring import AccessSettings
from nodeclient.config import flag_values
from nodeclient.config.access_flags import read_access
from nodeclient.config.command_line import CommandLine
from nodeclient.config.host_list import Hosts, read_hostfile, read_hosts
from nodeclient.config.join import UNNAMED, add_join_flags, explain
from nodeclient.config.join_config import DEFAULT_JOB

OWN_HEADING = "the hosts"
"""The heading of the flags that `join` lacks."""

_OWN = ("hosts", "hostfile", "coordinator_host", "remote_python", "workdir", "coord", "token_file")
"""The attributes of settings that are not passed on as they are."""

_OF_ONE_NODE = frozenset({"--standalone", "--node-id", "--node-rank", "--advertise-addr"})
"""The flags of `join` that cannot be the same on all hosts."""

_OF_A_COORDINATOR = ("token_file", "authorities", "certificate", "key", "insecure")
"""The attributes of settings for a coordinator that somebody else has started."""

_PREFIX = "--log-line-prefix-template=[rank ${rank}] "
"""The default prefix of workers' lines: the name of their host stands before it."""

_PLAIN_PATH = re.compile(r"[\w@%+=:,./ -]+", re.ASCII)
"""A path that all login shells read alike if it is quoted."""


class UpConfig(Struct, frozen=True):
    """All settings of `nodeclient up`; durations in seconds."""

    PROGRAM: ClassVar[Literal["command"]] = "command"
    MODULE: ClassVar[str] = "remote.bring_up"

    hosts: Hosts
    coordinators: tuple[Endpoint, ...]
    """The coordinators that are there; empty to start one."""
    coordinator_host: str
    remote_python: str
    workdir: Path
    nodes: tuple[int, int]
    """The least and the largest number of nodes of a round."""
    stop_timeout_s: float
    arguments: tuple[str, ...]
    """The flags of `nodeclient join` that are the same on all hosts."""
    command: tuple[str, ...]
    access: AccessSettings
    log_level: str
    log_format: str
    remarks: tuple[str, ...]
    """Lines to log at the start."""


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


def _read_up(parser: SettingsParser, given: argparse.Namespace, environ: Mapping[str, str]) -> UpConfig:
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
        "log_line_prefix_template": _PREFIX,
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
        access=read_access(parser, given, environ),
        remarks=(*parser.misspelt, *([UNNAMED] if given.coord and "job_id" not in flags else [])),
    )


def _explain(flag: str) -> str | None:
    return f"{flag} is for one node, and up starts several" if flag in _OF_ONE_NODE else explain(flag)


COMMAND_LINES = {"up": CommandLine(_add_up_flags, _read_up, _explain)}
