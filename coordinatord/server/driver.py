"""The single writer: passes events to the machine, makes its records durable, and then carries out its effects.

The machine (`core.machine`) decides, and does no input or output. For each event it returns *records*, which say what
has happened and outlive the daemon, and *effects*, such as messages to nodes. No node may act on a decision that a
crash could undo. So the `Journal` holds each effect back until the records that it rests on are durable.

A failed write is retried. Until one succeeds, the machine knows that the store has failed, and decides nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import asdict

from coordinatord.core.journal import Journal
from coordinatord.core.machine import Coordinator
from coordinatord.core.rounds.effects import Effect, Look, ReportDegraded
from coordinatord.core.rounds.events import Event, StoreFailed, StoreRecovered, Tick
from coordinatord.core.rounds.state.run import Run
from coordinatord.core.rounds.values.records import AGE_MAX, RoundFormed
from coordinatord.protocol.http.api import SharedStatus
from coordinatord.runtime.flight_recorder import FlightRecorder, Subject
from coordinatord.runtime.logs import fields
from coordinatord.runtime.tasks import Tasks
from coordinatord.runtime.timers import DeadlineTimer
from coordinatord.server.counters import Counters
from coordinatord.store.database_store import Store
from coordinatord.store.interface import LEASE_OVER, Entry, LeadershipLostError, StoreError

log = logging.getLogger(__name__)

WRITE_WITHIN_S = 1.0
"""How long a write may take before the store counts as failed, a hundred times the usual. Nodes then learn that the
coordinator is degraded, well before the four seconds of silence after which they look for another one."""

WRITE_CHECKS = 20
"""How many sleeps `WRITE_WITHIN_S` is divided into, each at least one turn of the event loop. A write to etcd needs up
to 11 turns. So it has enough of them even if each is slow, as when 10,000 nodes join, before the store counts as
failed."""

RETRY_S = 1.0
"""The pause between attempts to write. It is short, so that jobs continue soon after a disk has room again."""

EFFECTS_AT_ONCE = 128
"""Effects that are carried out in one turn of the event loop: some 4 ms, by which a heartbeat may be delayed."""

RECORDS_AT_ONCE = 100
"""Records that are logged and counted in one turn of the event loop: some 5 ms, for the same reason."""

NODES_AT_ONCE = 1_000
"""Nodes of jobs that are read without a pause: one to four milliseconds, by which a heartbeat may be delayed."""

JOB_COST = 40
"""Reading a job without its nodes costs as much as reading this many nodes. So at most 25 jobs are read without a
pause."""

RECORDED = Subject(
    "coordinatord",
    ("coordinatord.core", "coordinatord.hints", "coordinatord.protocol"),
    code=("_handlers",),
    nodes=lambda machine: machine.sessions,
)
"""How the flight recorder copies the machine for a crash file: without its `_handlers`, which are functions, and only
while there are few sessions, since each node makes the state larger."""


class Sharing(Struct, frozen=True):
    """How this coordinator shares its store with others. By default it is the only one."""

    may_act: Callable[[], bool] = lambda: True
    """Returns whether this coordinator still leads."""
    status: Callable[[], SharedStatus | None] = lambda: None
    """Returns the coordinators that share the store; None if there are no others."""


NOT_SHARED = Sharing()

Carried = TypeVar("Carried", bound=Effect | Look)


class Driver:
    """The only caller of one machine, on one event loop."""

    def __init__(
        self,
        machine: Coordinator,
        store: Store,
        tasks: Tasks,
        counters: Counters,
        crashes: Path | None = None,
        sharing: Sharing = NOT_SHARED,
    ) -> None:
        """Drive the machine; a bug of it leaves a crash file in the directory `crashes`.

        Once `sharing.may_act` returns False, nothing is sent.
        """
        self.machine = machine
        self._handlers: dict[type, Callable[[Any], None]] = {}
        """The functions that carry out effects, by the effect's class."""
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()  # `get_running_loop` makes a system call, too much for each heartbeat
        self._timer = DeadlineTimer(self._loop, lambda now: self._handle(Tick(), now))
        self._effects = PacedEffects(lambda effect: self._handlers[type(effect)](effect), sharing.may_act)
        self._record_writer = RecordWriter(machine, store, tasks, counters, self.submit, self._on_durable)
        self._recorder = FlightRecorder(RECORDED, machine)
        self._crashes = crashes
        self.sharing = sharing
        self._closed = False
        self.durable_records = DurableRecords()

    @property
    def now(self) -> float:
        """The machine's clock, in seconds."""
        return self._loop.time()

    def on(self, kind: type[Carried], handler: Callable[[Carried], None]) -> None:
        """Register the function that carries out effects of one class; it must not wait."""
        self._handlers[kind] = handler

    def start(self) -> None:
        """Start the timer of the machine's deadlines."""
        self._timer.arm(self.machine.next_deadline())

    def submit(self, event: Event, size: int = 0) -> None:
        """Let the machine handle an event; `size` is that of its message in bytes. After `close`, do nothing."""
        if not self._closed:
            self._handle(event, self._loop.time(), size)

    def close(self) -> None:
        """Stop deciding: the end of a session now says nothing about its node."""
        self._closed = True
        self._timer.arm(None)
        self.durable_records.flush()

    async def written(self) -> None:
        """Wait until all decisions so far are durable, or the store has failed: see `RecordWriter.written`."""
        await self._record_writer.written()

    async def written_run(self, job: str) -> Run | None:
        """Return the live or last run of a job after `written`; None if there is none."""
        await self.written()
        return self.machine.jobs.get(job)

    def _handle(self, event: Event, now: float, size: int = 0) -> None:
        if not self.sharing.may_act():
            self._tasks.fail(LeadershipLostError(LEASE_OVER))
            return
        self._recorder.record(event, now, size)
        try:
            batch = self.machine.handle(event, now)
            self._timer.arm(self.machine.next_deadline())
            self._effects.carry_out(self._record_writer.journal.add(batch, now))  # the effects that wait for nothing
            for look in batch.looks:
                self._handlers[Look](look)
        except Exception as error:
            # It is a bug: the state can no longer be trusted, so the daemon ends instead of deciding by it.
            self._tasks.fail(self._recorder.explain(error, self._crashes))
            raise
        if batch.records:
            self._record_writer.start()

    def _on_durable(self, entries: Sequence[Entry], effects: Iterable[Effect]) -> None:
        """Carry out the effects that waited for records, and pass the records to the watchers."""
        if not self.sharing.may_act():
            raise LeadershipLostError(LEASE_OVER)
        self._effects.carry_out_in_pieces(effects)
        self.durable_records.put(entries)


@dataclass(slots=True)
class RecordWriter:
    """Makes the machine's records durable, in one write at a time, and retries a failed write."""

    _machine: Coordinator
    _store: Store
    _tasks: Tasks
    _counters: Counters
    _submit: Callable[[Event], None]
    """Tells the machine when the store fails or works again."""
    _on_durable: Callable[[Sequence[Entry], Iterable[Effect]], None]
    """Gets durable records, and the effects that waited for them."""
    journal: Journal = field(default_factory=Journal)
    _is_writing: bool = False
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set whenever the condition that `written` waits for may have changed."""

    def start(self) -> None:
        """Start to write the records of the journal, unless a write is in progress."""
        if not self._is_writing:
            self._is_writing = True
            self._tasks.spawn(self._write_all(), name="write")

    async def written(self) -> None:
        """Wait until all records so far are durable, or the store has failed.

        Decisions that are made during the wait may not be durable after it: they are not waited for, since more may
        come all the time.
        """
        groups = self.journal.groups
        while self.journal.durable_groups < groups and self._machine.store_error is None:
            self._changed.clear()
            await self._changed.wait()

    async def _write_all(self) -> None:
        while decided := self.journal.begin():
            # The host's clock may have been set since the daemon started, so it is read for each write.
            loop_began_at = datetime.now(UTC).timestamp() - asyncio.get_running_loop().time()
            entries = [Entry(loop_began_at + at, record) for at, record in decided]
            while not await self._try_to_write(entries):  # noqa: ASYNC110 - no event tells that the store works
                await asyncio.sleep(RETRY_S)
            self._on_durable(entries, self.journal.finish())
            self._changed.set()
            if self._machine.store_error is not None:
                log.warning("records can be written again: decisions go on", extra=fields("recording_resumed"))
                self._submit(StoreRecovered())
        self._is_writing = False

    async def _try_to_write(self, entries: Sequence[Entry]) -> bool:
        timeout = self._tasks.spawn(self._time_out(), name="wait for the store")
        try:
            with self._counters.commits.time():
                await self._store.append(entries)
        except StoreError as error:
            self._counters.store_failures += 1
            self._on_store_error(str(error))
            return False
        else:
            return True
        finally:
            timeout.cancel()

    async def _time_out(self) -> None:
        for _ in range(WRITE_CHECKS):
            await asyncio.sleep(WRITE_WITHIN_S / WRITE_CHECKS)
        if self._machine.store_error is None:  # else the reason is known
            self._on_store_error(f"a write to {self._store.place} takes longer than {WRITE_WITHIN_S:g} s")

    def _on_store_error(self, error: str) -> None:
        if self._machine.store_error != error:
            text = "nothing can be recorded: no round is formed, the workers go on: %s"
            log.error(text, error, extra=fields("recording_stopped"))
            self._changed.set()  # `written` waits no longer: its callers see decisions that a crash would undo
            self._submit(StoreFailed(error))


class PacedEffects:
    """Carries out many effects over several turns of the event loop, so that they do not delay heartbeats.

    A round of 10,000 nodes has 10,000 messages, which take 0.3 s. At most one effect of each session waits. A newer
    effect replaces it, unless the newer one only reports that the store fails: the waiting effect says more.
    """

    def __init__(self, carry_out: Callable[[Effect], None], may_continue: Callable[[], bool]) -> None:
        """Call `carry_out` for each effect; drop the waiting ones once `may_continue` returns False."""
        self._loop = asyncio.get_running_loop()
        self._carry_out_one = carry_out
        self._may_continue = may_continue
        self._waiting: dict[int, Effect] = {}
        """The effects that wait, by session."""

    def carry_out(self, effects: Iterable[Effect]) -> None:
        """Carry out effects now; but if an effect of the same session waits, replace that one."""
        waiting = self._waiting
        for effect in effects:
            if effect.session not in waiting:
                self._carry_out_one(effect)
            elif not isinstance(effect, ReportDegraded):
                waiting[effect.session] = effect

    def carry_out_in_pieces(self, effects: Iterable[Effect]) -> None:
        """Carry out effects, a piece in each turn of the event loop: the first now, unless others wait."""
        is_scheduled = bool(self._waiting)
        self._waiting |= {effect.session: effect for effect in effects}
        if not is_scheduled:
            self._carry_out_piece()

    def _carry_out_piece(self) -> None:
        if not self._may_continue():
            self._waiting.clear()
        for session in list(islice(self._waiting, EFFECTS_AT_ONCE)):
            self._carry_out_one(self._waiting.pop(session))
        if self._waiting:
            self._loop.call_soon(self._carry_out_piece)


class DurableRecords:
    """Passes durable records to watchers, such as the log and the metrics, a piece in each turn of the event loop."""

    def __init__(self) -> None:
        """Begin with the log as the only watcher."""
        self.watchers: list[Callable[[Sequence[Entry]], None]] = [_log_records]
        self._queue: deque[Entry] = deque()

    def put(self, entries: Sequence[Entry]) -> None:
        """Pass records to the watchers, a piece in each turn of the event loop: the first now, unless others wait."""
        is_scheduled = bool(self._queue)
        self._queue += entries
        if not is_scheduled:
            self._pass_piece()

    def flush(self) -> None:
        """Pass all queued records to the watchers now."""
        while self._queue:
            self._pass_piece()

    def _pass_piece(self) -> None:
        if not self._queue:  # `flush` has passed all
            return
        piece = [self._queue.popleft() for _ in range(min(RECORDS_AT_ONCE, len(self._queue)))]
        for watch in self.watchers:
            watch(piece)
        if self._queue:
            asyncio.get_running_loop().call_soon(self._pass_piece)


def _log_records(entries: Sequence[Entry]) -> None:
    for record in (entry.record for entry in entries):
        facts = asdict(record)
        if isinstance(record, RoundFormed):
            facts |= {"nodes": len(record.nodes), "workers": sum(ranks.workers for ranks in record.nodes)}
        del facts["job"], facts["run"], facts["reason"]
        if facts.get("silent_s") == AGE_MAX:
            del facts["silent_s"]  # it is not known
        plain = {name: value for name, value in facts.items() if isinstance(value, str | int | float)}
        names = fields("_".join(record.kind_words()), job=record.job, run=record.run, **plain)
        log.info("%s: %s", " ".join(record.kind_words()), record.reason, extra=names)


async def iterate_jobs(driver: Driver) -> AsyncIterator[Run]:
    """Yield the live or last run of each job, after `written`.

    It pauses after about `NODES_AT_ONCE` nodes, so that heartbeats are answered. Jobs are thus as of different moments.
    """
    await driver.written()
    cost = 0
    for job in list(driver.machine.jobs):
        run = driver.machine.jobs.get(job)
        if run is None:
            continue  # it was forgotten in a pause
        yield run
        cost += JOB_COST + len(run.members)
        if cost > NODES_AT_ONCE:
            cost = 0
            await asyncio.sleep(0)
            await driver.written()
