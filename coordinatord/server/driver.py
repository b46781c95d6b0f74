"""The single writer: feeds events to the machine, makes its records durable, then lets its effects out.

Persist, then speak: no node hears of anything that a crash could forget. While a commit is under way, further events
are handled and their batches queue up behind it; the next commit takes all of them at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from coordinatord.core.effects import Batch, Effect, Record, Refuse
from coordinatord.core.events import Event, Tick
from coordinatord.core.machine import Coordinator
from coordinatord.shared.logs import fields
from coordinatord.shared.tasks import Tasks
from coordinatord.shared.timer import DeadlineTimer
from coordinatord.store.interface import Store

log = logging.getLogger(__name__)


class Driver:
    """Runs one machine on one event loop."""

    def __init__(self, machine: Coordinator, store: Store, deliver: Callable[[Effect], None], tasks: Tasks) -> None:
        """`deliver` carries out one effect, without waiting for anything."""
        self.machine = machine
        self._store = store
        self._deliver = deliver
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._timer = DeadlineTimer(self._loop, lambda now: self._handle(Tick(), now))
        self._waiting: deque[Batch] = deque()
        """Batches whose effects may not happen yet, in order."""
        self._committing = False
        self._closed = False

    @property
    def now(self) -> float:
        """The clock that the machine is driven by, in seconds."""
        return self._loop.time()

    def submit(self, event: Event) -> None:
        """Let the machine handle an event now; after `close`, nothing happens."""
        if not self._closed:
            self._handle(event, self._loop.time())

    def close(self) -> None:
        """Decide nothing any more: that sessions end because the daemon ends says nothing of the nodes."""
        self._closed = True
        self._timer.arm(None)

    def _handle(self, event: Event, now: float) -> None:
        try:
            batch = self.machine.handle(event, now)
        except Exception as error:
            # A bug: its state is no longer to be trusted, so the daemon ends instead of deciding by it.
            self._tasks.fail(error)
            raise
        self._timer.arm(self.machine.next_deadline())
        if batch.records or self._waiting:
            self._waiting.append(batch)
            if not self._committing:
                self._committing = True
                self._tasks.spawn(self._commit(), name="commit")
        else:
            self._release(batch)

    async def _commit(self) -> None:
        while self._waiting:
            group = len(self._waiting)
            records = [record for batch in self._waiting for record in batch.records]
            await self._store.append(records)
            for _ in range(group):
                self._release(self._waiting.popleft())
        self._committing = False

    def _release(self, batch: Batch) -> None:
        for record in batch.records:
            _log_record(record)
        for effect in batch.effects:
            if isinstance(effect, Refuse):
                names = fields(job=effect.job, node=effect.node, code=effect.message.code)
                log.warning("refused: %s", effect.message.message, extra=names)
            self._deliver(effect)


def _log_record(record: Record) -> None:
    facts = {name: getattr(record, name) for name in record.__slots__}
    nodes = facts.pop("nodes", None)
    if nodes is not None:
        facts |= {"nodes": len(nodes), "workers": sum(facts["workers"])}
    facts.pop("outcome", None)
    names = fields(job=record.job, run=record.run, **facts)
    log.info("%s: %s", _title(type(record)), record.reason, extra=names)


def _title(kind: type[Record]) -> str:
    """Turn `RoundFormed` into 'round formed'."""
    return "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in kind.__name__).strip()
