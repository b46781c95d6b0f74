"""Reloads tokens when they change, and ends the sessions and requests of callers with a revoked token.

A session and some requests last for hours, so it is not enough to check the token at their beginning.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from coordinatord.protocol.text import clip
from coordinatord.runtime.logs import fields
from coordinatord.security.setup import Security
from coordinatord.security.token_store import KnownToken, valid_names
from coordinatord.server.sessions.node_sessions import NodeSessions

log = logging.getLogger(__name__)

POLL_EVERY_S = 1.0
"""How often tokens are reloaded, so how long a revoked one may still work; a poll costs microseconds."""


class Revocations:
    """Ends sessions and requests when their token is revoked."""

    def __init__(self, security: Security, sessions: NodeSessions, end_requests: Callable[[], None]) -> None:
        """Watch the tokens of `security`; `end_requests` ends the HTTP requests of callers that have lost access."""
        self._security = security
        self._tokens = security.token_store.tokens
        """The tokens at the last poll. The gatekeeper may reload them too."""
        self._sessions = sessions
        self._end_requests = end_requests

    async def watch(self) -> None:
        """Poll the tokens until cancelled."""
        while True:
            await asyncio.sleep(POLL_EVERY_S)
            self._security.token_store.try_refresh()
            self._end_revoked()

    def _end_revoked(self) -> None:
        if self._security.token_store.tokens == self._tokens:
            return
        before, self._tokens = self._tokens, self._security.token_store.tokens
        _log_change(before, self._tokens)
        gatekeeper = self._security.gatekeeper
        self._sessions.close_invalid(lambda caller: not gatekeeper.is_valid(caller))
        self._end_requests()


def _log_change(before: Iterable[KnownToken], now: Iterable[KnownToken]) -> None:
    was, valid = valid_names(before), valid_names(now)
    new, old = (valid - was, "valid from now on"), (was - valid, "no longer valid")
    for level, (names, text) in ((logging.INFO, new), (logging.WARNING, old)):
        if names:
            listed = clip(", ".join(sorted(names)))
            log.log(level, "access tokens that are %s: %s", text, listed, extra=fields("tokens_changed"))
