"""Reads tokens and certificate again when they change, and ends sessions and requests of callers who lost access."""

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

LOOK_EVERY_S = 1.0
"""How long a token that was revoked may go on at most; a look costs microseconds."""


class Revocations:
    """Keeps what callers may do in step with the tokens that are valid."""

    def __init__(self, security: Security, sessions: NodeSessions, end_requests: Callable[[], None]) -> None:
        """Watch these tokens; `end_requests` ends the requests in progress of callers who would not be let in now."""
        self._security = security
        self._seen = security.tokens
        """The tokens at the last look. They also change when the gatekeeper reads them anew."""
        self._sessions = sessions
        self._end_requests = end_requests

    async def watch(self) -> None:
        """Look for changes of the tokens until cancelled."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            self._security.refresh()
            self._end()

    def reload(self) -> None:
        """Read certificate and tokens again now."""
        self._security.reload()
        self._end()

    def _end(self) -> None:
        if self._security.tokens == self._seen:
            return
        before, self._seen = self._seen, self._security.tokens
        _log_change(before, self._seen)
        gatekeeper = self._security.gatekeeper
        self._sessions.close_those(lambda caller: not gatekeeper.is_valid(caller))
        self._end_requests()


def _log_change(before: Iterable[KnownToken], now: Iterable[KnownToken]) -> None:
    """Log which tokens are new, and which are no longer valid."""
    was, valid = valid_names(before), valid_names(now)
    new, old = (valid - was, "valid from now on"), (was - valid, "no longer valid")
    for level, (names, text) in ((logging.INFO, new), (logging.WARNING, old)):
        if names:
            listed = clip(", ".join(sorted(names)))
            log.log(level, "access tokens that are %s: %s", text, listed, extra=fields("tokens_changed"))
