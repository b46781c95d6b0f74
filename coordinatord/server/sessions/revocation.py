"""Reads tokens and certificate again when they change, and ends sessions and requests of callers who lost access."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from coordinatord.security.setup import Security
from coordinatord.server.sessions.node_sessions import NodeSessions

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
        self._seen = self._security.tokens
        gatekeeper = self._security.gatekeeper
        self._sessions.close_those(lambda caller: not gatekeeper.is_valid(caller))
        self._end_requests()
