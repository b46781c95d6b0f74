"""Carries out effects in turns: a round of 10,000 nodes is 10,000 messages, and nobody else waits for all of them.

To pack and write one message takes some 30 us, so all of them at once would hold up every heartbeat for 0.3 s. Between
two pieces the event loop does what else there is to do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from itertools import islice

from coordinatord.core.effects import Effect

PIECE = 128
"""Effects that are carried out without a pause: some 4 ms."""


class PacedEffects:
    """Effects that may happen, by session: each session has at most one, the newest."""

    def __init__(self, carry_out: Callable[[Effect], None], may_go_on: Callable[[], bool]) -> None:
        """Call `carry_out` for each effect; drop those that wait once `may_go_on` returns False before a piece."""
        self._loop = asyncio.get_running_loop()
        self._carry_out = carry_out
        self._may_go_on = may_go_on
        self._waiting: dict[int, Effect] = {}

    def put(self, effects: Iterable[Effect]) -> None:
        """Carry out effects now, but one for a session that still waits for an older one: it takes that one's place."""
        waiting = self._waiting
        for effect in effects:
            if effect.session in waiting:
                waiting[effect.session] = effect
            else:
                self._carry_out(effect)

    def put_many(self, effects: Iterable[Effect]) -> None:
        """Carry out effects, a piece now and one in each further turn of the event loop."""
        is_under_way = bool(self._waiting)
        self._waiting |= {effect.session: effect for effect in effects}
        if not is_under_way:
            self._carry_out_some()

    def _carry_out_some(self) -> None:
        if not self._may_go_on():
            self._waiting.clear()
        for session in list(islice(self._waiting, PIECE)):
            self._carry_out(self._waiting.pop(session))
        if self._waiting:
            self._loop.call_soon(self._carry_out_some)
