"""Signs browsers in: a single-use link opens a session with the rights of a token.

A browser must not store a token: scripts of the page could read it, and a token never expires. A session is a signed
cookie that no script can read; it names its token and its expiry. So coordinators store no sessions: a restarted
coordinator, or a standby with the same key, accepts the cookie too. A session ends after `SESSION_S`, and earlier if
its token is revoked, or if the coordinator's key is replaced.
"""

from __future__ import annotations

import hmac
from collections import OrderedDict
from collections.abc import Callable, Iterable
from hashlib import sha256

from msgspec import Struct

from coordinatord.runtime.pinned_tls import base32_of
from coordinatord.security.token_store import KnownToken, new_secret

LINK_S = 300.0
"""How long a link is valid, since a person may copy it to a browser on another host first."""

LINKS_MAX = 100
"""The limit of unopened links; the oldest is dropped. A person has one at a time."""

SESSION_S = 12 * 3_600.0
"""How long a session lasts: a day's work."""


class _KnownLink(Struct, frozen=True):
    """A link that no browser has opened."""

    token: KnownToken
    """The token that gives its rights to the session."""
    until: float
    """When the link expires, in seconds since 1970."""


class BrowserSessions:
    """Makes links, and opens and checks sessions."""

    def __init__(self, key: bytes, clock: Callable[[], float]) -> None:
        """Begin without links; `key` signs sessions, and `clock` returns seconds since 1970."""
        self._key = key
        self._clock = clock
        self._links: OrderedDict[bytes, _KnownLink] = OrderedDict()
        """The links by the hash of their secrets, oldest first."""

    def new_link(self, token: KnownToken) -> str:
        """Return the secret of a new link, which opens one session with the rights of a token."""
        secret = new_secret()
        self._links[_digest(secret)] = _KnownLink(token, self._clock() + LINK_S)
        if len(self._links) > LINKS_MAX:
            self._links.popitem(last=False)
        return secret

    def open(self, link: str) -> tuple[str, KnownToken] | None:
        """Open a session by a link's secret, once; return its cookie and its token. None if the link is not valid."""
        found = self._links.pop(_digest(link), None)
        if found is None or found.until < self._clock():
            return None
        claim = f"{found.token.digest}.{int(self._clock() + SESSION_S)}"
        return f"{claim}.{self._signature(claim)}", found.token

    def token_of(self, session: str, tokens: Iterable[KnownToken]) -> KnownToken | None:
        """Return the valid one of `tokens` that a cookie names; None if the session has expired or is forged."""
        claim, _, signature = session.rpartition(".")
        if not hmac.compare_digest(self._signature(claim).encode(), signature.encode("utf-8", "replace")):
            return None
        digest, _, until = claim.partition(".")
        if int(until) < self._clock():
            return None
        return next((token for token in tokens if token.digest == digest and token.revoked_at is None), None)

    def _signature(self, claim: str) -> str:
        return base32_of(hmac.digest(self._key, claim.encode("utf-8", "replace"), "sha256"))


def _digest(secret: str) -> bytes:
    return sha256(secret.encode("utf-8", "replace")).digest()
