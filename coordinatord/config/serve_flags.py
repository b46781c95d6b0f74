"""The flags of a coordinatord that serves, and the settings that they lead to."""

from __future__ import annotations

import argparse
import re
import socket
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from coordinatord.config.state_flags import STATE_DIR_DEFAULT, folder, state_dir
from coordinatord.config.store_flags import SharedStore, StepDownConfig, add_store, read_store
from coordinatord.core.policy import OUTAGE_GRACE_S_MIN, SETTLE_S_MIN, Policy
from coordinatord.protocol.fields import DEFAULT_PORT, HEARTBEAT_S_MIN
from coordinatord.protocol.frozen_class import frozen
from coordinatord.runtime import __version__
from coordinatord.runtime.logs import FORMATS, LEVELS
from coordinatord.runtime.settings import NUMBER, WHOLE, SettingsParser, joined, port, seconds

_HOST_NAME = re.compile(r"\.?[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*\.?", re.ASCII | re.IGNORECASE)

_ZERO = re.compile(r"0+(?:\.0*)?", re.ASCII)


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


def add_serve(parser: SettingsParser) -> None:
    """Add the flags of a coordinatord that serves."""
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
    _add_times(parser)
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
    add_store(parser)


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


def _add_times(parser: SettingsParser) -> None:
    defaults = Policy()
    duration: dict[str, Any] = {"toml": NUMBER, "metavar": "S"}
    add = parser.add_setting
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


def _pause(text: str) -> float:
    """Read a duration in seconds; a zero of any form, such as 0.0 of a file, is no pause."""
    return 0.0 if _ZERO.fullmatch(text) else seconds(text)


def read_serve(
    parser: SettingsParser, given: argparse.Namespace, environ: Mapping[str, str]
) -> ServeConfig | StepDownConfig:
    """Make the settings of a coordinator that serves, or those of `--step-down`. Raises `SettingsError`."""
    check_certificate(parser, given)
    if given.insecure and (given.tls_cert or given.tls_client_ca):
        parser.error("--insecure serves everybody in the clear: leave it out where there are certificates")
    parser.exclude(
        given, "ephemeral", "state_dir", "give --state-dir, or --ephemeral to keep state in memory only, and not both"
    )
    directory = None if given.ephemeral else state_dir(parser, given, environ)
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
        state_dir=directory,
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


def check_certificate(parser: SettingsParser, given: argparse.Namespace) -> None:
    """Check that a certificate and its key were given together. Raises `SettingsError`."""
    if (given.tls_cert is None) is not (given.tls_key is None):
        parser.error("--tls-cert and --tls-key belong together: give both, or neither for a certificate of our own")


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


def host_names(text: str) -> tuple[str, ...]:
    """Read `NAME[,...]`, as they are in URLs, without ports."""
    names = tuple(name.strip() for name in text.split(",")) if text else ()
    for name in names:
        if not _HOST_NAME.fullmatch(name):
            raise argparse.ArgumentTypeError(f"{name!r} is no name of a host, such as coord.example.org")
    return names
