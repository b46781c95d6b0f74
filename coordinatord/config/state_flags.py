"""The flags and settings of `coordinatord state` and `coordinatord replay`, and the default state directory.

Both commands read a state directory or an etcd. Other commands share the flag and the default of the state directory.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from msgspec import Struct

from coordinatord.config.store_flags import add_state_store, parse_location
from coordinatord.runtime.settings import SettingsParser, filled, folder
from coordinatord.store.etcd.location import EtcdLocation

STATE_DIR_DEFAULT = "$STATE_DIRECTORY of systemd, else $XDG_STATE_HOME/coordinatord, else ~/.local/state/coordinatord"
"""The default state directory, as a text for `--help`."""


class StateConfig(Struct, frozen=True):
    """All settings of `coordinatord state`."""

    source: Path | EtcdLocation
    """The state directory, or the namespace in etcd with the state."""
    json: bool
    """Whether to print JSON instead of text."""


class ReplayConfig(Struct, frozen=True):
    """All settings of `coordinatord replay`."""

    source: Path | EtcdLocation
    """The state directory, or the namespace in etcd with the state. Not used with `crash`."""
    job_or_run: str | None
    """The name of a job, or the id of a run; None for the only job."""
    crash: Path | None
    """A crash file to replay instead of the records of a run."""
    step: bool
    """Whether to wait for Enter after each record."""
    json: bool
    """Whether to print JSON instead of text."""


def add_state(parser: SettingsParser) -> None:
    """Add the flags of `coordinatord state`."""
    add_state_dir(parser)
    add_state_store(parser)
    parser.add_setting("--json", "print JSON, for programs", variables=())


def add_replay(parser: SettingsParser) -> None:
    """Add the flags of `coordinatord replay`."""
    add_state_dir(parser)
    add_state_store(parser)
    add = partial(parser.add_setting, variables=())
    add("--crash FILE", "rerun the events that led to a bug of coordinatord, from its crash file", Path)
    add("--step", "wait for Enter after each record; q ends")
    add("--json", "print one JSON object a record, for programs")
    parser.add_argument(
        "job_or_run", nargs="?", metavar="JOB|RUN", help="a run, or the last run of a job (default: of the only job)"
    )


def add_state_dir(parser: SettingsParser) -> None:
    """Add the flag of a state directory. Without a default, a value that the main parser has read stays in force."""
    parser.add_setting(
        "--state-dir DIR", "the directory", folder, default=argparse.SUPPRESS, by_default=STATE_DIR_DEFAULT
    )


def read_state(parser: SettingsParser, given: argparse.Namespace, environ: Mapping[str, str]) -> StateConfig:
    """Make the settings of `coordinatord state`. Raises `SettingsError`."""
    return StateConfig(_source(parser, given, environ), given.json)


def read_replay(
    parser: SettingsParser, command: SettingsParser, given: argparse.Namespace, environ: Mapping[str, str]
) -> ReplayConfig:
    """Make the settings of `coordinatord replay`. Raises `SettingsError`.

    `parser` records where settings are from; `command` is the subcommand's own parser, for errors with its usage.
    """
    if given.crash is not None and (given.job_or_run is not None or given.step or given.json):
        command.error("--crash runs one file again: it takes no JOB, --step or --json")
    source = Path() if given.crash is not None else _source(parser, given, environ)
    return filled(ReplayConfig, given, source=source)


def _source(parser: SettingsParser, given: argparse.Namespace, environ: Mapping[str, str]) -> Path | EtcdLocation:
    return parse_location(parser, given, given.store) if given.store else state_dir(parser, given, environ)


def state_dir(parser: SettingsParser, given: argparse.Namespace, environ: Mapping[str, str]) -> Path:
    """Return the given state directory, or the default one."""
    if given.state_dir is not None:
        return Path(given.state_dir)
    directory, origin = _default_state_dir(parser, environ)
    parser.record("state_dir", directory, origin)
    return directory


def _default_state_dir(parser: SettingsParser, environ: Mapping[str, str]) -> tuple[Path, str]:
    if of_systemd := environ.get("STATE_DIRECTORY", "").partition(":")[0]:
        return Path(of_systemd), "environment variable STATE_DIRECTORY"
    base = Path(environ.get("XDG_STATE_HOME") or ".")  # relative if there is none
    if base.is_absolute():  # the XDG specification ignores relative paths
        return base / "coordinatord", "environment variable XDG_STATE_HOME"
    try:
        return Path("~/.local/state/coordinatord").expanduser(), "default"
    except RuntimeError:
        parser.error("this user has no home directory to keep state in: give --state-dir, or --ephemeral")
