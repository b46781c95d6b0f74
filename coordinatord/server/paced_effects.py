"""Carries out effects in turns: a round of 10,000 nodes is 10,000 messages, and nobody else waits for all of them.

To pack and write one message takes some 30 us, so all of them at once would hold up every heartbeat for 0.3 s. Between
two pieces the event loop does what else there is to do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from coordinatord.core.effects import Effect

PIECE = 128
"""Effects that are carried out without a pause: some 4 ms."""


class PacedEffects:
    """Effects that may happen, by session: each session has at most one, the newest."""

    def __init__(self, carry_out: Callable[[Effect], None]) -> None:
        self._carry_out = carry_out
        self._waiting: dict[int, Effect] = {}

    def put(self, effects: Iterable[Effect]) -> None:
        """Carry out effects now, but one for a session that still waits for an older one: it takes that one's place."""
        waiting = self._waiting
        for effect in effects:
            if effect.session in waiting:
                waiting[effect.session] = effect
            else:
                self._carry_out(effect)

    async def put_all(self, effects: Iterable[Effect]) -> None:
        """Carry out many effects, a piece in each turn of the event loop; return when all are carried out."""
        waiting = self._waiting
        waiting |= {effect.session: effect for effect in effects}
        while waiting:
            for session in list(waiting)[:PIECE]:
                self._carry_out(waiting.pop(session))
            if waiting:
                await asyncio.sleep(0)
