"""A node's attempts to join, whose tokens and certificates may be on a file system that hangs."""

from __future__ import annotations

import asyncio
from functools import partial

from coordinatord.protocol.access_token import AccessToken, Role
from coordinatord.runtime.tasks import in_thread
from nodeclient.access.endpoint import Endpoint
from nodeclient.access.keyring import AccessSettings
from nodeclient.access.secured_attempt import AccessError, SecuredAttempt

LOOK_WITHIN_S = 5.0
"""How long to wait for the files of tokens and certificates: a file system that takes longer is as good as gone."""


class JoinAttempts:
    """Makes a node's attempts to join. One thread at most waits for a file system that hangs."""

    def __init__(self, settings: AccessSettings) -> None:
        self.settings = settings
        self.proven: AccessToken | None = None
        """The token by which this node was last let in: while it is valid, the coordinator refuses the node with any
        other."""
        self._looking: asyncio.Future[SecuredAttempt] | None = None
        """The look at the files of tokens and certificates that is in progress."""

    async def prepare(self, coordinator: Endpoint) -> SecuredAttempt:
        """Return an attempt with tokens and certificates, whose files may be on a file system that hangs.

        Raises `AccessError`, and `OSError` if there is no thread.
        """
        if self._looking is not None:
            await asyncio.wait([self._looking], timeout=LOOK_WITHIN_S)
        if self._looking is None or self._looking.done():
            look = partial(SecuredAttempt, self.settings, coordinator, Role.JOIN, self.proven)
            self._looking = in_thread(look, "access")
            self._looking.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
            await asyncio.wait([self._looking], timeout=LOOK_WITHIN_S)
        if not self._looking.done():
            raise AccessError(
                f"the files of tokens and certificates were not read within {LOOK_WITHIN_S:g} s: their file system "
                "hangs, or a token is in a pipe that nobody writes to; copy them to a local disk"
            )
        attempt, self._looking = self._looking.result, None
        return attempt()
