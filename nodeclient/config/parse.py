"""Parses the command line of nodeclient: chooses the subcommand and makes its settings.

A wrong command line gets one line that says what to write instead. So most of this module is about words that people
try here, because other programs have them.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from importlib import import_module
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from coordinatord.protocol.text import clip, most_similar
from coordinatord.runtime import __version__
from coordinatord.runtime.settings import SettingsParser, add_completion, help_texts, with_help_flag
from nodeclient.access.keyring import VARIABLE
from nodeclient.config.command_line import CommandLine

if TYPE_CHECKING:
    from typing import TypeAlias

    from nodeclient.config.join_config import JoinConfig
    from nodeclient.config.operate import CrashReplayConfig, OperatorConfig

    Config: TypeAlias = JoinConfig | OperatorConfig | CrashReplayConfig

_NODE_EXIT_CODES = (
    "0 the run succeeded, 64 wrong flags, 69 no coordinator, 77 refused; else that of the worker that failed"
)


class Subcommand(NamedTuple):
    """A subcommand, as `--help` shows it."""

    summary: str
    example: str
    """The end of a command line with it."""
    module: str = "operate"
    """The module of its flags, imported only for its own subcommands: `nodeclient status` needs few imports."""
    exit_codes: str = "0 done, 64 wrong flags, 69 no coordinator or no such name, 77 refused"


SUBCOMMANDS = {
    "join": Subcommand(
        "join a job and run its workers on this host",
        "--coord head1 --nnodes 2 --nproc-per-node 8 -- python train.py",
        module="join",
        exit_codes=_NODE_EXIT_CODES,
    ),
    "run": Subcommand(
        "join a job with the command line of torchrun",
        "--nnodes 2 --nproc-per-node 8 --rdzv-endpoint head1 train.py",
        module="torchrun_flags",
        exit_codes=_NODE_EXIT_CODES,
    ),
    "launch": Subcommand(
        "join a job with the command line of torch.distributed.launch",
        "--nproc-per-node 8 train.py",
        module="torchrun_flags",
        exit_codes=_NODE_EXIT_CODES,
    ),
    "up": Subcommand(
        "start a node on each of several hosts by ssh, and a coordinator",
        "--hosts gpu1,gpu2:8 -- python train.py",
        module="up",
        exit_codes="0 the run succeeded, 64 wrong flags, 69 a host or the coordinator was not reached; else as join",
    ),
    "status": Subcommand("show the jobs of a coordinator", "--watch mnist"),
    "events": Subcommand("show what happened to a job, when and why", "mnist --since 2h"),
    "logs": Subcommand("show what the workers of a job have written", "mnist --rank 3 --follow"),
    "stacks": Subcommand("show where the workers of a job stand, as when it hangs", "mnist"),
    "report": Subcommand("show why a job failed last", "mnist"),
    "preflight": Subcommand(
        "test in pairs the nodes of a job that have no workers, and name those that are slow or wrong",
        "mnist --reason 'new switch'",
        exit_codes="0 nothing is suspect, 1 a node or a link is, 69 no coordinator or no such job, 75 ended early, 77"
        " refused",
    ),
    "wait": Subcommand(
        "wait until a job ends, and end with the exit code of its nodes",
        "mnist --timeout 2h",
        exit_codes="0 the job succeeded, 79 it was stopped, 124 the time was up; else that of the worker that failed",
    ),
    "page": Subcommand("print a link that opens the live page in a browser", "--coord head1"),
    "drain": Subcommand("have nodes leave and stay out of all jobs", "gpu2 --reason 'bad fan'"),
    "undrain": Subcommand("let drained nodes in again", "gpu2"),
    "quarantine": Subcommand("have rounds do without the host of a node, if they can", "gpu2 --reason 'slow link'"),
    "pardon": Subcommand("drop the charges against a host, and its quarantine", "gpu2"),
    "stop": Subcommand("end a job, with time for its workers to save", "mnist --reason 'new data'"),
    "restart": Subcommand("have a job begin a new round", "mnist --reason 'it hangs'"),
    "forget": Subcommand("drop a job that is over, and its history", "mnist"),
    "check": Subcommand(
        "check this host: its GPUs, disks, clock and network",
        "--coord head1 /scratch",
        exit_codes="0 good, 1 a warning, 2 bad, 3 nothing can be checked",
    ),
    "replay": Subcommand(
        "rerun the events that led to a bug of nodeclient",
        "--crash FILE",
        exit_codes="0 the bug comes again, 65 it does not, 66 the file cannot be read",
    ),
}

_COORDINATORD_COMMANDS = frozenset({"state", "store", "token"})
"""Subcommands of coordinatord that people try here. They need its state directory."""

_FAMILIAR_COMMANDS = {
    **dict.fromkeys(("ls", "list", "ps", "get", "describe", "show", "inspect", "info", "jobs", "nodes"), "status"),
    **dict.fromkeys(("top", "watch"), "status --watch"),
    **dict.fromkeys(("log", "tail", "attach"), "logs"),
    **dict.fromkeys(("kill", "delete", "cancel", "end", "terminate", "down"), "stop"),
    **dict.fromkeys(("start", "submit"), "join"),
    **dict.fromkeys(("rm", "remove"), "forget"),
    **dict.fromkeys(("dashboard", "ui"), "page"),
    "history": "events",
    "cordon": "drain",
    "uncordon": "undrain",
    "version": "--version",
}
"""Commands that people know from kubectl, docker, systemctl and Ray, and ours for the same purpose."""

_LINE_MAX = 300
"""The limit of a command line in an error, in characters."""


def parse(arguments: Sequence[str] | None = None, environ: Mapping[str, str] | None = None) -> Config:
    """Parse the command line, the environment and a settings file if one is named. Raises `SettingsError`."""
    arguments = with_help_flag(sys.argv[1:] if arguments is None else arguments)
    environ = os.environ if environ is None else environ
    parser, commands = _make_parser(arguments[:1], environ)
    parser.reject_tokens(arguments, f"a file for --token-file, or into the variable {VARIABLE}")
    if arguments and arguments[0] in _COORDINATORD_COMMANDS:
        parser.error(f"{arguments[0]} is a command of the other program: run coordinatord {arguments[0]} on its host")
    _require_command(parser, arguments)
    given, unknown = parser.parse_known_args(arguments)
    chosen, own_parser = _command_line(given.subcommand), commands[given.subcommand]
    unknown = unknown or _flag_in_command(given, arguments)
    if unknown:
        own_parser.error(_explain_unknown(own_parser, chosen, unknown))
    config = chosen.read(own_parser, given)
    own_parser.show_if_requested(given)  # `--show-config` ends the program
    return config


def _require_command(parser: SettingsParser, arguments: Sequence[str]) -> None:
    """Reject a command line that does not begin with a command, such as torchrun's. Raises `SettingsError`.

    Call it before parsing: for `--nnodes 2 train.py`, argparse would report that 2 is no command.
    """
    word = next(iter(arguments), "--help")
    if word in SUBCOMMANDS or parser.has_flag(word):
        return
    if word.startswith("-"):
        problem = f"{clip(word)} is no flag of nodeclient itself"
        if (command := _command_after_flags(arguments)) is not None:
            others = list(arguments)
            others.remove(command)
            parser.error(f"{clip(word)} comes after the command: {_command_text(command, *others)}")
        nearest = parser.nearest(word)
    else:
        problem = f"there is no command {clip(word)!r}"
        nearest = _FAMILIAR_COMMANDS.get(word) or most_similar(word, SUBCOMMANDS, cutoff=0.7)
    if nearest is not None:
        parser.error(f"{problem}; did you mean {nearest}?")
    if word.startswith("-") or not {".", "/"}.isdisjoint(word):
        parser.error(f"{problem}; torchrun's flags and script come after run: {_command_text('run', *arguments)}")
    parser.error(problem)


def _command_after_flags(arguments: Sequence[str]) -> str | None:
    """Return the command that follows flags and their values, if the first of these flags is one of that command."""
    for before, word in pairwise(arguments):
        if word in SUBCOMMANDS:
            _, commands = _make_parser([word], {})
            return word if commands[word].has_flag(arguments[0]) else None
        if not word.startswith("-") and not before.startswith("-"):
            return None  # the second word in a row is no value of a flag, so it is the script
    return None


def _command_text(*words: str) -> str:
    return clip(shlex.join(["nodeclient", *words]), _LINE_MAX)


@cache
def _command_line(subcommand: str) -> CommandLine[Config]:
    module = import_module(f"nodeclient.config.{SUBCOMMANDS[subcommand].module}")
    found: CommandLine[Config] = module.COMMAND_LINES[subcommand]
    return found


def _make_parser(
    words: Collection[str], environ: Mapping[str, str]
) -> tuple[SettingsParser, Mapping[str, SettingsParser]]:
    """Return the program's parser, and those of the subcommands in `words`; if none is, of all, without their flags."""
    parser = SettingsParser(
        prog="nodeclient",
        env_prefix="NODECLIENT",
        environ=environ,
        description="The agent of one host in distributed training: joins rounds and runs the local workers.",
    )
    parser.add_argument("--version", action="version", version=f"nodeclient {__version__}")
    commands = parser.add_subparsers(dest="subcommand", required=True, metavar="COMMAND")
    add_completion(parser, _full_parser)
    # To make the parsers of all subcommands would take a tenth of the time of `nodeclient status`.
    wanted = SUBCOMMANDS.keys() & words or SUBCOMMANDS.keys()
    for subcommand, shown in SUBCOMMANDS.items():
        if subcommand not in wanted:
            continue
        # If none is chosen, as for --help, no flags are added: a wrong value in the variable of one would be an error.
        chosen = _command_line(subcommand) if subcommand in words else None
        prefix = "NODECLIENT" if chosen is None else chosen.env_prefix
        texts = help_texts(shown.summary, f"nodeclient {subcommand} {shown.example}", shown.exit_codes)
        own = commands.add_parser(subcommand, **texts, env_prefix=prefix, environ=environ)
        if chosen is not None:
            chosen.add_flags(own)
            if shown.module == "torchrun_flags":  # it accepts all flags of torchrun, which has this one
                add_completion(own, _full_parser)
    return parser, commands.choices


def _full_parser() -> SettingsParser:
    return _make_parser(SUBCOMMANDS, {})[0]


def _flag_in_command(given: argparse.Namespace, arguments: Sequence[str]) -> list[str]:
    """Return flags that argparse took for the workers' command, because their values have blanks: `--wrong=a b`."""
    program = getattr(given, "script", None) or next(iter(getattr(given, "command", ())), "")
    is_flag = program.startswith("--") and program in arguments and "--" not in arguments[: arguments.index(program)]
    return [program] if is_flag else []


def _explain_unknown(parser: SettingsParser, chosen: CommandLine[Config], unknown: Sequence[str]) -> str:
    flag = unknown[0].partition("=")[0].replace("_", "-")
    problem = f"not understood: {' '.join(unknown)}"
    if flag in chosen.hints:
        return f"{problem}; {chosen.hints[flag]}"
    nearest = parser.nearest(flag) if flag.startswith("--") else None
    return f"{problem}; did you mean {nearest}?" if nearest else problem
