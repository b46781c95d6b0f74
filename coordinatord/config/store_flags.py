"""The flags of a store in etcd instead of a state directory, and the settings made from them."""

from __future__ import annotations

import argparse
import socket
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct

from coordinatord.protocol.errors import OperationalError
from coordinatord.protocol.ip_addresses import Endpoint, parse_endpoint
from coordinatord.runtime.settings import SettingsParser, seconds
from coordinatord.store.etcd.location import EtcdAccess, EtcdLocation

LEASE_S = 5.0
"""The default of --lease, in seconds: two members of etcd can be tried within it, and a standby takes over soon."""

LEASE_S_MIN = 2.0
"""One slow request would lose a shorter lease."""


class SharedStore(Struct, frozen=True):
    """A store that several coordinators share, one of which leads."""

    location: EtcdLocation
    lease_s: float
    """How long the leader may be silent before another coordinator takes over."""
    advertised: Endpoint | None
    """Where nodes reach this coordinator; port 0 is the port where it listens. None: this host's name, and port 0."""

    def endpoint(self, listens_at: int) -> str:
        """Return HOST:PORT at which nodes reach this coordinator; `listens_at` is its port."""
        at = self.advertised or Endpoint(socket.gethostname(), 0)
        return str(Endpoint(at.host, at.port or listens_at))


class StepDownConfig(Struct, frozen=True):
    """All settings of `coordinatord --step-down`."""

    location: EtcdLocation


class CopyConfig(Struct, frozen=True):
    """All settings of `coordinatord store copy`."""

    source: Path | EtcdLocation
    destination: Path | EtcdLocation


def add_store(parser: SettingsParser) -> None:
    """Add the flags of a daemon with a shared store."""
    add = parser.add_setting
    add_place(parser, default="")
    _add_access(parser, default=None)
    add(
        "--lease S",
        "with --store, seconds of silence after which another coordinator takes over",
        partial(seconds, least=LEASE_S_MIN),
        default=LEASE_S,
    )
    add(
        "--advertise HOST[:PORT]",
        "with --store, where nodes reach this coordinator",
        default="",
        by_default="the name of this host",
    )
    parser.add_argument(
        "--step-down", action="store_true", help="have the coordinator that leads at --store stand by, and exit"
    )


def add_place(parser: SettingsParser, default: str) -> None:
    """Add the flag that names an etcd."""
    parser.add_setting(
        "--store URL",
        "keep state in etcd instead: etcd://HOST[:PORT][,...][/PREFIX], or etcds:// for TLS. Several coordinators may"
        " share it: one leads, the others stand by",
        default=default,
        by_default="the state directory",
    )


def add_state_store(parser: SettingsParser) -> None:
    """Add the flags for a store in etcd to a command; no default overrides a flag that stands before the command."""
    add_place(parser, argparse.SUPPRESS)
    _add_access(parser, argparse.SUPPRESS)


def add_copy(parser: SettingsParser) -> None:
    """Add the arguments of `coordinatord store copy`."""
    parser.add_argument("store_verb", choices=["copy"], metavar="copy", help="what to do")
    parser.add_argument("source", metavar="FROM", help="a state directory, or an etcd as of --store")
    parser.add_argument("destination", metavar="TO", help="the same; it must be empty, and no coordinator may use it")
    _add_access(parser, argparse.SUPPRESS)


def read_copy(parser: SettingsParser, given: argparse.Namespace) -> CopyConfig:
    """Make the settings of `coordinatord store copy`. Raises `SettingsError`."""

    def source_or_destination(text: str) -> Path | EtcdLocation:
        return parse_location(parser, given, text) if "://" in text else Path(text)

    source, destination = source_or_destination(given.source), source_or_destination(given.destination)
    if str(source) == str(destination):
        parser.error("FROM and TO are the same")
    return CopyConfig(source, destination)


def _add_access(parser: SettingsParser, default: Any) -> None:
    add = partial(parser.add_setting, default=default)
    add("--etcd-ca FILE", "the CA certificates that verify etcd", Path, by_default="this host's")
    add("--etcd-cert FILE", "the certificate to show to etcd, in PEM", Path)
    add("--etcd-key FILE", "its key, in PEM, without a password", Path)
    add("--etcd-user-file FILE", "a file with USER:PASSWORD for etcd", Path, by_default="etcd has no users")


def read_store(parser: SettingsParser, given: argparse.Namespace) -> SharedStore | None:
    """Return the shared store; None for a state directory. Raises `SettingsError`."""
    if not given.store:
        if given.step_down:
            parser.error("--step-down needs --store: without it there is no other coordinator that could lead")
        return None
    advertised = parse_endpoint(given.advertise, 0)
    if given.advertise and advertised is None:
        parser.error(f"--advertise {given.advertise!r} is no HOST[:PORT], such as h1.example:29400 or [fd00::1]:29400")
    return SharedStore(parse_location(parser, given, given.store), given.lease_s, advertised)


def parse_location(parser: SettingsParser, given: argparse.Namespace, text: str) -> EtcdLocation:
    """Parse the URL of an etcd store, and add the credentials that the flags name. Raises `SettingsError`."""
    parser.require_both(given, "etcd_cert", "etcd_key")
    try:
        access = EtcdAccess(given.etcd_ca, given.etcd_cert, given.etcd_key, given.etcd_user_file)
        access.read_user()  # to report a mistake in the file now
        location = EtcdLocation.parse(text, access)
    except OperationalError as error:
        parser.error(str(error))
    if not location.tls and (given.etcd_ca or given.etcd_cert):
        parser.error("--etcd-ca and --etcd-cert are for TLS: write etcds://")
    return location
