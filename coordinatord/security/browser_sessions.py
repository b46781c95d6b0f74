"""Browsers that were let in: a link that works once becomes a session of the browser, with the rights of a token.

A browser must not keep a token: scripts of the page could read it there, and a token has no end. A session is a secret
in a cookie that no script can read. The coordinator keeps its hash, in memory alone. A session ends with the token,
with the coordinator, and after a day's work.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from hashlib import sha256

from coordinatord.protocol.frozen_class import frozen
from coordinatord.security.token_store import KnownToken, new_secret

LINK_S = 300.0
"""How long a link can be opened: a person may copy it to another host's browser first."""

LINKS_MAX = 100
"""The limit of links that were not opened; the oldest is dropped. A person has one at a time."""

SESSION_S = 12 * 3_600.0
"""How long a session lasts: a day's work."""

SESSIONS_MAX = 1_000
"""The limit of sessions; the oldest is dropped. This is ten times the number of pages that may be open."""


@frozen
class _KnownSecret:
    """What a secret stands for."""

    token: KnownToken
    until: float


class BrowserSessions:
    """All links and sessions, by the hash of their secrets, oldest first."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Begin without any; `clock` returns seconds that only grow."""
        self._clock = clock
        self._links: OrderedDict[bytes, _KnownSecret] = OrderedDict()
        self._sessions: OrderedDict[bytes, _KnownSecret] = OrderedDict()

    def new_link(self, token: KnownToken) -> str:
        """Return the secret of a link that opens one session with the rights of a token."""
        return self._keep(self._links, LINKS_MAX, token, self._clock() + LINK_S)

    def open(self, link: str) -> tuple[str, KnownToken] | None:
        """Open a session by the secret of a link, which is used up by that; return its secret and the token.

        None if there is no such link, or it is used up or too old.
        """
        found = self._links.pop(_digest(link), None)
        if found is None or found.until < self._clock():
            return None
        return self._keep(self._sessions, SESSIONS_MAX, found.token, self._clock() + SESSION_S), found.token

    def token_of(self, session: str) -> KnownToken | None:
        """Return the token for which the secret of a session stands; None if there is no such session."""
        found = self._sessions.get(_digest(session))
        return None if found is None or found.until < self._clock() else found.token

    @staticmethod
    def _keep(kept: OrderedDict[bytes, _KnownSecret], most: int, token: KnownToken, until: float) -> str:
        secret = new_secret()
        kept[_digest(secret)] = _KnownSecret(token, until)
        if len(kept) > most:
            kept.popitem(last=False)
        return secret


def _digest(secret: str) -> bytes:
    return sha256(secret.encode("utf-8", "replace")).digest()
