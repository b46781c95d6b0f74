"""Runs the pure agent in an event loop: events go in one at a time, effects come out, and its timer is kept.

Its users carry the effects out: `node` for nodeclient's own workers, `torchrun` for torchrun's.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from coordinatord.runtime.flight_recorder import FlightRecorder, Subject
from coordinatord.runtime.timers import DeadlineTimer
from nodeclient.core.agent import Agent
from nodeclient.core.effects import Effect
from nodeclient.core.events import Event, Tick

RECORDED = Subject("nodeclient", ("nodeclient.core", "coordinatord.protocol", "signal"), code=())
"""The agent as the flight recorder sees it."""


def crashes(environ: Mapping[str, str]) -> Path | None:
    """Return the folder for crash files; None where the environment names no place for state."""
    base, home = environ.get("XDG_STATE_HOME", ""), environ.get("HOME", "")
    if base.startswith("/"):
        return Path(base, "nodeclient", "crashes")
    return Path(home, ".local", "state", "nodeclient", "crashes") if home.startswith("/") else None


class AgentLoop:
    """An agent in the running loop. An event that an effect causes waits until the present event's effects are done."""

    def __init__(
        self, agent: Agent, carry_out: Callable[[Effect, Event], None], fail: Callable[[Exception], None]
    ) -> None:
        """Drive `agent`; `carry_out` takes an effect and its event, `fail` the error of a bug, which ends the node."""
        self._agent = agent
        self._carry_out = carry_out
        self._fail = fail
        self._loop = asyncio.get_running_loop()
        self._timer = DeadlineTimer(self._loop, lambda now: self._handle(Tick(), now))
        self._events: deque[tuple[Event, float]] = deque()
        self._recorder = FlightRecorder(RECORDED, agent)

    def start(self) -> None:
        """Arm the timer for the agent's deadlines."""
        self._timer.arm(self._agent.next_deadline())

    def submit(self, event: Event) -> None:
        """Let the agent handle an event now, or right after the one that it is handling."""
        self._handle(event, self._loop.time())

    def _handle(self, event: Event, now: float) -> None:
        self._events.append((event, now))
        if len(self._events) > 1:
            return  # called from an effect; the loop below takes the event
        try:
            while self._events:
                event, now = self._events[0]
                for effect in self._handled(event, now):
                    self._carry_out(effect, event)
                self._events.popleft()
        except Exception as error:
            # Later events would wait for this one for ever: the node would do nothing, and its workers would go on.
            self._fail(error)
            raise
        self._timer.arm(self._agent.next_deadline())

    def _handled(self, event: Event, now: float) -> Sequence[Effect]:
        self._recorder.record(event, now)
        try:
            return self._agent.handle(event, now)
        except Exception as error:
            self._fail(self._recorder.explain(error, crashes(os.environ)))
            raise
