"""Reloads tokens when they change, and ends the sessions and requests of callers that have lost access.

A session and some requests last for hours, so it is not enough to check the token at their beginning.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from coordinatord.protocol.text import clip
from coordinatord.runtime.logs import fields
from coordinatord.security.gatekeeper import Caller
from coordinatord.security.setup import Security
from coordinatord.security.token_store import KnownToken, valid_names
from coordinatord.server.sessions.node_sessions import NodeSessions

log = logging.getLogger(__name__)

POLL_EVERY_S = 1.0
"""How often tokens are reloaded, so how long a revoked one may still work; a poll costs microseconds."""


class Revocations:
    """Ends sessions and requests when their caller loses access."""

    def __init__(
        self,
        security: Security,
        sessions: NodeSessions,
        end_requests: Callable[[Callable[[Caller], bool]], None],
    ) -> None:
        """Watch the tokens of `security`; `end_requests` ends the HTTP requests of callers for whom a test is true."""
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
            before, self._tokens = self._tokens, self._security.token_store.tokens
            if self._tokens != before:
                _log_change(before, self._tokens)
                self._sessions.close_invalid(self._is_invalid)
                self._end_requests(self._is_invalid)
            else:  # a browser's session also ends by itself
                self._end_requests(lambda caller: caller.in_browser and self._is_invalid(caller))

    def _is_invalid(self, caller: Caller) -> bool:
        return not self._security.gatekeeper.is_valid(caller)


def _log_change(before: Iterable[KnownToken], now: Iterable[KnownToken]) -> None:
    was, valid = valid_names(before), valid_names(now)
    new, old = (valid - was, "valid from now on"), (was - valid, "no longer valid")
    for level, (names, text) in ((logging.INFO, new), (logging.WARNING, old)):
        if names:
            listed = clip(", ".join(sorted(names)))
            log.log(level, "access tokens that are %s: %s", text, listed, extra=fields("tokens_changed"))
