"""Requests this worker's arena from nodeclient: the shared memory to which the worker saves its state.

How much a state needs is not known when training begins: most optimizers make theirs in the first step, and some states
grow. So the worker requests an arena when training begins, after the first step, and when its state outgrows the arena.
Before the first step, and when the state has outgrown the arena, training waits for the answer, `WITHIN_S` at most.
After the first step it goes on. The small state of the last step is stored with the request, and is written when the
arena has come.

The training thread calls `want`. The thread that reads from nodeclient calls `receive` or `refuse`, and then `finish`.
The keeper's `StateLock` keeps training from a new request between `receive` and `finish`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from workerlib.contract.arena import Arena
from workerlib.contract.channel_messages import Reserve
from workerlib.keeping.small_state import SmallSnapshot

LOG = logging.getLogger("workerlib.keeping")

WITHIN_S = 1.0
"""How long training waits for an answer at most. An answer takes milliseconds, unless much memory is made for it."""

SLACK = 8
"""The divisor for the slack of a generation: at first it gets an eighth more than it needs. Most states never grow."""

GROWN_SLACK = 2
"""The same for a state that has outgrown its memory, such as a history of steps, and will probably grow again. It gets
half more than it needs, so that requests become ever rarer."""


@dataclass(frozen=True, slots=True)
class WaitingState:
    """The small state that waits for memory, and its step: -1 for the state before the first step."""

    step: int
    state: SmallSnapshot


class ArenaRequest:
    """This worker's memory for kept state, and its request for more."""

    def __init__(self, send: Callable[[Reserve], None]) -> None:
        """Begin without memory. `send` sends a message to nodeclient."""
        self._send = send
        self.shard = 0, 1
        """The number of the shard that this worker saves, and how many shards there are; at first one, of all state."""
        self.arena: Arena | None = None
        self.refused = False
        """Whether no further request is made: nodeclient has no memory, or state cannot be kept any more."""
        self.answered = threading.Event()
        """Set by `finish` when the answer to the last request was handled."""
        self._waiting: WaitingState | None = None
        """Set from the request until its answer."""
        self._has_outgrown = False
        """Whether the last request was made because the big state had outgrown the arena."""

    def want(self, big: int, small: int, step: int, snapshot: SmallSnapshot) -> None:
        """Request places of `big` and `small` bytes, unless they exist, or a request is pending or was refused.

        `snapshot` is the small state of `step`. It waits for the memory, in place of that of an earlier step.
        """
        held = self.arena.sizes if self.arena is not None else None
        # `small` has room for twice `rest`, the values as JSON, so that they may grow; this step needs `rest` once.
        suffices = held is not None and held.small >= small - len(snapshot.rest) and held.generation >= big
        if suffices or self.refused:
            return
        awaited, self._waiting = self.awaited, WaitingState(step, snapshot.cloned())
        if not awaited:
            self._has_outgrown = held is not None and 0 < held.generation < big
            self.answered.clear()
            self._send(Reserve(big + big // (GROWN_SLACK if self._has_outgrown else SLACK), small, *self.shard))

    @property
    def awaited(self) -> bool:
        """Whether a request for memory has no answer yet."""
        return self._waiting is not None

    def receive(self, arena: Arena) -> WaitingState | None:
        """Record the arena from nodeclient; return the small state that has waited for it."""
        self.arena = arena
        waiting, self._waiting = self._waiting, None
        return waiting

    def finish(self) -> None:
        """Record that the answer was handled. After a refusal, nothing waits for memory any more."""
        if self.refused:
            self._waiting = None
        self.answered.set()

    def obstacle(self) -> str:
        """Return why a big state cannot be saved; empty if there is memory for it."""
        if self.arena is not None and self.arena.sizes.generation:
            return ""
        return "there is no memory for it" if self.refused else "its memory is not there yet"

    def await_growth(self) -> None:
        """Wait as `await_answer` does if the state has outgrown its arena: without memory, no step can be saved."""
        if self.awaited and self._has_outgrown:
            self.await_answer()

    def await_answer(self) -> None:
        """Wait until nodeclient has sent memory or refused it, `WITHIN_S` at most."""
        self.answered.wait(WITHIN_S)

    def refuse(self, why: str) -> None:
        """Request no memory from now on: nodeclient has none, or state cannot be kept any more."""
        if not self.refused:
            LOG.warning("the state of this worker is not kept: %s", why)
        self.refused = True
