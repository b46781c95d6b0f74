"""What nodeclient is told: flags over environment over defaults, in frozen records that are handed down."""

from __future__ import annotations

import argparse
import os
import re
import secrets
import signal
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coordinatord.shared import __version__
from coordinatord.shared.logs import LEVELS
from coordinatord.shared.settings import SettingsParser, seconds
from coordinatord.wire.messages import COUNTER_MAX, DEFAULT_PORT, RANKS_MAX, Spec
from nodeclient.core.settings import ABORT_TIMEOUT_S
from nodeclient.devices import WorkersPerNodeError, workers_per_node
from nodeclient.output.settings import OutputSettings
from nodeclient.spawn import SpawnError, WorkerCommand, check_program

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""Each asks the node to leave; torchrun handles the same ones."""

DEFAULT_JOB = "default"

TORCHRUN_FLAGS = {
    "-m": "`-- python -m MODULE`",
    "--module": "`-- python -m MODULE`",
    "--rdzv-endpoint": "--coord",
    "--rdzv-id": "--job-id",
    "--rdzv-backend": "not needed, coordinatord is the one",
    "--local-addr": "--advertise-addr",
    "--master-addr": "not needed, each round has its own",
    "--master-port": "not needed, each round has its own",
    "--node-rank": "not needed, see --topology",
    "--shutdown-timeout": "--stop-timeout",
}
"""What people who come from torchrun type first."""

_ENDPOINT = re.compile(
    r"""(?: \[ (?P<bracketed> [0-9a-fA-F:.]+ ) \]  |  (?P<host> [^\s:/\[\],]+ ) )  (?: : (?P<port> \d{1,5} ) )?
        | (?P<bare> [0-9a-fA-F]* : [0-9a-fA-F:.]* : [0-9a-fA-F:.]* )""",
    re.VERBOSE,
)
"""A host name or address with or without a port; an IPv6 address with a port stands in brackets."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a coordinator listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class JoinConfig:
    """All settings of `nodeclient join`; durations in seconds."""

    coordinators: tuple[Endpoint, ...]
    """Tried in turn; empty with `standalone`."""
    standalone: bool
    job: str
    node: str
    spec: Spec
    workers: int
    role: str
    topology: str
    advertise_address: str | None
    join_timeout_s: float
    stop_timeout_s: float
    log_level: str
    command: tuple[str, ...]
    abort_timeout_s: float = ABORT_TIMEOUT_S
    """How long workers get to end in a stop that is not planned."""
    group_rank: int | None = None
    """The group rank that this node wishes for."""
    output: OutputSettings = OutputSettings()
    signals: tuple[signal.Signals, ...] = SIGNALS
    """Each asks the node to leave."""
    numa: str | None = None
    """How workers are bound to NUMA nodes, as torchrun's `--numa-binding` has it."""
    virtual_local_rank: bool = False
    """Each worker sees only its own GPU, and LOCAL_RANK is 0 in all of them."""
    local_rank_argument: bool = False
    """Append `--local-rank=N` to each worker's command, as torch.distributed.launch does."""
    error_file: Path | None = None
    """Where a scheduler wants to find the first cause (TORCHELASTIC_ERROR_FILE)."""
    own_coordinator: bool = False
    """Bring the coordinator along if its address is this host's and nothing listens there yet, as torchrun does."""
    remarks: tuple[str, ...] = ()
    """To be said at the start: what was taken from where, and what is done instead of what was asked for."""


@dataclass(frozen=True, slots=True)
class StatusConfig:
    """All settings of `nodeclient status`."""

    coordinators: tuple[Endpoint, ...]
    job: str | None
    json: bool


Config = JoinConfig | StatusConfig


def parse(arguments: Sequence[str] | None = None, environ: Mapping[str, str] | None = None) -> Config:
    """Read flags (default: this process's) and environment; wrong ones end the program with one line and code 64."""
    environ = os.environ if environ is None else environ
    parser = SettingsParser(
        prog="nodeclient",
        env_prefix="NODECLIENT",
        environ=environ,
        description="The agent of one host in distributed training: joins rounds and runs the local workers.",
    )
    parser.add_argument("--version", action="version", version=f"nodeclient {__version__}")
    commands = parser.add_subparsers(dest="subcommand", required=True, metavar="COMMAND")
    common: dict[str, Any] = {"env_prefix": "NODECLIENT", "environ": environ}
    join = commands.add_parser("join", help="join a job and run its workers on this host", **common)
    status = commands.add_parser("status", help="show the jobs of a coordinator", **common)
    _add_join(join)
    _add_status(status)
    given, unknown = parser.parse_known_args(arguments)
    if unknown:
        (join if given.subcommand == "join" else status).error(_explain_unknown(unknown))
    if given.subcommand == "join":
        return _join_config(join, given, environ)
    return StatusConfig(given.coord, given.job, given.json)


def _explain_unknown(flags: Sequence[str]) -> str:
    flag = flags[0].partition("=")[0].replace("_", "-")
    here = TORCHRUN_FLAGS.get(flag)
    return f"not understood: {' '.join(flags)}" + (f"; what torchrun calls {flag} is here {here}" if here else "")


def _add_join(parser: SettingsParser) -> None:
    parser.usage = "nodeclient join --coord HOST[:PORT] [flags] -- COMMAND ..."
    parser.epilog = "Each flag can also be given as the environment variable in brackets, with - or _ in its name."
    add = parser.add_setting
    add(
        "--coord",
        type=endpoints,
        default=(),
        metavar="HOST[:PORT][,...]",
        help="where coordinatord listens (port: 29400); several are tried in turn",
    )
    add("--standalone", action="store_true", help="bring a coordinator along: a job on this host alone")
    add("--job-id", type=name, default=DEFAULT_JOB, metavar="ID", help="nodes with the same id train together")
    add("--nnodes", type=node_range, metavar="N|MIN:MAX", help="nodes of a round; 'MIN:' for no maximum (default: 1:)")
    add("--nproc-per-node", metavar="N|auto|gpu|cpu", help="workers on this host (default: one a GPU, else 1)")
    add(
        "--max-restarts", type=count, default=0, metavar="N", help="worker failures the whole job survives (default: 0)"
    )
    add(
        "--advertise-addr",
        type=address,
        metavar="ADDR",
        help="where other nodes reach this one, if found wrong by itself",
    )
    add(
        "--node-id",
        type=name,
        metavar="ID",
        help="name of this node that outlives a restart (default: host name, random suffix)",
    )
    add(
        "--topology",
        type=topology,
        default="",
        metavar="KEY",
        help="nodes with neighbouring keys (rack, switch) get neighbouring ranks",
    )
    add("--role", type=name, default="default", help="role of this node's workers (default: default)")
    add("--join-timeout", type=seconds, default=600.0, metavar="S", help="seconds to wait for a round (default: 600)")
    add(
        "--stop-timeout", type=seconds, default=30.0, metavar="S", help="seconds that workers get to save (default: 30)"
    )
    add(
        "--log-level",
        type=str.lower,
        choices=LEVELS,
        default="info",
        metavar="LEVEL",
        help="debug, info, warning, error (default: info)",
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND", help="what each worker runs, after --")


def _add_status(parser: SettingsParser) -> None:
    parser.add_setting("--coord", type=endpoints, required=True, metavar="HOST[:PORT][,...]", help="where to ask")
    parser.add_setting("--json", action="store_true", help="for programs")
    parser.add_argument("job", nargs="?", metavar="JOB", help="only this one")


def _join_config(parser: SettingsParser, given: argparse.Namespace, environ: Mapping[str, str]) -> JoinConfig:
    coordinators = given.coord
    if given.standalone and coordinators is parser.get_default("coord"):
        coordinators = ()  # the flag wins over the environment
    if given.standalone == bool(coordinators):
        parser.error("give --coord HOST[:PORT], or --standalone for a job on this host alone, and not both")
    command = tuple(given.command[1:] if given.command[:1] == ["--"] else given.command)
    if not command:
        parser.error("give the command that each worker runs, after --, such as: -- python train.py")
    try:
        check_program(WorkerCommand(command, environ))
        workers = workers_per_node(given.nproc_per_node, environ)
    except (SpawnError, WorkersPerNodeError) as error:
        parser.error(str(error))
    least, most = given.nnodes or (1, 1 if given.standalone else RANKS_MAX)
    if given.standalone and least > 1:
        parser.error(
            f"--standalone is for this host alone, but --nnodes wants {least}: start a coordinatord, see --coord"
        )
    host = socket.gethostname()
    return JoinConfig(
        coordinators=coordinators,
        standalone=given.standalone,
        job=given.job_id,
        node=given.node_id or f"{host[:100]}-{secrets.token_hex(3)}",
        spec=Spec(least, most, given.max_restarts),
        workers=workers,
        role=given.role,
        topology=given.topology,
        advertise_address=given.advertise_addr,
        join_timeout_s=given.join_timeout,
        stop_timeout_s=given.stop_timeout,
        log_level=given.log_level,
        command=command,
    )


def endpoints(text: str) -> tuple[Endpoint, ...]:
    """Read `HOST[:PORT][,...]`; an IPv6 address with a port stands in brackets."""
    return tuple(_endpoint(part.strip()) for part in text.split(","))


def _endpoint(text: str) -> Endpoint:
    match = _ENDPOINT.fullmatch(text)
    port = int((match and match["port"]) or DEFAULT_PORT)
    if match is None or not 1 <= port <= 65_535:  # noqa: PLR2004 - what a port is
        raise argparse.ArgumentTypeError(f"{text!r} is no HOST[:PORT], such as coord.example:29400 or [fd00::5]:29400")
    return Endpoint(match["bracketed"] or match["bare"] or match["host"], port)


def node_range(text: str) -> tuple[int, int]:
    """Read `N`, `MIN:MAX` or `MIN:`."""
    least, colon, most = text.partition(":")
    try:
        low = int(least)
        high = int(most) if most else (RANKS_MAX if colon else low)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no N, MIN:MAX or MIN:, such as 4 or 2:8") from None
    if not 1 <= low <= high <= RANKS_MAX:
        raise argparse.ArgumentTypeError(f"{text!r}: expected 1 <= MIN <= MAX")
    return low, high


def count(text: str) -> int:
    """Read a number from 0 upward."""
    if not text.isdecimal() or int(text) > COUNTER_MAX:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number, 0 or more")
    return int(text)


def name(text: str) -> str:
    """Read a name or an address: something to be seen, without blanks, of at most 128 characters."""
    if not 1 <= len(text) <= 128 or not text.isprintable() or any(map(str.isspace, text)):  # noqa: PLR2004 - see `wire`
        raise argparse.ArgumentTypeError(f"{text[:40]!r}: expected 1 to 128 visible characters")
    return text


def address(text: str) -> str:
    """Read an address of this host; a name is looked up here, since others may not know it, or as another's."""
    try:
        return str(socket.getaddrinfo(name(text), None, type=socket.SOCK_STREAM)[0][4][0])
    except (OSError, UnicodeError) as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no address and cannot be looked up") from error


def topology(text: str) -> str:
    """Read a name, or nothing where nobody knows."""
    return name(text) if text else ""
