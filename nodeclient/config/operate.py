"""The flags of an operator's commands: `status`, `events`, `report`, `drain`, `stop` and so on."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import field
from enum import StrEnum
from pathlib import Path
from typing import ClassVar, Literal

from coordinatord.protocol.frozen_class import frozen
from coordinatord.protocol.log_messages import LOG_LINES_MAX
from coordinatord.runtime.settings import SettingsParser, joined
from nodeclient.access.endpoint import Endpoint
from nodeclient.access.keyring import USUAL, AccessSettings
from nodeclient.config import flag_values
from nodeclient.config.access_flags import add_access, read_access
from nodeclient.config.command_line import CommandLine

LAST_LINES = 100
"""The lines of each log by default: some screens, with a long traceback."""


_LAST = ("--last", "--tail", "-n")
"""The names of the flag for how many: ours, that of kubectl and docker, and that of tail and journalctl."""


class Verb(StrEnum):
    """A command about nodes or a job."""

    DRAIN = "drain"
    UNDRAIN = "undrain"
    STOP = "stop"
    RESTART = "restart"
    FORGET = "forget"


STREAMS = ("stdout", "stderr", "both")


@frozen
class Last:
    """How much of the end of a log is wanted: lines, or bytes, or all of it."""

    lines: int | None = None
    bytes: int | None = None


@frozen
class _OperatorConfig:
    """The settings that all commands have."""

    PROGRAM: ClassVar[Literal["operate"]] = "operate"

    coordinators: tuple[Endpoint, ...]
    access: AccessSettings = field(default=USUAL, kw_only=True)


@frozen
class _ReadingConfig(_OperatorConfig):
    """The settings of commands that show something of one job, or of all."""

    job: str | None
    json: bool


@frozen
class StatusConfig(_ReadingConfig):
    """All settings of `nodeclient status`; without a job it shows all of them."""

    watch: bool = False
    all: bool = False
    """Show every node, and every job that has ended, also on a terminal."""


@frozen
class EventsConfig(_ReadingConfig):
    """All settings of `nodeclient events`; without a job it shows all events, also those that belong to no job."""

    follow: bool
    last: int | None = None
    """The number of newest events; None: as many as the coordinator sends at once, or a few with `follow`."""
    since_s: float | None = None
    """The age in seconds of the oldest event that is shown."""
    kinds: tuple[str, ...] = ()
    """The kinds of events, as the coordinator calls them; empty: all."""


@frozen
class LogsConfig(_ReadingConfig):
    """All settings of `nodeclient logs`; without a job it reads the logs of the only one."""

    ranks: str
    """The ranks as they are written, such as `0-3,7`; empty: all."""
    nodes: tuple[str, ...]
    """Names of nodes or hosts; empty: all."""
    run: str | None
    """None for the last one."""
    round: int | None
    """None for the last one."""
    stream: str
    last: Last
    follow: bool


@frozen
class StacksConfig(_ReadingConfig):
    """All settings of `nodeclient stacks`; without a job it asks the only one that has not ended."""

    ranks: str
    """The ranks as they are written, such as `0-3,7`; empty: all."""
    dumps: Path | None = None
    """A folder with files of torch's flight recorder, which are judged instead; no coordinator is asked then."""


@frozen
class ReportConfig(_ReadingConfig):
    """All settings of `nodeclient report`; without a job it shows the report of the only one."""


@frozen
class WaitConfig(_OperatorConfig):
    """All settings of `nodeclient wait`; without a job it waits for the only one that has not ended."""

    job: str | None
    timeout_s: float | None


@frozen
class PageConfig(_OperatorConfig):
    """All settings of `nodeclient page`."""


@frozen
class CommandConfig(_OperatorConfig):
    """All settings of `nodeclient drain` and its like."""

    verb: Verb
    job: str | None
    """None for the only job, or the only one that has not ended."""
    nodes: tuple[str, ...]
    """The nodes; empty for a command about a job."""
    reason: str
    dry_run: bool = False
    """Whether only to say what the command would do."""
    ahead: bool = False
    """Whether to drain also nodes that join later."""


OperateConfig = (
    StatusConfig | EventsConfig | LogsConfig | StacksConfig | ReportConfig | WaitConfig | PageConfig | CommandConfig
)


def add_status(parser: SettingsParser) -> None:
    """Add the flags of `nodeclient status`."""
    parser.add_setting(
        "--watch", "-w", action="store_true", help="look again every second; off a terminal, at each change"
    )
    parser.add_setting("--all", action="store_true", help="show every node and every job, however many there are")
    parser.add_setting("--json", action="store_true", help="print JSON, for programs")
    _add_job(parser, "only this one")


def read_status(parser: SettingsParser, given: argparse.Namespace, environ: Mapping[str, str]) -> StatusConfig:
    """Make the settings of `nodeclient status`."""
    access = read_access(parser, given, environ)
    return StatusConfig(given.coord, _job(parser, given), given.json, given.watch, given.all, access=access)


def add_events(parser: SettingsParser) -> None:
    """Add the flags of `nodeclient events`."""
    parser.add_setting("--follow", "-f", action="store_true", help="go on as events happen; begins with the last 10")
    parser.add_setting(*_LAST, type=flag_values.count, variables=(), metavar="N", help="only the newest N, up to 1000")
    parser.add_setting(
        "--since",
        type=flag_values.duration,
        variables=(),
        metavar="AGE",
        help="only events of this age at most, in seconds, or as 15m, 2h, 3d",
    )
    parser.add_setting(
        "--kind",
        type=flag_values.names,
        variables=(),
        array=joined,
        default=(),
        metavar="KIND[,...]",
        help="only events of these kinds, such as node-lost,round-stopped",
    )
    parser.add_setting("--json", action="store_true", help="print one JSON object a line, for programs")
    _add_job(parser, "only events of this job (default: of all jobs)")


def read_events(parser: SettingsParser, given: argparse.Namespace, environ: Mapping[str, str]) -> EventsConfig:
    """Make the settings of `nodeclient events`."""
    job = _job(parser, given)
    access = read_access(parser, given, environ)
    return EventsConfig(given.coord, job, given.json, given.follow, given.last, given.since, given.kind, access=access)


def add_logs(parser: SettingsParser) -> None:
    """Add the flags of `nodeclient logs`."""
    _add_ranks(parser)
    add = parser.add_setting
    add(
        "--node",
        type=flag_values.name,
        variables=(),
        action="append",
        metavar="NODE",
        help="only workers of this node, by its id or its host's name; may be given several times",
    )
    add("--run", type=flag_values.name, variables=(), metavar="RUN", help="an earlier run, as status names it")
    add("--round", type=flag_values.count, variables=(), metavar="N", help="the round (default: the last one)")
    add("--stream", variables=(), choices=STREAMS, default="both", help="stdout, stderr or both (default: both)")
    add(
        *_LAST,
        type=_last,
        variables=(),
        default=Last(lines=LAST_LINES),
        metavar="N|SIZE|all",
        help=f"how much of the end of each log: lines, or a size such as 64KB (default: {LAST_LINES} lines)",
    )
    add("--follow", "-f", action="store_true", help="go on as more is written, also in later rounds")
    add("--json", action="store_true", help="print one JSON object a line, for programs")
    _add_job(parser, "may be left out where there is only one")


def read_logs(parser: SettingsParser, given: argparse.Namespace, environ: Mapping[str, str]) -> LogsConfig:
    """Make the settings of `nodeclient logs`."""
    return LogsConfig(
        coordinators=given.coord,
        job=_job(parser, given),
        ranks=given.rank,
        nodes=tuple(given.node or ()),
        run=given.run,
        round=given.round,
        stream=given.stream,
        last=given.last,
        follow=given.follow,
        json=given.json,
        access=read_access(parser, given, environ),
    )


def explain_logs(flag: str) -> str | None:
    """Return a hint about a flag of other programs that `nodeclient logs` cannot have."""
    if flag in {"--since", "--since-time", "--until", "--timestamps"}:
        return "the files have no times: --last says how much, and nodeclient events --since has what happened when"
    return None


def add_stacks(parser: SettingsParser) -> None:
    """Add the flags of `nodeclient stacks`."""
    _add_ranks(parser)
    parser.add_setting(
        "--dumps",
        type=flag_values.folder,
        variables=(),
        metavar="DIR",
        help="judge the files of torch's flight recorder in DIR instead, of a job of any launcher",
    )
    parser.add_setting("--json", action="store_true", help="print JSON, for programs")
    _add_job(parser, "may be left out where there is only one, or only one that has not ended")


def read_stacks(parser: SettingsParser, given: argparse.Namespace, environ: Mapping[str, str]) -> StacksConfig:
    """Make the settings of `nodeclient stacks`."""
    if given.dumps is None and given.coord is None:
        parser.error("--coord says where coordinatord listens, or --dumps where files of torch's flight recorder are")
    if given.dumps is not None and (given.job is not None or given.rank):
        parser.error("--dumps is for all files in a folder: leave out JOB and --rank")
    access = read_access(parser, given, environ)
    return StacksConfig(given.coord or (), _job(parser, given), given.json, given.rank, given.dumps, access=access)


def add_report(parser: SettingsParser) -> None:
    """Add the flags of `nodeclient report`."""
    parser.add_setting("--json", action="store_true", help="print JSON, for programs; null if nothing has failed")
    _add_job(parser, "may be left out where there is only one")


def read_report(parser: SettingsParser, given: argparse.Namespace, environ: Mapping[str, str]) -> ReportConfig:
    """Make the settings of `nodeclient report`."""
    return ReportConfig(given.coord, _job(parser, given), given.json, access=read_access(parser, given, environ))


def add_wait(parser: SettingsParser) -> None:
    """Add the flags of `nodeclient wait`."""
    parser.add_setting(
        "--timeout",
        type=flag_values.duration,
        variables=(),
        metavar="TIME",
        help="give up after this time, in seconds, or as 15m, 2h, 3d (default: never)",
    )
    _add_job(parser, "may be left out where there is only one, or only one that has not ended")


def read_wait(parser: SettingsParser, given: argparse.Namespace, environ: Mapping[str, str]) -> WaitConfig:
    """Make the settings of `nodeclient wait`."""
    return WaitConfig(given.coord, _job(parser, given), given.timeout, access=read_access(parser, given, environ))


def read_page(parser: SettingsParser, given: argparse.Namespace, environ: Mapping[str, str]) -> PageConfig:
    """Make the settings of `nodeclient page`."""
    return PageConfig(given.coord, access=read_access(parser, given, environ))


def add_drain(parser: SettingsParser) -> None:
    """Add the flags of `nodeclient drain`."""
    add_for_nodes(parser)
    parser.add_setting("--ahead", action="store_true", variables=(), help="also a NODE that has not joined yet")


def add_for_nodes(parser: SettingsParser) -> None:
    """Add the flags of `nodeclient undrain`."""
    _add_command(parser)
    parser.add_argument(
        "nodes", nargs="+", type=flag_values.name, metavar="NODE", help="the id of a node, or a host's name"
    )


def add_for_live_job(parser: SettingsParser) -> None:
    """Add the flags of `nodeclient stop` and `restart`."""
    _add_command(parser)
    _add_job(parser, "may be left out where there is only one, or only one that has not ended")


def add_forget(parser: SettingsParser) -> None:
    """Add the flags of `nodeclient forget`."""
    _add_command(parser)
    _add_job(parser, "may be left out where there is only one")


def read_command(parser: SettingsParser, given: argparse.Namespace, environ: Mapping[str, str]) -> CommandConfig:
    """Make the settings of a command."""
    verb = Verb(given.subcommand)
    nodes = tuple(dict.fromkeys(given.nodes)) if verb in {Verb.DRAIN, Verb.UNDRAIN} else ()
    ahead = verb is Verb.DRAIN and given.ahead
    job = None if nodes else _job(parser, given)
    access = read_access(parser, given, environ)
    return CommandConfig(given.coord, verb, job, nodes, given.reason, given.dry_run, ahead, access=access)


def _add_coordinators(parser: SettingsParser, *, required: bool) -> None:
    parser.add_heading("how the coordinator is reached")
    parser.add_setting(
        "--coord",
        type=flag_values.endpoints,
        array=joined,
        required=required,
        metavar="HOST[:PORT][,...]",
        help="where coordinatord listens (port: 29400); several are tried in turn",
    )
    add_access(parser)


def _add_command(parser: SettingsParser) -> None:
    parser.add_setting(
        "--reason",
        type=flag_values.sentence,
        variables=(),
        default="",
        metavar="TEXT",
        help="reason for the events and the nodes",
    )
    parser.add_setting(
        "--dry-run", action="store_true", variables=(), help="say what would be done, and change nothing"
    )


def _add_ranks(parser: SettingsParser) -> None:
    parser.add_setting(
        "--rank",
        type=flag_values.ranks,
        variables=(),
        default="",
        metavar="RANKS",
        help="only these ranks, such as 3 or 0-7,12 (default: all)",
    )


def _add_job(parser: SettingsParser, description: str) -> None:
    parser.add_argument("job", nargs="?", metavar="JOB", help=description)


def _job(parser: SettingsParser, given: argparse.Namespace) -> str | None:
    if given.job == "":
        parser.error("'' cannot be the name of a job: is a variable empty?")
    return str(given.job) if given.job is not None else None


def _last(text: str) -> Last:
    if text == "all":
        return Last()
    if text.isascii() and text.isdecimal():
        lines = int(text)
        if lines > LOG_LINES_MAX:
            raise argparse.ArgumentTypeError(f"{text!r}: at most {LOG_LINES_MAX} lines, or a size such as 10MB, or all")
        return Last(lines=lines)
    try:
        return Last(bytes=flag_values.size(text, least=1))
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"{text!r}: expected lines, a size such as 64KB, or all") from None


def _line(
    add_flags: Callable[[SettingsParser], None],
    read: Callable[[SettingsParser, argparse.Namespace, Mapping[str, str]], OperateConfig],
    explain: Callable[[str], str | None] = lambda _: None,
    *,
    needs_coordinator: bool = True,
) -> CommandLine[OperateConfig]:
    """Return a command line with the flags that all commands have behind its own."""

    def add(parser: SettingsParser) -> None:
        add_flags(parser)
        _add_coordinators(parser, required=needs_coordinator)

    return CommandLine(add, read, explain)


COMMAND_LINES = {
    "status": _line(add_status, read_status),
    "events": _line(add_events, read_events),
    "logs": _line(add_logs, read_logs, explain_logs),
    "stacks": _line(add_stacks, read_stacks, needs_coordinator=False),
    "report": _line(add_report, read_report),
    "wait": _line(add_wait, read_wait),
    "page": _line(lambda _: None, read_page),
    "drain": _line(add_drain, read_command),
    "undrain": _line(add_for_nodes, read_command),
    "stop": _line(add_for_live_job, read_command),
    "restart": _line(add_for_live_job, read_command),
    "forget": _line(add_forget, read_command),
}
