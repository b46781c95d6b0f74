"""Reloads tokens when they change, and ends the sessions and requests of callers that have lost access.

It also warns of a certificate that expires.

A session and some requests last for hours, so it is not enough to check the token at their beginning.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection

from coordinatord.core.rounds.events import TokensRevoked
from coordinatord.protocol.text import clip
from coordinatord.runtime.logs import fields
from coordinatord.security.gatekeeper import Caller
from coordinatord.security.setup import Security
from coordinatord.security.token_store import valid_names
from coordinatord.server.driver import Driver
from coordinatord.server.sessions.node_sessions import NodeSessions

log = logging.getLogger(__name__)

POLL_EVERY_S = 1.0
"""How often tokens are reloaded, so how long a revoked one may still work; a poll costs microseconds."""


async def watch_tokens(
    security: Security,
    driver: Driver,
    sessions: NodeSessions,
    end_requests: Callable[[Callable[[Caller], bool]], None],
) -> None:
    """End sessions and requests whose caller loses access, and warn of a certificate that expires, until cancelled.

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
            was, valid = valid_names(before), valid_names(known)
            _log_change(logging.INFO, "valid from now on", valid - was)
            _log_change(logging.WARNING, "no longer valid", was - valid)
            driver.submit(TokensRevoked(was - valid))  # first, since the end of a session would be taken for a death
            sessions.close_invalid(is_invalid)
            end_requests(is_invalid)
        else:  # no token has changed, but a browser's session also ends by its age
            end_requests(lambda caller: caller.in_browser and is_invalid(caller))


def _log_change(level: int, text: str, names: Collection[str]) -> None:
    if names:
        listed = clip(", ".join(sorted(names)))
        log.log(level, "access tokens that are %s: %s", text, listed, extra=fields("tokens_changed"))
