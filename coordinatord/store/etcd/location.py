"""Where the records of coordinators that share a store are: the members of an etcd cluster, and a prefix of its keys.

All keys with the prefix are a *namespace*. A cluster may have several, each with its own leader and history.
"""

from __future__ import annotations

import re
from pathlib import Path

from msgspec import Struct

from coordinatord.protocol.errors import OperationalError
from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.protocol.ip_addresses import Endpoint, parse_endpoint
from coordinatord.runtime.private_files import read_given
from coordinatord.store.etcd.keys import NAMES

PORT = 2379
"""etcd's port for clients, assigned by IANA."""

MEMBERS_MAX = 16
"""The limit of members in a URL: etcd recommends at most seven."""

_URL = re.compile(r"(?P<scheme>etcds?)://(?P<members>[^/@?#]+)(?:/(?P<prefix>[A-Za-z0-9._/-]{0,200}))?", re.ASCII)

PREFIX = "coordinatord"
"""The default prefix."""


class EtcdLocationError(OperationalError):
    """A text is no URL of a namespace in etcd, or its user file is invalid."""

    exit_code = ExitCode.USAGE


class EtcdAccess(Struct, frozen=True):
    """The credentials and CA certificates for a connection to a cluster."""

    authorities: Path | None = None
    """The file of the CA certificates to trust; None for the host's."""
    certificate: Path | None = None
    """The client certificate for a cluster that demands one; None without one."""
    key: Path | None = None
    """The key of `certificate`."""
    user_file: Path | None = None
    """The file with `USER:PASSWORD`; None for a cluster without users."""

    def read_user(self) -> tuple[str, str]:
        """Read user and password, empty without a file. Raises `PrivateFileError` and `EtcdLocationError`."""
        if self.user_file is None:
            return "", ""
        user, colon, password = read_given(self.user_file).strip().partition(":")
        if not user or not colon:
            raise EtcdLocationError(f"{self.user_file} has no USER:PASSWORD")
        return user, password


class EtcdLocation(Struct, frozen=True):
    """A namespace in an etcd cluster."""

    members: tuple[Endpoint, ...]
    """The members, tried in turn."""
    prefix: str
    """The prefix of the namespace's keys, without a slash at the end."""
    tls: bool
    """Whether to connect over TLS."""
    access: EtcdAccess = EtcdAccess()

    def __str__(self) -> str:
        return f"{'etcds' if self.tls else 'etcd'}://{','.join(map(str, self.members))}/{self.prefix}"

    @classmethod
    def parse(cls, text: str, access: EtcdAccess | None = None) -> EtcdLocation:
        """Parse `etcd://HOST[:PORT][,...][/PREFIX]`, or `etcds://` for TLS. Raises `EtcdLocationError`."""
        url = _URL.fullmatch(text)
        parts = [] if url is None else url["members"].split(",")
        members = tuple(member for part in parts if (member := parse_endpoint(part, PORT)) is not None)
        if url is None or len(members) < len(parts):
            raise EtcdLocationError(
                f"{text!r} is no etcd://HOST[:PORT][,...][/PREFIX], such as etcd://h1,h2,h3/training"
            )
        if len(members) > MEMBERS_MAX:
            raise EtcdLocationError(f"{len(members)} members are too many: name at most {MEMBERS_MAX}")
        prefix = (url["prefix"] or "").strip("/") or PREFIX
        within = NAMES.intersection(prefix.split("/")[1:])  # the first part may be such a name: it is in no namespace
        if within:
            raise EtcdLocationError(
                f"{text!r} would be within another namespace, whose keys have the name {min(within)!r}: choose another"
                " prefix"
            )
        return cls(members, prefix, url["scheme"] == "etcds", access or EtcdAccess())
