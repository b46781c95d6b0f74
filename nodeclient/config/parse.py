"""The command line of nodeclient: chooses the subcommand and reads its settings."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from coordinatord.runtime import __version__
from coordinatord.runtime.settings import SettingsParser, add_completion
from nodeclient.config import join, operate, torchrun_flags
from nodeclient.config.join_config import JoinConfig
from nodeclient.config.operate import OperateConfig


@dataclass(frozen=True, slots=True)
class CrashReplayConfig:
    """The settings of `nodeclient replay`."""

    crash: Path
    """A file that a bug of nodeclient left."""


Config = JoinConfig | OperateConfig | CrashReplayConfig


@dataclass(frozen=True, slots=True)
class _Subcommand:
    """A subcommand of `nodeclient`, and its functions."""

    help: str
    add_flags: Callable[[SettingsParser], None]
    read: Callable[[SettingsParser, argparse.Namespace, Mapping[str, str]], Config]
    explain: Callable[[str], str | None] = join.explain
    """Returns a hint about a flag that is not understood."""
    env_prefix: str = "NODECLIENT"


def _add_replay(parser: SettingsParser) -> None:
    parser.add_argument("--crash", type=Path, metavar="FILE", required=True, help="the crash file")


def _read_replay(_: SettingsParser, given: argparse.Namespace, __: Mapping[str, str]) -> Config:
    return CrashReplayConfig(given.crash)


_SUBCOMMANDS = {
    "join": _Subcommand("join a job and run its workers on this host", join.add_join, join.read_join),
    "run": _Subcommand(
        "the same, with the command line of torchrun",
        torchrun_flags.add_run,
        torchrun_flags.read_run,
        torchrun_flags.explain,
        env_prefix="PET",
    ),
    "launch": _Subcommand(
        "the same, with that of torch.distributed.launch",
        torchrun_flags.add_launch,
        torchrun_flags.read_run,
        torchrun_flags.explain,
        env_prefix="PET",
    ),
    "status": _Subcommand("show the jobs of a coordinator", operate.add_status, operate.read_status),
    "events": _Subcommand("show what happened to a job, when and why", operate.add_events, operate.read_events),
    "report": _Subcommand("show why a job failed last", operate.add_report, operate.read_report),
    "drain": _Subcommand("have nodes leave and stay out of all jobs", operate.add_drain, operate.read_command),
    "undrain": _Subcommand("let drained nodes in again", operate.add_for_nodes, operate.read_command),
    "stop": _Subcommand("end a job, with time for its workers to save", operate.add_for_live_job, operate.read_command),
    "restart": _Subcommand("have a job begin a new round", operate.add_for_live_job, operate.read_command),
    "forget": _Subcommand("drop a job that is over", operate.add_forget, operate.read_command),
    "replay": _Subcommand("run the events that led to a bug of nodeclient again", _add_replay, _read_replay),
}


_OF_TORCHRUN = frozenset({"run", "launch"})
"""Subcommands that take all flags of torchrun."""


def parse(arguments: Sequence[str] | None = None, environ: Mapping[str, str] | None = None) -> Config:
    """Read flags and environment (default: this process's), and a file. Raises `SettingsError`."""
    arguments = sys.argv[1:] if arguments is None else arguments
    environ = os.environ if environ is None else environ
    parser, commands = _make_parser(arguments[:1], environ)
    given, unknown = parser.parse_known_args(arguments)
    chosen, own_parser = _SUBCOMMANDS[given.subcommand], commands[given.subcommand]
    unknown = unknown or _taken_for_the_program(given, arguments)
    if unknown:
        own_parser.error(_not_understood(own_parser, chosen, unknown))
    config = chosen.read(own_parser, given, environ)
    own_parser.show_if_requested(given)
    return config


def _make_parser(
    words: Collection[str], environ: Mapping[str, str]
) -> tuple[SettingsParser, Mapping[str, SettingsParser]]:
    """Return the parser of the program, and those of its commands; only those in `words` have flags."""
    parser = SettingsParser(
        prog="nodeclient",
        env_prefix="NODECLIENT",
        environ=environ,
        description="The agent of one host in distributed training: joins rounds and runs the local workers.",
    )
    parser.add_argument("--version", action="version", version=f"nodeclient {__version__}")
    commands = parser.add_subparsers(dest="subcommand", required=True, metavar="COMMAND")
    add_completion(parser, _whole_parser)
    for word, subcommand in _SUBCOMMANDS.items():
        own = commands.add_parser(word, help=subcommand.help, env_prefix=subcommand.env_prefix, environ=environ)
        if word in words:  # errors in the variables of other subcommands do not matter
            subcommand.add_flags(own)
            if word in _OF_TORCHRUN:
                add_completion(own, _whole_parser)
    return parser, commands.choices


def _whole_parser() -> SettingsParser:
    return _make_parser(_SUBCOMMANDS, {})[0]


def _taken_for_the_program(given: argparse.Namespace, arguments: Sequence[str]) -> list[str]:
    """Return a flag that argparse took for the workers' command, as it does if its value has a blank: `--wrong=a b`."""
    word = getattr(given, "script", None) or next(iter(getattr(given, "command", ())), "")
    taken = word.startswith("--") and word in arguments and "--" not in arguments[: arguments.index(word)]
    return [word] if taken else []


def _not_understood(parser: SettingsParser, subcommand: _Subcommand, unknown: Sequence[str]) -> str:
    flag = unknown[0].partition("=")[0].replace("_", "-")
    words = f"not understood: {' '.join(unknown)}"
    if why := subcommand.explain(flag):
        return f"{words}; {why}"
    meant = parser.nearest(flag) if flag.startswith("--") else None
    return f"{words}; did you mean {meant}?" if meant else words
