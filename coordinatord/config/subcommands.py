"""Parses the command line of coordinatord into the settings of a subcommand."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from coordinatord.config.serve_flags import ServeConfig, add_serve, read_serve
from coordinatord.config.state_flags import (
    ReplayConfig,
    StateConfig,
    add_replay,
    add_state,
    add_state_dir,
    read_replay,
    read_state,
)
from coordinatord.config.store_flags import CopyConfig, StepDownConfig, add_copy, read_copy
from coordinatord.config.token_flags import TokenConfig, add_token, read_token
from coordinatord.protocol.text import clip
from coordinatord.runtime.settings import SettingsParser, add_completion, help_texts, with_help_flag

_COMMANDS = {
    "state": ("show what a state directory holds", "coordinatord state --json"),
    "store": ("copy a state directory to etcd, or back", "coordinatord store copy DIR etcd://e1,e2,e3"),
    "replay": ("step through the history of a run", "coordinatord replay mnist --step"),
    "token": ("make, list or revoke access tokens", "coordinatord token new --role read --output FILE"),
}
"""The subcommands, each with a summary and an example."""

_EXIT_CODES = "0 done, 64 wrong flags, 65 the state cannot be read, 66 there is none, 74 the disk"

Config = ServeConfig | StateConfig | ReplayConfig | CopyConfig | StepDownConfig | TokenConfig


def parse(arguments: Sequence[str] | None = None, environ: Mapping[str, str] | None = None) -> Config:
    """Parse flags (by default those of this process), environment and file. Raises `SettingsError`."""
    environ = os.environ if environ is None else environ
    parser, commands = _make_parser(environ)
    arguments = with_help_flag(sys.argv[1:] if arguments is None else arguments)
    parser.reject_tokens(arguments)
    first = next(iter(arguments), None)
    if first is not None and first not in commands and not first.startswith("-"):
        parser.error(
            f"there is no command {clip(first)!r}, only {', '.join(commands)}; without one it serves, and commands"
            " about jobs are nodeclient's"
        )
    parser.check_flags(arguments, *commands.values())
    given, unknown = parser.parse_known_args(arguments)
    if unknown:  # the chosen command reports them, since its --help lists the flags that it has
        commands.get(given.subcommand, parser).error(f"unrecognized arguments: {' '.join(unknown)}")
    if given.subcommand is None:
        return read_serve(parser, given, environ)
    return _read_command(parser, commands, given, environ)


def _read_command(
    parser: SettingsParser,
    commands: Mapping[str, SettingsParser],
    given: argparse.Namespace,
    environ: Mapping[str, str],
) -> Config:
    """Make the settings of a subcommand. Raises `SettingsError`."""
    match given.subcommand:
        case "state":
            return read_state(parser, given, environ)
        case "store":
            return read_copy(commands["store"], given)
        case "replay":
            return read_replay(parser, commands["replay"], given, environ)
        case _:  # token
            parser.require_both(given, "certificate", "key")
            return read_token(parser, commands["token"], given, environ)


def _make_parser(environ: Mapping[str, str]) -> tuple[SettingsParser, Mapping[str, SettingsParser]]:
    parser = SettingsParser(
        prog="coordinatord",
        usage="coordinatord [flags]\n       coordinatord state|store|replay|token [flags]",
        env_prefix="COORDINATORD",
        environ=environ,
        description="The one authority on who is in a training job, which round is on, and who has which rank."
        " Without a COMMAND, it serves.",
    )
    add_serve(parser)
    *others, last = parser.reloadable
    parser.epilog = (
        "Each flag can also be given as the environment variable in brackets, or in the file that --config names. That"
        f" is read again on SIGHUP: {', '.join(others)} and {last} change at once, the others with a restart."
    )
    # Only the first parser reads the environment. A flag after the command overrides the environment, and also a flag
    # before the command.
    commands = parser.add_subparsers(dest="subcommand", metavar="COMMAND", prog="coordinatord")
    common: dict[str, Any] = {"env_prefix": "COORDINATORD", "environ": {}}
    state, store, replay, token = (
        commands.add_parser(name, **help_texts(*texts, _EXIT_CODES), **common) for name, texts in _COMMANDS.items()
    )
    add_state(state)
    add_copy(store)
    add_replay(replay)
    add_state_dir(token)
    add_token(token)
    add_completion(parser, lambda: _make_parser({})[0])
    return parser, commands.choices
