"""Formats and parses access tokens, which let their bearers in: `crd1.<pin>.<role>.<secret>`.

The pin is the SHA-256 of the coordinator's public key (SubjectPublicKeyInfo, as in RFC 7469). A client compares it with
the server's key, so it needs no certificate authority. The secret has 256 random bits. Pin and secret are in base32,
in lower case and without padding. The prefix identifies a token, also for scanners of secrets in repositories.
"""

from __future__ import annotations

import re
from enum import StrEnum

from msgspec import Struct

from coordinatord.protocol.errors import OperationalError

PREFIX = "crd1"

BEARER = "Bearer "
"""The prefix of the token in the header `Authorization` (RFC 6750)."""

_TOKEN = re.compile(rf"{PREFIX}\.(?P<pin>[a-z2-7]{{52}})\.(?P<role>[a-z]+)\.(?P<secret>[a-z2-7]{{52}})", re.ASCII)


class Role(StrEnum):
    """The rights of the bearer of a token."""

    JOIN = "join"
    """Be a node of a job."""
    ADMIN = "admin"
    """Stop, restart and forget jobs, drain nodes; and all that `READ` may."""
    READ = "read"
    """See jobs, events, reports and metrics."""

    def may(self, wanted: Role) -> bool:
        """Whether this role has the rights of another one."""
        return self is wanted or (self is Role.ADMIN and wanted is Role.READ)


class TokenFormError(OperationalError):
    """A text is no access token. The error does not repeat it: it may be a mistyped secret."""


class AccessToken(Struct, frozen=True):
    """One token."""

    pin: str
    role: Role
    secret: str

    def __repr__(self) -> str:
        """Show all but the secret, for errors and logs."""
        return f"{type(self).__name__}(pin={self.pin!r}, role={self.role!r})"

    @property
    def text(self) -> str:
        """The token as text."""
        return f"{PREFIX}.{self.pin}.{self.role}.{self.secret}"


def parse_token(text: str) -> AccessToken:
    """Parse a token. Raises `TokenFormError`."""
    match = _TOKEN.fullmatch(text)
    if match is None or match["role"] not in set(Role):
        raise TokenFormError(f"this is no access token: one has the form {PREFIX}.KEY.ROLE.SECRET")
    return AccessToken(match["pin"], Role(match["role"]), match["secret"])


def parse_tokens(text: str) -> tuple[AccessToken, ...]:
    """Parse a file with one token or comment (#) a line. Raises `TokenFormError`, also if there is no token."""
    lines = (line.strip() for line in text.splitlines())
    found = tuple(parse_token(line) for line in lines if line and not line.startswith("#"))
    if not found:
        raise TokenFormError("there is no access token in it")
    return found


def contains_token(text: str) -> bool:
    """Whether a text seems to contain a token. No command line may: everybody on the host can read those."""
    return f"{PREFIX}." in text
