"""The settings of coordinatord: flags over environment over a file over defaults, as frozen records."""

from __future__ import annotations

import argparse
import os
import re
import socket
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from coordinatord.core.policy import OUTAGE_GRACE_S_MIN, SETTLE_S_MIN, Policy
from coordinatord.protocol.access_token import holds_token
from coordinatord.protocol.fields import DEFAULT_PORT, HEARTBEAT_S_MIN
from coordinatord.protocol.frozen_class import frozen
from coordinatord.runtime import __version__
from coordinatord.runtime.logs import FORMATS, LEVELS
from coordinatord.runtime.settings import (
    NUMBER,
    WHOLE,
    SettingsParser,
    add_completion,
    joined,
    port,
    seconds,
)
from coordinatord.store.etcd.place import EtcdPlace
from coordinatord.store_flags import (
    CopyConfig,
    SharedStore,
    StepDownConfig,
    add_copy,
    add_state_store,
    add_store,
    read_copy,
    read_place,
    read_store,
)
from coordinatord.token_flags import TokenConfig, add_token, read_token

_HOST_NAME = re.compile(r"\.?[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*\.?", re.ASCII | re.IGNORECASE)

_ZERO = re.compile(r"0+(?:\.0*)?", re.ASCII)

STATE_DIR_DEFAULT = "$STATE_DIRECTORY of systemd, else $XDG_STATE_HOME/coordinatord, else ~/.local/state/coordinatord"
"""Where the state directory is by default, as a text for `--help`."""


@frozen
class ServeConfig:
    """All settings of a coordinatord that serves."""

    host: str
    port: int
    state_dir: Path | None
    """None if state is kept in memory only."""
    log_level: str
    policy: Policy
    log_format: str = "text"
    allowed_hosts: tuple[str, ...] = ()
    """Names by which browsers may open the page, besides our own names."""
    insecure: bool = False
    """Whether to serve everybody, in the clear."""
    certificate: Path | None = None
    """The certificate to show; None for one of our own."""
    key: Path | None = None
    """The key of `certificate`; None only if that is."""
    client_authorities: Path | None = None
    """The authorities whose certificates clients have to show; None if they need none."""
    shared: SharedStore | None = None
    """The history that several coordinators share; None if it is in the state directory."""
    until_unused: bool = False
    """Whether to end once standard input has ended and no node needs this coordinator any more."""
    file: Path | None = None
    """The file that some of these settings come from, if one was named."""
    remarks: tuple[str, ...] = ()
    """Lines to be logged at the start, about variables that seem misspelt."""


@frozen
class StateConfig:
    """All settings of `coordinatord state`."""

    state_dir: Path
    json: bool
    place: EtcdPlace | None = None
    """The etcd that holds the state instead of the directory, if one does."""


@frozen
class ReplayConfig:
    """All settings of `coordinatord replay`."""

    state_dir: Path
    job_or_run: str | None
    crash: Path | None
    """A crash file, to be run again instead of the history of a run."""
    step: bool
    json: bool


Config = ServeConfig | StateConfig | ReplayConfig | CopyConfig | StepDownConfig | TokenConfig


def parse(arguments: Sequence[str] | None = None, environ: Mapping[str, str] | None = None) -> Config:
    """Read flags (default: this process's), environment and file. Raises `SettingsError`."""
    environ = os.environ if environ is None else environ
    parser, commands = _make_parser(environ)
    arguments = sys.argv[1:] if arguments is None else arguments
    if any(map(holds_token, arguments)):
        parser.error("everybody on this host can read a token in a command line: put it into a file, and replace it")
    parser.check_flags(arguments, *commands.values())
    given, unknown = parser.parse_known_args(arguments)
    if unknown:  # flags of another command: --help of this one has those that it takes
        commands.get(given.subcommand, parser).error(f"unrecognized arguments: {' '.join(unknown)}")
    if given.subcommand is None:
        return _read_serve(parser, given, environ)
    return _read_command(parser, commands, given, environ)


def _read_command(
    parser: SettingsParser,
    commands: Mapping[str, SettingsParser],
    given: argparse.Namespace,
    environ: Mapping[str, str],
) -> Config:
    """Make the settings of a subcommand. Raises `SettingsError`."""
    if given.subcommand == "state":
        place = read_place(parser, given)
        folder_of_state = Path() if place is not None else _state_dir(parser, given, environ)
        return StateConfig(folder_of_state, given.json, place)
    if given.subcommand == "store":
        return read_copy(commands["store"], given)
    if given.subcommand == "replay":
        if given.crash is not None and (given.job_or_run is not None or given.step or given.json):
            commands["replay"].error("--crash runs one file again: it takes no JOB, --step or --json")
        folder_of_runs = Path() if given.crash is not None else _state_dir(parser, given, environ)
        return ReplayConfig(folder_of_runs, given.job_or_run, given.crash, given.step, given.json)
    _check_certificate(parser, given)
    return read_token(commands["token"], given, _state_dir(parser, given, environ))


def _check_certificate(parser: SettingsParser, given: argparse.Namespace) -> None:
    if (given.tls_cert is None) is not (given.tls_key is None):
        parser.error("--tls-cert and --tls-key belong together: give both, or neither for a certificate of our own")


def _read_serve(parser: SettingsParser, given: argparse.Namespace, environ: Mapping[str, str]) -> Config:
    """Make the settings of a coordinator that serves, or those of `--step-down`. Raises `SettingsError`."""
    _check_certificate(parser, given)
    if given.insecure and (given.tls_cert or given.tls_client_ca):
        parser.error("--insecure serves everybody in the clear: leave it out where there are certificates")
    parser.exclude(
        given, "ephemeral", "state_dir", "give --state-dir, or --ephemeral to keep state in memory only, and not both"
    )
    state_dir = None if given.ephemeral else _state_dir(parser, given, environ)
    policy = _policy(parser, given)
    shared = read_store(parser, given)
    if shared is not None and given.until_unused:
        parser.error("--until-unused is for a coordinator of one node, and --store for several coordinators")
    parser.show_if_requested(given)
    if shared is not None and given.step_down:
        return StepDownConfig(shared.place)
    return ServeConfig(
        host=given.host,
        port=given.port,
        state_dir=state_dir,
        log_level=given.log_level,
        policy=policy,
        log_format=given.log_format,
        allowed_hosts=given.allowed_hosts,
        insecure=given.insecure,
        certificate=given.tls_cert,
        key=given.tls_key,
        client_authorities=given.tls_client_ca,
        shared=shared,
        until_unused=given.until_unused,
        file=parser.file,
        remarks=tuple(parser.misspelt),
    )


def _make_parser(environ: Mapping[str, str]) -> tuple[SettingsParser, Mapping[str, SettingsParser]]:
    """Return the parser of the program, and those of its commands."""
    parser = SettingsParser(
        prog="coordinatord",
        usage="coordinatord [flags]\n       coordinatord state|store|replay|token [flags]",
        env_prefix="COORDINATORD",
        environ=environ,
        description="The one authority on who is in a training job, which round is on, and who has which rank."
        " Without a COMMAND, it serves.",
        epilog="Each flag can also be given as the environment variable in brackets, or in the file that --config"
        " names. That is read again on SIGHUP: --settle, --retry-pause, --heartbeat, --outage-grace, --log-level and"
        " --log-format change at once, the others with a restart.",
    )
    _add_serve(parser)
    add_store(parser)
    # The first parser has read the environment; a flag after the command wins over both.
    commands = parser.add_subparsers(dest="subcommand", metavar="COMMAND", prog="coordinatord")
    common: dict[str, Any] = {"env_prefix": "COORDINATORD", "environ": {}}
    state = commands.add_parser("state", help="show what a state directory holds", **common)
    store = commands.add_parser("store", help="copy a state directory to etcd, or back", **common)
    replay = commands.add_parser("replay", help="step through the history of a run", **common)
    token = commands.add_parser("token", help="make, list or revoke access tokens", **common)
    _add_state(state)
    add_copy(store)
    _add_replay(replay)
    _add_state_dir(token)
    add_token(token)
    add_completion(parser, lambda: _make_parser({})[0])
    return parser, commands.choices


def _add_serve(parser: SettingsParser) -> None:
    defaults = Policy()
    duration: dict[str, Any] = {"toml": NUMBER, "metavar": "S"}
    everywhere = "::" if socket.has_dualstack_ipv6() else "0.0.0.0"  # noqa: S104 - nodes are on other hosts
    add = parser.add_setting
    add("--host", default=everywhere, help="address to listen at (default: all, IPv6 and IPv4)")
    add("--port", type=port, toml=WHOLE, default=DEFAULT_PORT, help="port, 0 for any free one (default: 29400)")
    add(
        "--allowed-hosts",
        type=host_names,
        metavar="NAME[,...]",
        array=joined,
        default=(),
        help="names by which a browser may open the page, besides addresses, names of this host, and names that nobody"
        " can register; .example.org stands for all below it. Needed behind a proxy of another name (default: none)",
    )
    add(
        "--state-dir",
        type=folder,
        metavar="DIR",
        help=f"where state is kept, on a local disk (default: {STATE_DIR_DEFAULT})",
    )
    add("--ephemeral", action="store_true", help="keep state in memory only: a restart forgets all jobs")
    _add_security(parser)
    add(
        "--settle",
        type=partial(seconds, least=SETTLE_S_MIN),
        **duration,
        default=defaults.settle_s,
        help="seconds that a round with enough nodes waits for one more (default: 2)",
    )
    add(
        "--retry-pause",
        type=_pause,
        **duration,
        default=defaults.retry_pause_s,
        help="seconds before the next round when the same error has come twice in a row without a step in between;"
        " doubled each time, up to 60; 0 for none (default: 4)",
    )
    add(
        "--heartbeat",
        type=partial(seconds, least=HEARTBEAT_S_MIN),
        **duration,
        default=defaults.heartbeat_s,
        help="least seconds between two heartbeats; a node is lost after five (default: 1)",
    )
    add(
        "--outage-grace",
        type=partial(seconds, least=OUTAGE_GRACE_S_MIN),
        **duration,
        default=defaults.outage_grace_s,
        help="seconds that workers go on without a coordinator (default: 300). While they do, nothing is lost. But a"
        " node that is cut off may have been replaced, and its old workers live on for as long",
    )
    add("--log-level", type=str.lower, choices=LEVELS, default="info", help="lowest level of log lines (default: info)")
    add(
        "--log-format",
        type=str.lower,
        choices=FORMATS,
        default="text",
        help="for people, or for machines: one JSON object a line (default: text)",
    )
    # It is a flag alone: only a program that holds the other end of standard input can use it.
    parser.add_argument(
        "--until-unused",
        action="store_true",
        help="end by itself, once standard input has ended and no node needs this coordinator any more",
    )
    parser.add_config_file("COORDINATORD_CONFIG")
    parser.add_argument("--version", action="version", version=f"coordinatord {__version__}")


def _add_security(parser: SettingsParser) -> None:
    add = parser.add_setting
    add(
        "--insecure",
        action="store_true",
        help="serve everybody who reaches the port, in the clear, instead of those with a token over TLS",
    )
    add(
        "--tls-cert",
        type=Path,
        metavar="FILE",
        help="the certificate to show, in PEM, with those between it and its authority (default: one of our own)",
    )
    add("--tls-key", type=Path, metavar="FILE", help="its key, in PEM, without a password")
    add(
        "--tls-client-ca",
        type=Path,
        metavar="FILE",
        help="have clients show a certificate of these authorities as well; its name is the node id, or the beginning"
        " of it before a dash (default: clients need none)",
    )


def _pause(text: str) -> float:
    """Read a duration in seconds; a zero of any form, such as 0.0 of a file, is no pause."""
    return 0.0 if _ZERO.fullmatch(text) else seconds(text)


def _add_state(parser: SettingsParser) -> None:
    _add_state_dir(parser)
    add_state_store(parser)
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")


def _add_replay(parser: SettingsParser) -> None:
    _add_state_dir(parser)
    parser.add_argument(
        "--crash",
        type=Path,
        metavar="FILE",
        help="run the events that led to a bug of coordinatord again, from its crash file",
    )
    parser.add_argument("--step", action="store_true", help="wait for Enter after each record; q ends")
    parser.add_argument("--json", action="store_true", help="print one JSON object a record, for programs")
    parser.add_argument(
        "job_or_run", nargs="?", metavar="JOB|RUN", help="a run, or the last run of a job (default: of the only job)"
    )


def _add_state_dir(parser: SettingsParser) -> None:
    parser.add_setting(
        "--state-dir",
        type=folder,
        metavar="DIR",
        default=argparse.SUPPRESS,
        help=f"the directory (default: {STATE_DIR_DEFAULT})",
    )


def _policy(parser: SettingsParser, given: argparse.Namespace) -> Policy:
    defaults = Policy()
    try:
        return Policy(
            heartbeat_s=given.heartbeat,
            reconnect_grace_s=min(defaults.reconnect_grace_s, given.heartbeat * defaults.heartbeats_per_lease),
            settle_s=given.settle,
            settle_max_s=max(defaults.settle_max_s, given.settle),
            outage_grace_s=given.outage_grace,
            retry_pause_s=given.retry_pause,
            retry_pause_max_s=max(defaults.retry_pause_max_s, given.retry_pause),
        )
    except ValueError as error:
        parser.error(str(error))


def _state_dir(parser: SettingsParser, given: argparse.Namespace, environ: Mapping[str, str]) -> Path:
    """Return the state directory that was given, or else the default one."""
    if given.state_dir is not None:
        return Path(given.state_dir)
    directory, origin = _default_state_dir(parser, environ)
    parser.note("state_dir", directory, origin)
    return directory


def _default_state_dir(parser: SettingsParser, environ: Mapping[str, str]) -> tuple[Path, str]:
    """Return the state directory if no flag names one, and what named it."""
    first_of_systemd = environ.get("STATE_DIRECTORY", "").partition(":")[0]
    if first_of_systemd:
        return Path(first_of_systemd), "environment variable STATE_DIRECTORY"
    base = Path(environ.get("XDG_STATE_HOME") or ".")
    if base.is_absolute():  # the XDG specification ignores relative paths
        return base / "coordinatord", "environment variable XDG_STATE_HOME"
    try:
        return Path("~/.local/state/coordinatord").expanduser(), "default"
    except RuntimeError:
        parser.error("this user has no home directory to keep state in: give --state-dir, or --ephemeral")


def folder(text: str) -> Path:
    """Read the path of a directory."""
    if not text:
        raise argparse.ArgumentTypeError("'': expected a directory")
    return Path(text)


def host_names(text: str) -> tuple[str, ...]:
    """Read `NAME[,...]`, as they are in URLs, without ports."""
    names = tuple(name.strip() for name in text.split(",")) if text else ()
    for name in names:
        if not _HOST_NAME.fullmatch(name):
            raise argparse.ArgumentTypeError(f"{name!r} is no name of a host, such as coord.example.org")
    return names
