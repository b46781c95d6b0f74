"""The flags of the daemon, and the settings made from them."""

from __future__ import annotations

import argparse
import re
import socket
from collections.abc import Mapping
from dataclasses import field
from functools import partial
from pathlib import Path

from msgspec import Struct

from coordinatord.config.state_flags import STATE_DIR_DEFAULT, state_dir
from coordinatord.config.store_flags import SharedStore, StepDownConfig, add_store, read_store
from coordinatord.core.rounds.policy import Policy, PreflightWhen
from coordinatord.core.rounds.values.judged_host import CHARGES_MAX
from coordinatord.protocol.fields import DEFAULT_PORT, HEARTBEAT_S_MIN
from coordinatord.runtime import __version__
from coordinatord.runtime.logs import FORMATS, LEVELS
from coordinatord.runtime.settings import SettingsParser, filled, folder, joined, number, port, seconds, seconds_or_zero

_HOST_NAME = re.compile(r"\.?[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*\.?", re.ASCII | re.IGNORECASE)
"""A host name, or a domain after a dot."""

HALF_LIFE_H_MAX = 720.0
"""The limit of a half-life in hours: a month, as long as the longest runs."""

SETTLE_S_MIN = 0.1
"""The shortest settle window that may be set: programs that are started together come up tenths of a second apart."""

OUTAGE_GRACE_S_MIN = 0.5
"""The shortest outage grace that may be set: a broken connection is back within tenths of a second, and must not end a
node's workers."""


class ServeConfig(Struct, frozen=True):
    """All settings of the daemon."""

    host: str
    port: int
    state_dir: Path | None
    """None to keep state only in memory."""
    log_level: str
    policy: Policy
    log_format: str = "text"
    allowed_hosts: tuple[str, ...] = ()
    """Further names under which browsers may open the page."""
    insecure: bool = False
    """Whether to serve without TLS and tokens."""
    certificate: Path | None = None
    """The file of an organisation's certificate; None for our own."""
    key: Path | None = None
    """The key of `certificate`; None without one."""
    client_authorities: Path | None = None
    """The CA certificates that verify clients' certificates; None if clients need none."""
    shared: SharedStore | None = None
    """The store that several coordinators share; None for the state directory."""
    until_unused: bool = False
    """Whether to end once standard input has ended and no node needs this coordinator."""
    file: Path | None = None
    """The settings file, if one was named."""
    remarks: tuple[str, ...] = ()
    """Lines to log at the start, about variables that seem misspelt."""
    reloadable: Mapping[str, object] = field(default_factory=dict)
    """The settings that a reload changes, by name."""
    fixed: Mapping[str, object] = field(default_factory=dict)
    """All other settings, by name."""


def add_serve(parser: SettingsParser) -> None:
    """Add the flags of the daemon."""
    everywhere = "::" if socket.has_dualstack_ipv6() else "0.0.0.0"  # noqa: S104 - nodes are on other hosts
    parser.add_heading("where it listens")
    add = parser.add_setting
    add("--host HOST", "address to listen at", default=everywhere, by_default="all, IPv6 and IPv4")
    add("--port PORT", "port, 0 for any free one", port, default=DEFAULT_PORT)
    add(
        "--allowed-hosts NAME[,...]",
        "names by which a browser may open the page, besides addresses, names of this host, and names that nobody can"
        " register; .example.org stands for all below it. Needed behind a proxy of another name",
        host_names,
        array=joined,
        default=(),
        by_default="none",
    )
    parser.add_heading("state")
    add("--state-dir DIR", "where state is kept, on a local disk", folder, by_default=STATE_DIR_DEFAULT)
    add("--ephemeral", "keep state in memory only: a restart forgets all jobs")
    add_store(parser)
    _add_security(parser)
    _add_times(parser)
    _add_preflights(parser)
    _add_log(parser)
    parser.add_heading("settings in a file")
    parser.add_config_file("COORDINATORD_CONFIG")
    # It is no setting: only a program with the other end of standard input can use it.
    parser.add_argument(
        "--until-unused",
        action="store_true",
        help="end by itself, once standard input has ended and no node needs this coordinator any more",
    )
    parser.add_argument("--version", action="version", version=f"coordinatord {__version__}")


def _add_security(parser: SettingsParser) -> None:
    parser.add_heading("who is let in")
    add = parser.add_setting
    add("--insecure", "serve everybody who reaches the port, in the clear, instead of those with a token over TLS")
    add(
        "--tls-cert FILE",
        "the server's certificate in PEM, with its intermediate certificates",
        Path,
        by_default="one of our own",
        dest="certificate",
    )
    add("--tls-key FILE", "its key, in PEM, without a password", Path, dest="key")
    add(
        "--tls-client-ca FILE",
        "require a client certificate from these authorities as well; its name is the node id, or the part of the id"
        " before a dash",
        Path,
        by_default="clients need none",
        dest="client_authorities",
    )


def _add_times(parser: SettingsParser) -> None:
    parser.add_heading("rounds, nodes and hosts")
    defaults = Policy()
    add = partial(parser.add_setting, reload=True)
    add(
        "--settle S",
        "seconds that a round with enough nodes waits for one more",
        partial(seconds, least=SETTLE_S_MIN),
        default=defaults.settle_s,
    )
    add(
        "--retry-pause S",
        "seconds before the next round when the same error has come twice in a row without a step in between; doubled"
        f" each time, up to {defaults.retry_pause_max_s:g}; 0 for none",
        seconds_or_zero,
        default=defaults.retry_pause_s,
    )
    add(
        "--quarantine-at WEIGHT",
        "weight of a host's charges at which rounds do without it, if they can; a failed round that it ended weighs 1;"
        " 0 for never",
        partial(number, least=0.0, most=CHARGES_MAX),
        default=defaults.quarantine_at,
    )
    add(
        "--charge-half-life H",
        "hours in which a charge loses half of its weight",
        partial(number, least=0.1, most=HALF_LIFE_H_MAX),
        default=defaults.charge_half_life_s / 3_600,
        dest="charge_half_life_h",
    )
    add(
        "--quarantine-share SHARE",
        "largest share of a job's hosts that are quarantined at a time; one host always may be",
        partial(number, least=0.0, most=1.0),
        default=defaults.quarantine_share,
    )
    add(
        "--heartbeat S",
        "least seconds between two heartbeats; a node is lost after five",
        partial(seconds, least=HEARTBEAT_S_MIN),
        default=defaults.heartbeat_s,
    )
    add(
        "--outage-grace S",
        "seconds that workers go on without a coordinator. While they do, nothing is lost. But a node that is cut off"
        " may have been replaced, and its old workers live on for as long",
        partial(seconds, least=OUTAGE_GRACE_S_MIN),
        default=defaults.outage_grace_s,
    )


def _add_preflights(parser: SettingsParser) -> None:
    parser.add_heading("tests of nodes in pairs")
    add, defaults = partial(parser.add_setting, reload=True), Policy()
    add(
        "--preflight WHEN",
        "when nodes are tested in pairs: asked, only on request; idle, also spares on hosts without workers;"
        " suspicion, also before a round if two have failed because of the network or a hang, or one had a laggard",
        choices=[str(choice) for choice in PreflightWhen],
        default=str(defaults.preflight),
    )
    add(
        "--pair-timeout S",
        "seconds that a test of two nodes in a preflight may take; more where torch loads slowly",
        seconds,
        default=defaults.pair_timeout_s,
    )


def _add_log(parser: SettingsParser) -> None:
    parser.add_heading("coordinatord's own log")
    add = partial(parser.add_setting, reload=True)
    add("--log-level", "lowest level of log lines", str.lower, choices=LEVELS, default="info")
    add(
        "--log-format",
        "for people, or for machines: one JSON object a line",
        str.lower,
        choices=FORMATS,
        default="text",
    )


def read_serve(
    parser: SettingsParser, given: argparse.Namespace, environ: Mapping[str, str]
) -> ServeConfig | StepDownConfig:
    """Make the settings of the daemon, or those of `--step-down`. Raises `SettingsError`."""
    parser.require_both(given, "certificate", "key")
    if given.insecure and (given.certificate or given.client_authorities):
        parser.error("--insecure serves everybody in the clear: leave it out where there are certificates")
    parser.exclude(
        given, "ephemeral", "state_dir", "give --state-dir, or --ephemeral to keep state in memory only, and not both"
    )
    given.state_dir = None if given.ephemeral else state_dir(parser, given, environ)
    policy = _make_policy(parser, given)
    shared = read_store(parser, given)
    if shared is not None and given.until_unused:
        parser.error("--until-unused is for a coordinator of one node, and --store for several coordinators")
    parser.show_if_requested(given)  # with --show-config it ends the program
    if shared is not None and given.step_down:
        return StepDownConfig(shared.location)
    return filled(
        ServeConfig,
        given,
        policy=policy,
        shared=shared,
        file=parser.file,
        remarks=tuple(parser.misspelt),
        reloadable=parser.values(given, reload=True),
        fixed=parser.values(given, reload=False),
    )


def _make_policy(parser: SettingsParser, given: argparse.Namespace) -> Policy:
    """Make the policy, the numbers by which the coordinator decides. Numbers without a flag adapt to those with one."""
    defaults = Policy()
    try:
        return filled(
            Policy,
            given,
            reconnect_grace_s=min(defaults.reconnect_grace_s, given.heartbeat_s * defaults.heartbeats_per_lease),
            settle_max_s=max(defaults.settle_max_s, given.settle_s),
            retry_pause_max_s=max(defaults.retry_pause_max_s, given.retry_pause_s),
            preflight=PreflightWhen(given.preflight),
            charge_half_life_s=3_600 * given.charge_half_life_h,
        )
    except ValueError as error:
        parser.error(str(error))


def host_names(text: str) -> tuple[str, ...]:
    """Parse `NAME[,...]`, host names as in URLs, without ports."""
    names = tuple(name.strip() for name in text.split(",")) if text else ()
    for name in names:
        if not _HOST_NAME.fullmatch(name):
            raise argparse.ArgumentTypeError(f"{name!r} is not a host name, such as coord.example.org")
    return names
