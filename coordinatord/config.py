"""What coordinatord is told: flags over environment over defaults, in one frozen record that is handed down."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from coordinatord.core.policy import Policy
from coordinatord.shared import __version__
from coordinatord.shared.logs import LEVELS
from coordinatord.shared.settings import SettingsParser, port, seconds
from coordinatord.wire.messages import DEFAULT_PORT


@dataclass(frozen=True, slots=True)
class Config:
    """All settings of one coordinatord."""

    host: str
    port: int
    state_dir: Path | None
    log_level: str
    policy: Policy


def parse(arguments: Sequence[str] | None = None, environ: Mapping[str, str] | None = None) -> Config:
    """Read flags (default: this process's) and environment; wrong ones end the program with one line and code 64."""
    parser = SettingsParser(
        prog="coordinatord",
        env_prefix="COORDINATORD",
        environ=environ,
        description="The one authority on who is in a training job, which round is on, and who has which rank.",
        epilog="Each flag can also be given as the environment variable in brackets.",
    )
    defaults = Policy()
    everywhere = "::" if socket.has_dualstack_ipv6() else "0.0.0.0"  # noqa: S104 - nodes are on other hosts
    parser.add_setting("--host", default=everywhere, help="address to listen at (default: all, IPv6 and IPv4)")
    parser.add_setting("--port", type=port, default=DEFAULT_PORT, help="port, 0 for any free one (default: 29400)")
    parser.add_setting("--state-dir", type=Path, help="where state will be kept; this release keeps it in memory only")
    parser.add_setting(
        "--settle",
        type=seconds,
        default=defaults.settle_s,
        help="seconds that a round with enough nodes waits for one more (default: 2)",
    )
    parser.add_setting(
        "--heartbeat",
        type=seconds,
        default=defaults.heartbeat_s,
        help="least seconds between two heartbeats; a node is lost after five (default: 1)",
    )
    parser.add_setting(
        "--log-level", type=str.lower, choices=LEVELS, default="info", help="least level of log lines (default: info)"
    )
    parser.add_argument("--version", action="version", version=f"coordinatord {__version__}")
    given = parser.parse_args(arguments)
    try:
        policy = Policy(
            heartbeat_s=given.heartbeat,
            reconnect_grace_s=min(defaults.reconnect_grace_s, given.heartbeat * defaults.leases_per_heartbeat),
            settle_s=given.settle,
            settle_max_s=max(defaults.settle_max_s, given.settle),
        )
    except ValueError as error:
        parser.error(str(error))
    return Config(given.host, given.port, given.state_dir, given.log_level, policy)
