"""Reloads tokens when they change, and ends the sessions and requests of callers that have lost access.

It also warns of a certificate that expires.

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


async def watch_tokens(
    security: Security, sessions: NodeSessions, end_requests: Callable[[Callable[[Caller], bool]], None]
) -> None:
    """End sessions and requests whose caller loses access, and warn of the certificate, until cancelled.

    `end_requests` ends the HTTP requests of callers for whom a test is true.
    """

    def is_invalid(caller: Caller) -> bool:
        return not security.gatekeeper.is_valid(caller)

    store = security.token_store
    known = store.tokens
    while True:
        await asyncio.sleep(POLL_EVERY_S)
        security.warn_of_expiry()
        store.try_refresh()
        before, known = known, store.tokens  # the gatekeeper may have reloaded them too
        if known != before:
            _log_change(before, known)
            sessions.close_invalid(is_invalid)
            end_requests(is_invalid)
        else:  # no token has changed, but a browser's session also ends by its age
            end_requests(lambda caller: caller.in_browser and is_invalid(caller))


def _log_change(before: Iterable[KnownToken], now: Iterable[KnownToken]) -> None:
    was, valid = valid_names(before), valid_names(now)
    new, old = (valid - was, "valid from now on"), (was - valid, "no longer valid")
    for level, (names, text) in ((logging.INFO, new), (logging.WARNING, old)):
        if names:
            listed = clip(", ".join(sorted(names)))
            log.log(level, "access tokens that are %s: %s", text, listed, extra=fields("tokens_changed"))
