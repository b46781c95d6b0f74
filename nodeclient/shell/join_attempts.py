"""Prepares a node's attempts to join: reads its tokens and certificates, from a file system that may hang.

They are read anew for each attempt, since a user may replace them while the node runs.
"""

from __future__ import annotations

import asyncio
from functools import partial

from coordinatord.protocol.access_token import AccessToken, Role
from coordinatord.runtime.tasks import in_thread
from nodeclient.access.endpoint import Endpoint
from nodeclient.access.keyring import AccessSettings
from nodeclient.access.secured_attempt import AccessError, SecuredAttempt

READ_WITHIN_S = 5.0
"""How long to wait for the files of tokens and certificates. A file system that takes longer counts as hanging."""


class JoinAttempts:
    """Prepares attempts to join, at most one at a time, so that a file system that hangs blocks one thread."""

    def __init__(self, settings: AccessSettings) -> None:
        self.settings = settings
        self.proven: AccessToken | None = None
        """The token that let this node in last. While it is valid, the coordinator refuses the node with any other."""
        self._reading: asyncio.Future[SecuredAttempt] | None = None
        """The attempt whose files are being read."""

    async def prepare(self, coordinator: Endpoint) -> SecuredAttempt:
        """Return an attempt, with its tokens and certificates. Raises `AccessError`, or `OSError` without a thread."""
        if self._reading is not None:  # the last call gave up; its result would be out of date, and is not used
            await asyncio.wait([self._reading], timeout=READ_WITHIN_S)
        if self._reading is None or self._reading.done():
            read = partial(SecuredAttempt, self.settings, coordinator, Role.JOIN, self.proven)
            self._reading = in_thread(read, "access")
            await asyncio.wait([self._reading], timeout=READ_WITHIN_S)
        if not self._reading.done():
            raise AccessError(
                f"the files of tokens and certificates were not read within {READ_WITHIN_S:g} s: their file system "
                "hangs, or a token is in a pipe that nobody writes to; copy them to a local disk"
            )
        reading, self._reading = self._reading, None
        return reading.result()
