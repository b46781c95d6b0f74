"""Makes the settings of a node from parsed flags, for `nodeclient join`, `run` and `launch`.

Some values have several sources: a flag wins over a variable of the scheduler, and that over the default of the command
line. A *remark* is a line for the user, logged at the start, about what is done otherwise than asked for.
"""

from __future__ import annotations

import argparse
import ipaddress
import os
import secrets
import tempfile
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from coordinatord.protocol.fields import RANKS_MAX
from coordinatord.protocol.kept_state import PersistOffer
from coordinatord.protocol.messages import JobSpec, OnDivergence, ScaleUp
from coordinatord.runtime.settings import SettingsParser, Source, filled
from nodeclient.access.keyring import AccessSettings
from nodeclient.config.access_flags import read_access
from nodeclient.config.join_config import DEFAULT_JOB, JoinConfig, command_digest
from nodeclient.core.agent_settings import ABORT_TIMEOUT_S, NCCL_ABORT_TIMEOUT_S
from nodeclient.host.addresses import address_of, fresh_node_id, interfaces
from nodeclient.host.capacity import memory
from nodeclient.host.devices import THIS_HOST, WorkersPerNodeError, workers_per_node
from nodeclient.host.schedulers import SchedulerError, SchedulerValue, scheduler_values, srun_advice
from nodeclient.keeping.disk.persist_settings import PersistSettings
from nodeclient.output.output_settings import Choice, OutputSettings, Rotation
from nodeclient.workers.spawn import SpawnError, WorkerCommand, check_program

DIGESTS = "COORDINATORD_DIGESTS"
"""The variable that switches digests off; workerlib has this name too, but is imported only once `cli` has checked the
installed workerlib."""

INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
"""The workers' variables for the network interface of gloo and NCCL, which the user may have set."""

IGNORED_VARIABLES = {
    "TORCHELASTIC_ENABLE_FILE_TIMER": "nodeclient has no watchdog for torch.distributed.elastic.timer",
    "TORCHELASTIC_HEALTH_CHECK_PORT": "a node serves no health check, ask coordinatord's /healthz",
    "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT": "nodeclient does not look for workers that hang in the kernel",
}
"""Variables of torchrun without a counterpart here, and the remark about each."""


NOWHERE = Path(os.devnull)
"""The value of `--log-dir` by which a user asks for no files: all output goes to the terminal, as with torchrun."""


class FrontEnd(Struct, frozen=True):
    """The settings that a command line derives from the flags that only it has."""

    nodes: tuple[int, int]
    """The number of nodes if neither a flag nor a scheduler sets it."""
    command: tuple[str, ...]
    group_rank: int | None = None
    """The group rank that the node asks for if neither a flag nor a scheduler sets it."""
    own_coordinator: bool = False
    """Whether the node may start the coordinator; see `JoinConfig`."""
    remarks: tuple[str, ...] = ()
    remark_if_unnamed: str = ""
    """The remark for a job that neither a flag nor a scheduler names."""


class _Line(Struct, frozen=True):
    """A parsed command line of a node. All functions that get one raise `SettingsError`, and may add `remarks`."""

    parser: SettingsParser
    given: argparse.Namespace
    front_end: FrontEnd
    from_scheduler: Mapping[str, SchedulerValue]
    remarks: list[str]


def join_config(parser: SettingsParser, given: argparse.Namespace, front_end: FrontEnd) -> JoinConfig:
    """Make the settings. Raises `SettingsError`."""
    settings_file = () if parser.file is None else (f"settings from {parser.file.absolute()}",)
    remarks = [*settings_file, *parser.misspelt, *front_end.remarks, *_ignored_variables(parser.environ)]
    from_scheduler = {} if given.standalone else _scheduler(parser, given)
    line = _Line(parser, given, front_end, from_scheduler, remarks)
    job = given.job_id or _use_scheduler_value(line, "job_id", "job id")
    if job is None and front_end.remark_if_unnamed:
        remarks.append(front_end.remark_if_unnamed)
    if given.nnodes is None and not given.standalone and (advice := srun_advice(parser.environ)):
        remarks.append(advice)
    nodes = given.nnodes or front_end.nodes
    if given.nnodes is None and (number := _use_scheduler_value(line, "nnodes", "number of nodes")):
        nodes = (int(number), int(number))
    workers = _workers(line)
    shown = given.local_ranks_filter
    if shown is not None and not any(local_rank < workers for local_rank in shown):
        remarks.append(f"--local-ranks-filter keeps all {workers} workers of this node from the terminal")
    address = _advertised_address(line)
    access = read_access(parser, given, plaintext_allowed=front_end.own_coordinator)
    own_coordinator = front_end.own_coordinator and _may_start_coordinator(access, remarks)
    config = filled(
        JoinConfig,
        given,
        coordinators=given.coord,
        job=job or DEFAULT_JOB,
        node=given.node_id or fresh_node_id(),
        spec=_spec(line, nodes),
        workers=workers,
        advertise_address=address,
        abort_timeout_s=ABORT_TIMEOUT_S if given.abort_timeout_s is None else given.abort_timeout_s,
        nccl_abort_timeout_s=NCCL_ABORT_TIMEOUT_S if given.abort_timeout_s is None else given.abort_timeout_s,
        command=front_end.command,
        group_rank=_group_rank(line, nodes[1]),
        output=output_settings(given, remarks),
        keep_bytes=_keep_bytes(given.keep_memory, remarks),
        persist=_persist(line, job),
        error_file=Path(error_file) if (error_file := parser.environ.get("TORCHELASTIC_ERROR_FILE")) else None,
        own_coordinator=own_coordinator,
        access=access,
        remarks=tuple(remarks),
        file=parser.file,
    )
    _record_derived(line, config)
    return config


def check_script(parser: SettingsParser, script: str) -> None:
    """Check that the file that each worker runs exists. Raises `SettingsError`."""
    if not Path(script).exists():
        folder = "" if Path(script).is_absolute() else f" in {Path.cwd()}"
        parser.error(f"there is no script {script!r}{folder}: is it on this host, and is this the right folder?")


def _record_derived(line: _Line, config: JoinConfig) -> None:
    """Record the values that were not set but derived, so that `--show-config` shows them.

    A share of the memory is shown as a share, since a user may write a settings file for other hosts from that.
    """
    least, most = config.spec.nodes_min, config.spec.nodes_max
    sources = {key: value.source for key, value in line.from_scheduler.items()}
    for dest, value in {
        "coord": list(map(str, config.coordinators)),
        "job_id": config.job,
        "nnodes": f"{least}:{'' if most == RANKS_MAX else most}",
        "nproc_per_node": config.workers,
        "node_rank": config.group_rank,
        "join_timeout_s": config.join_timeout_s,
        "stop_timeout_s": config.stop_timeout_s,
        "keep_memory": kept if isinstance(kept := line.given.keep_memory, int) else f"{kept:.0%}",
        "log_level": config.log_level,
        "signals": [signum.name for signum in config.signals],
    }.items():
        if value not in (None, []):
            line.parser.record(dest, value, sources.get(dest, "default"))


def _spec(line: _Line, nodes: tuple[int, int]) -> JobSpec:
    given, (least, most) = line.given, nodes
    if given.standalone and least > 1:
        line.parser.error(
            f"--standalone is for this host only, but --nnodes wants {least}: start a coordinatord, see --coord"
        )
    max_restarts, window_s = given.max_restarts
    return JobSpec(
        least,
        most,
        max_restarts,
        scale_up=ScaleUp(given.scale_up),
        hang_timeout_s=given.hang_timeout,
        drain_laggards=given.drain_laggards or 0.0,
        restart_window_s=window_s,
        max_futile_rounds=given.max_futile_rounds,
        on_divergence=_on_divergence(line),
    )


def _on_divergence(line: _Line) -> OnDivergence:
    chosen = OnDivergence(line.given.on_divergence)
    needed = {
        "--max-restarts": line.given.max_restarts[0],
        "--keep-memory": line.given.keep_memory,
        DIGESTS: line.parser.environ.get(DIGESTS) != "0",
    }
    lacking = [name for name, value in needed.items() if not value]
    if chosen is not OnDivergence.REPORT and lacking:
        line.remarks.append(f"--on-divergence {chosen} ends no round, since {' and '.join(lacking)} is 0")
    return chosen


def _workers(line: _Line) -> int:
    """Return how many workers to start here, if there is a program for them."""
    try:
        check_program(WorkerCommand(line.front_end.command, line.parser.environ))
        return workers_per_node(line.given.nproc_per_node, line.parser.environ)
    except (SpawnError, WorkersPerNodeError) as error:
        line.parser.error(str(error))


def _advertised_address(line: _Line) -> str | None:
    """Return the address that was given for this host, or that of the given interface; None if neither was given."""
    given = line.given
    address: str | None = given.advertise_addr or _address_of_interface(line)
    if address and ipaddress.ip_address(address.partition("%")[0]).is_loopback:
        flag = line.parser.flag("advertise_addr") if given.advertise_addr else f"--interface {given.interface}:"
        line.remarks.append(
            f"{flag} {address} is of loopback, where no other host reaches this one: only rounds on this host use it"
        )
    return address


def _may_start_coordinator(access: AccessSettings, remarks: list[str]) -> bool:
    """Whether this node may start a coordinator: it would have no TLS, which users of a token expect."""
    if access.insecure or not access.is_given:
        return True
    remarks.append(
        "a token was given, so this node brings no coordinator along, which would speak in the clear: start a"
        " coordinatord there, or give --insecure"
    )
    return False


def _address_of_interface(line: _Line) -> str | None:
    interface: str | None = line.given.interface
    if interface is None:
        return None
    if interface not in interfaces():
        there = ", ".join(interfaces())
        line.parser.error(f"--interface {interface}: this host has no such network interface; there are: {there}")
    address = address_of(interface)
    if address is None:
        line.parser.error(
            f"--interface {interface} has no address at which other nodes could reach this one: is it up? `ip address`"
            " shows the addresses of all"
        )
    line.remarks.extend(
        f"{variable}={line.parser.environ[variable]} is set, so --interface {interface} does not change it"
        for variable in INTERFACE_VARIABLES
        if variable in line.parser.environ
    )
    return address


def _group_rank(line: _Line, most: int) -> int | None:
    """Return the group rank that the node asks for, if any, in rounds of at most this many nodes."""
    given: int | None = line.given.node_rank
    if line.given.standalone:
        return None
    if given is not None:
        if given >= most:
            line.parser.error(f"--node-rank is {given}, but with --nnodes {most} ranks go from 0 to {most - 1}")
        return given
    # A larger number is that of a spare, or the scheduler counts something else.
    if "node_rank" in line.from_scheduler and int(line.from_scheduler["node_rank"].value) < most:
        return int(_use_scheduler_value(line, "node_rank", "node rank") or 0)
    return line.front_end.group_rank


def _keep_bytes(given: float, remarks: list[str]) -> int:
    """Return the memory for kept state: `given` is its bytes, or a share of the host's memory if it is a float."""
    if isinstance(given, int):
        return given
    try:
        return int(memory(THIS_HOST).total * given)
    except OSError as error:
        remarks.append(f"no state of workers is kept: how much memory there is cannot be read: {error.strerror}")
        return 0


def _persist(line: _Line, job: str | None) -> PersistSettings | None:
    """Return where and how often kept state is written; None without `--persist`. `job` is None if unnamed."""
    given = line.given
    if given.persist is None:
        useless = [
            dest for dest in ("persist_every_s", "persist_keep") if line.parser.source(dest) is not Source.DEFAULT
        ]
        line.remarks.extend(f"{line.parser.flag(dest)} has no effect without --persist" for dest in useless)
        return None
    if given.keep_memory == 0:
        line.remarks.append("--persist writes nothing, since --keep-memory is 0: it writes what is kept in that memory")
    offer, digest = PersistOffer(given.persist_every_s, given.persist_keep), command_digest(line.front_end.command)
    return PersistSettings(given.persist.absolute(), job or DEFAULT_JOB, offer, digest, named=job is not None)


def _ignored_variables(environ: Mapping[str, str]) -> list[str]:
    return [
        f"{name} has no effect: {why}"
        for name, why in IGNORED_VARIABLES.items()
        if environ.get(name, "0") not in {"", "0"}
    ]


def _scheduler(parser: SettingsParser, given: argparse.Namespace) -> Mapping[str, SchedulerValue]:
    """Return the scheduler's values; none if our own flags set all of them. Raises `SettingsError`."""
    if None not in {given.job_id, given.nnodes, given.node_rank}:
        return {}
    try:
        return scheduler_values(parser.environ)
    except SchedulerError as error:
        parser.error(str(error))


def _use_scheduler_value(line: _Line, key: str, noun: str) -> str | None:
    """Return the scheduler's value, if it has one, and add a remark that it is used."""
    found = line.from_scheduler.get(key)
    if found is None:
        return None
    line.remarks.append(f"{noun} {found.value} from {found.source}")
    return found.value


def output_settings(given: argparse.Namespace, remarks: list[str]) -> OutputSettings:
    """Make the settings. If files are needed without `--log-dir`, a directory is chosen, which `remarks` names."""
    redirects, tee, log_dir = given.redirects, given.tee, given.log_dir
    chosen = any(choice.default or any(choice.by_local_rank.values()) for choice in (redirects, tee))
    wants_files = chosen or given.duplicate_stdout_filters or given.duplicate_stderr_filters
    if log_dir == NOWHERE:
        log_dir = None
        if (redirects, tee) != (Choice(), Choice()):
            remarks.append(f"with --log-dir {NOWHERE} there are no files, so all output goes to the terminal")
        redirects = tee = Choice()
    elif log_dir is None and wants_files:
        # The directory is made with the first file.
        log_dir = Path(tempfile.gettempdir(), f"nodeclient-logs-{secrets.token_hex(8)}")
        remarks.append(f"the workers' output goes into files in {log_dir}: --log-dir names a place that is kept")
    return OutputSettings(
        log_dir=log_dir,
        redirects=redirects,
        tee=tee,
        terminal_ranks=given.local_ranks_filter,
        stdout_filters=given.duplicate_stdout_filters,
        stderr_filters=given.duplicate_stderr_filters,
        prefix=given.log_line_prefix_template or None,
        rotation=Rotation(given.log_rotate, given.log_rotations_kept) if given.log_rotate else None,
        retained_rounds=given.log_keep,
    )
