"""The flags of operators' commands, `status`, `events`, `drain`, `stop` and so on, of `check`, and of `replay`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import ClassVar, Literal

from msgspec import Struct

from coordinatord.protocol.http.api import DRAINED_BEFORE_MAX
from coordinatord.protocol.ip_addresses import Endpoint
from coordinatord.protocol.log_messages import LOG_LINES_MAX
from coordinatord.runtime.settings import SettingsParser, duration, filled, folder
from nodeclient.access.keyring import AccessSettings
from nodeclient.config import flag_values
from nodeclient.config.access_flags import add_access_flags, add_coordinators, read_access
from nodeclient.config.command_line import CommandLine

LAST_LINES = 100
"""The default number of lines of each log: some screens, with a long traceback."""

ONLY_JOB = "may be left out where there is only one"
ONLY_LIVE_JOB = f"{ONLY_JOB}, or only one that has not ended"

_LAST = "--last --tail -n"
"""The names of the flag for how much of the end is shown: ours, that of kubectl, and that of tail."""


class Verb(StrEnum):
    """A command about nodes or a job."""

    DRAIN = "drain"
    UNDRAIN = "undrain"
    QUARANTINE = "quarantine"
    PARDON = "pardon"
    STOP = "stop"
    RESTART = "restart"
    FORGET = "forget"


STREAMS = ("stdout", "stderr", "both")


class LogEnd(Struct, frozen=True):
    """How much of the end of a log is wanted, in lines or bytes; without either, all of it."""

    lines: int | None = None
    bytes: int | None = None


class OperatorConfig(Struct, frozen=True, kw_only=True):
    """The settings of all commands for operators."""

    PROGRAM: ClassVar[Literal["command"]] = "command"
    """The kind of settings, by which `cli` chooses what to run."""
    MODULE: ClassVar[str]
    """The module of `nodeclient` with the function `run` for this command."""

    coordinators: tuple[Endpoint, ...]
    access: AccessSettings = AccessSettings()


class _ReadingConfig(OperatorConfig, frozen=True):
    """The settings of commands that show something of one job, or of all jobs."""

    job: str | None
    json: bool


class StatusConfig(_ReadingConfig, frozen=True):
    """All settings of `nodeclient status`; without a job it shows all jobs."""

    MODULE = "operate.status"
    watch: bool = False
    all: bool = False
    """Whether a terminal, too, shows every node and every job that has ended, and not only some of them."""


class EventsConfig(_ReadingConfig, frozen=True):
    """All settings of `nodeclient events`; without a job it shows all events, also those that belong to no job."""

    MODULE = "operate.event_log"
    follow: bool
    last: int | None = None
    """The number of newest events; None for the coordinator's default, or a few with `follow`."""
    since_s: float | None = None
    """The age limit of events, in seconds."""
    kinds: tuple[str, ...] = ()
    """The kinds of events, named as by the coordinator; empty for all."""


class LogsConfig(_ReadingConfig, frozen=True):
    """All settings of `nodeclient logs`; without a job it reads the logs of the only one."""

    MODULE = "operate.worker_logs"
    ranks: str
    """The ranks as given, such as `0-3,7`; empty for all."""
    nodes: tuple[str, ...]
    """Names of nodes or hosts; empty for all."""
    run: str | None
    """None for the last one."""
    round: int | None
    """None for the last one."""
    stream: str
    last: LogEnd
    follow: bool


class StacksConfig(_ReadingConfig, frozen=True):
    """All settings of `nodeclient stacks`; without a job it reads the only one that has not ended."""

    MODULE = "operate.worker_stacks"
    ranks: str
    """The ranks as given, such as `0-3,7`; empty for all."""
    dumps: Path | None = None
    """A folder with files of torch's flight recorder to judge instead, without a coordinator."""


class ReportConfig(_ReadingConfig, frozen=True):
    """All settings of `nodeclient report`; without a job it shows the report of the only one."""

    MODULE = "operate.report"


class PreflightConfig(_ReadingConfig, frozen=True):
    """All settings of `nodeclient preflight`; without a job it tests the only one that has not ended."""

    MODULE = "operate.preflight_report"
    reason: str = ""
    dry_run: bool = False


class WaitConfig(OperatorConfig, frozen=True):
    """All settings of `nodeclient wait`; without a job it waits for the only one that has not ended."""

    MODULE = "operate.job_end"
    job: str | None
    timeout_s: float | None


class PageConfig(OperatorConfig, frozen=True):
    """All settings of `nodeclient page`."""

    MODULE = "operate.page_link"


class CommandConfig(OperatorConfig, frozen=True):
    """All settings of `nodeclient drain` and its like."""

    MODULE = "operate.admin_commands"
    verb: Verb
    job: str | None = None
    """None for the only job, or the only one that has not ended."""
    nodes: tuple[str, ...] = ()
    """The nodes; empty for a command about a job."""
    reason: str = ""
    dry_run: bool = False
    """Whether only to show the effect of the command."""
    ahead: bool = False
    """Whether to drain nodes that join later, too."""
    no_persist: bool = False
    """Whether to end a job that only waits until its last step is on the disk."""


class CheckConfig(OperatorConfig, frozen=True):
    """All settings of `nodeclient check`."""

    MODULE = "shell.host_programs"
    json: bool
    folders: tuple[Path, ...]
    """Directories that need space."""


class CrashReplayConfig(Struct, frozen=True):
    """The settings of `nodeclient replay`."""

    PROGRAM: ClassVar[Literal["replay"]] = "replay"

    crash: Path
    """The crash file of a bug of nodeclient."""


def _add_status(parser: SettingsParser) -> None:
    parser.add_setting("--watch -w", "look again every second; off a terminal, at each change")
    parser.add_setting("--all", "show every node and every job, however many there are")


def _add_events(parser: SettingsParser) -> None:
    parser.add_setting("--follow -f", "go on as events happen; begins with the last 10")
    add = partial(parser.add_setting, variables=())
    add(f"{_LAST} N", "only the newest N, up to 1000", flag_values.count)
    add(
        "--since AGE",
        "only events of this age at most, in seconds, or as 15m, 2h, 3d",
        duration,
        dest="since_s",
    )
    add(
        "--kind KIND[,...]",
        "only events of these kinds, such as node-lost,round-stopped",
        flag_values.names,
        default=(),
        dest="kinds",
    )


def _add_logs(parser: SettingsParser) -> None:
    _add_ranks(parser)
    add = partial(parser.add_setting, variables=())
    add(
        "--node NODE",
        "only workers of this node, by its id or its host's name; may be given several times",
        flag_values.name,
        default=(),
        action="append",
        dest="nodes",
    )
    add("--run RUN", "an earlier run, as status names it", flag_values.name)
    add("--round N", "the round", flag_values.count, by_default="the last one")
    add("--stream", "stdout, stderr or both", choices=STREAMS, default="both")
    add(
        f"{_LAST} N|SIZE|all",
        "how much of the end of each log: lines, or a size such as 64KB",
        _log_end,
        default=LogEnd(lines=LAST_LINES),
        by_default=f"{LAST_LINES} lines",
    )
    parser.add_setting("--follow -f", "go on as more is written, also in later rounds")


_LOGS_HINTS = dict.fromkeys(
    ("--since", "--since-time", "--until", "--timestamps"),
    "the files have no times: --last says how much, and nodeclient events --since has what happened when",
)


def _add_stacks(parser: SettingsParser) -> None:
    _add_ranks(parser)
    parser.add_setting(
        "--dumps DIR",
        "judge the files of torch's flight recorder in DIR instead, of a job of any launcher",
        folder,
        variables=(),
    )


def _read_stacks(parser: SettingsParser, given: argparse.Namespace) -> OperatorConfig:
    if given.dumps is None and not given.coordinators:
        parser.error("--coord says where coordinatord listens, or --dumps where files of torch's flight recorder are")
    if given.dumps is not None and (given.job is not None or given.ranks):
        parser.error("--dumps is for all files in a folder: leave out JOB and --rank")
    return _read(StacksConfig, parser, given)


def _add_wait(parser: SettingsParser) -> None:
    parser.add_setting(
        "--timeout TIME",
        "give up after this time, in seconds, or as 15m, 2h, 3d",
        duration,
        variables=(),
        by_default="never",
        dest="timeout_s",
    )


def _add_drain(parser: SettingsParser) -> None:
    _add_for_nodes(parser)
    parser.add_setting("--ahead", "also a NODE that has not joined yet", variables=())


def _add_stop(parser: SettingsParser) -> None:
    _add_reason_and_dry_run(parser)
    parser.add_setting("--no-persist", "end a job that only waits until its last step is on the disk", variables=())


def _add_for_nodes(parser: SettingsParser) -> None:
    _add_reason_and_dry_run(parser)
    parser.add_argument(
        "nodes", nargs="+", type=flag_values.name, metavar="NODE", help="the id of a node, or a host's name"
    )


def _read_command(parser: SettingsParser, given: argparse.Namespace) -> OperatorConfig:
    given.verb = Verb(given.subcommand)
    # For each node, a dry run sends the names of those before it (`DrainBody.after`).
    if given.verb is Verb.DRAIN and given.dry_run and len(given.nodes) > DRAINED_BEFORE_MAX + 1:
        parser.error(f"--dry-run takes {DRAINED_BEFORE_MAX + 1} nodes at most, and these are {len(given.nodes)}")
    return _read(CommandConfig, parser, given)


def _read(kind: type[OperatorConfig], parser: SettingsParser, given: argparse.Namespace) -> OperatorConfig:
    """Make the settings of a command, whose fields are named as its flags."""
    if vars(given).get("job") == "":
        parser.error("'' cannot be the name of a job: is a variable empty?")
    return filled(kind, given, access=read_access(parser, given))


def _add_crash(parser: SettingsParser) -> None:
    parser.add_argument("--crash", type=Path, metavar="FILE", required=True, help="the crash file")


def _add_check(parser: SettingsParser) -> None:
    parser.add_argument(
        "folders",
        nargs="*",
        type=folder,
        metavar="DIR",
        help="directories that need space, such as that of --log-dir; one that join would make need not exist yet",
    )


def _add_reason_and_dry_run(parser: SettingsParser) -> None:
    add = partial(parser.add_setting, variables=())
    add("--reason --because TEXT", "reason for the events and the nodes", flag_values.sentence, default="")
    add("--dry-run", "say what would be done, and change nothing")


def _add_ranks(parser: SettingsParser) -> None:
    parser.add_setting(
        "--rank RANKS",
        "only these ranks, such as 3 or 0-7,12",
        flag_values.ranks,
        variables=(),
        default="",
        by_default="all",
        dest="ranks",
    )


def _log_end(text: str) -> LogEnd:
    if text == "all":
        return LogEnd()
    if text.isascii() and text.isdecimal():
        lines = int(text)
        if lines > LOG_LINES_MAX:
            raise argparse.ArgumentTypeError(f"{text!r}: at most {LOG_LINES_MAX} lines, or a size such as 10MB, or all")
        return LogEnd(lines=lines)
    return LogEnd(bytes=flag_values.size(text, 1, "lines, a size such as 64KB, or all"))


def _line(
    add_flags: Callable[[SettingsParser], None],
    read: Callable[[SettingsParser, argparse.Namespace], OperatorConfig],
    hints: Mapping[str, str] = {},
    *,
    json: str = "",
    job: str = "",
    needs_coordinator: bool = True,
) -> CommandLine[OperatorConfig]:
    """Return the command line of a command for operators: `add_flags`, and the flags that several commands have.

    `json` and `job` are the help of `--json` and of the job's name; empty for a command without it.
    """

    def add(parser: SettingsParser) -> None:
        add_flags(parser)
        if json:
            parser.add_setting("--json", json)
        if job:
            parser.add_argument("job", nargs="?", metavar="JOB", help=job)
        parser.add_heading("connection to the coordinator")
        add_coordinators(parser, required=needs_coordinator, dest="coordinators")
        add_access_flags(parser)

    return CommandLine(add, read, hints)


_JSON = "print JSON, for programs"
_JSON_LINES = "print one JSON object a line, for programs"
_JSON_REPORT = f"{_JSON}; null if nothing has failed"

_EVENTS_JOB = "only events of this job (default: of all jobs)"

COMMAND_LINES: dict[str, CommandLine[OperatorConfig] | CommandLine[CrashReplayConfig]] = {
    "status": _line(_add_status, partial(_read, StatusConfig), json=_JSON, job="only this one"),
    "events": _line(_add_events, partial(_read, EventsConfig), json=_JSON_LINES, job=_EVENTS_JOB),
    "logs": _line(_add_logs, partial(_read, LogsConfig), _LOGS_HINTS, json=_JSON_LINES, job=ONLY_JOB),
    "stacks": _line(_add_stacks, _read_stacks, json=_JSON, job=ONLY_LIVE_JOB, needs_coordinator=False),
    "report": _line(lambda _: None, partial(_read, ReportConfig), json=_JSON_REPORT, job=ONLY_JOB),
    "preflight": _line(_add_reason_and_dry_run, partial(_read, PreflightConfig), json=_JSON, job=ONLY_LIVE_JOB),
    "wait": _line(_add_wait, partial(_read, WaitConfig), job=ONLY_LIVE_JOB),
    "page": _line(lambda _: None, partial(_read, PageConfig)),
    "drain": _line(_add_drain, _read_command),
    "undrain": _line(_add_for_nodes, _read_command),
    "quarantine": _line(_add_for_nodes, _read_command),
    "pardon": _line(_add_for_nodes, _read_command),
    "stop": _line(_add_stop, _read_command, job=ONLY_LIVE_JOB),
    "restart": _line(_add_reason_and_dry_run, _read_command, job=ONLY_LIVE_JOB),
    "forget": _line(_add_reason_and_dry_run, _read_command, job=ONLY_JOB),
    "check": _line(_add_check, partial(_read, CheckConfig), json=_JSON, needs_coordinator=False),
    "replay": CommandLine(_add_crash, lambda _, given: CrashReplayConfig(given.crash)),
}
