"""The single writer: feeds events to the machine, makes its records durable, then carries out its effects.

The `Journal` decides which effects wait for which records. This module writes, decides when a write takes too long, and
tries a failed one again: until it succeeds the machine knows that it must not decide.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import asdict

from coordinatord.core.journal import Journal
from coordinatord.core.machine import Coordinator
from coordinatord.core.rounds.effects import Effect, Look
from coordinatord.core.rounds.events import Event, StoreFailed, StoreRecovered, Tick
from coordinatord.core.rounds.state.run import Run
from coordinatord.core.rounds.values.records import RoundFormed
from coordinatord.runtime.flight_recorder import FlightRecorder, Subject
from coordinatord.runtime.logs import fields
from coordinatord.runtime.tasks import Tasks
from coordinatord.runtime.timers import DeadlineTimer
from coordinatord.server.counters import Counters
from coordinatord.store.interface import OVER, Entry, LeadershipLostError, Store, StoreError

PIECE = 128
"""Effects that are carried out without a pause: some 4 ms."""


class PacedEffects:
    """Carries out effects in turns, by session: each session has at most one that waits, the newest.

    A round of 10,000 nodes is 10,000 messages. To pack and write one takes some 30 us, so all at once would hold up
    every heartbeat for 0.3 s. Between two pieces the event loop does what else there is to do.
    """

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


log = logging.getLogger(__name__)

PATIENCE_S = 1.0
"""The limit of a write, a hundred times the usual. After it nodes are answered as degraded, well before the five
seconds of silence after which they take a coordinator for dead."""

LOOKS = 20
"""The number of looks at the clock within that time. If the loop itself is busy, as when 10,000 nodes join, the store
is not at fault: between two looks the loop has moved each write by a step. In etcd one takes up to 11 such steps: to
a thread and back, out to a member and back."""

SHOWN_AT_ONCE = 100
"""Records that are logged and counted without a pause: some 5 ms."""

RETRY_S = 1.0
"""The pause between attempts to write: when somebody makes room on a disk, the jobs go on at once."""


Carried = TypeVar("Carried", bound=Effect | Look)

RECORDED = Subject(
    "coordinatord",
    ("coordinatord.core", "coordinatord.hints", "coordinatord.protocol"),
    code=("_handlers",),
    nodes=lambda machine: machine.sessions,
)
"""The machine as the flight recorder sees it."""


class ShownRecords:
    """The durable records, as they are shown to watchers: a piece in each turn of the loop."""

    def __init__(self) -> None:
        """Begin with the log as the only watcher."""
        self.watchers: list[Callable[[Sequence[Entry]], None]] = [_log_records]
        """Each is called with records once they are durable."""
        self._unseen: deque[Entry] = deque()
        """Durable records that the watchers have not been shown."""

    def show(self, entries: Sequence[Entry]) -> None:
        """Show durable records to the watchers, while the next write goes on."""
        is_under_way = bool(self._unseen)
        self._unseen += entries
        if not is_under_way:
            self._show_some()

    def finish(self) -> None:
        """Show all records that are left now."""
        while self._unseen:
            self._show_some()

    def _show_some(self) -> None:
        piece = [self._unseen.popleft() for _ in range(min(SHOWN_AT_ONCE, len(self._unseen)))]
        for watch in self.watchers if piece else ():
            watch(piece)
        if self._unseen:
            asyncio.get_running_loop().call_soon(self._show_some)


class RecordWriter:
    """Makes the machine's records durable: one write after the other, and a failed one again."""

    def __init__(
        self,
        machine: Coordinator,
        store: Store,
        tasks: Tasks,
        counters: Counters,
        *,
        submit: Callable[[Event], None],
        release: Callable[[Sequence[Entry], Iterable[Effect]], None],
    ) -> None:
        """Begin without records.

        `submit` lets the machine know when the store fails. `release` gets records that are durable now, and the
        effects that waited for them.
        """
        self.journal = Journal()
        self._machine = machine
        self._store = store
        self._tasks = tasks
        self._counters = counters
        self._submit = submit
        self._release = release
        self._writing = False
        self._written = asyncio.Event()
        """Set whenever the condition that `written` waits for may have changed."""

    def begin(self) -> None:
        """Write what the journal has, if this is not under way."""
        if not self._writing:
            self._writing = True
            self._tasks.spawn(self._write_all(), name="write")

    async def written(self) -> None:
        """Wait until all that the machine has decided is durable, or the store is degraded."""
        while self._writing and self._machine.store_error is None:
            self._written.clear()
            await self._written.wait()

    async def _write_all(self) -> None:
        while decided := self.journal.begin():
            # The host's clock may have been set since the daemon started, so it is read for each write.
            began_at = datetime.now(UTC).timestamp() - asyncio.get_running_loop().time()
            entries = [Entry(began_at + at, record) for at, record in decided]
            await self._write(entries)
            self._release(entries, self.journal.finish())
            if self._machine.store_error is not None:
                log.warning("records can be written again: decisions go on", extra=fields("recording_resumed"))
                self._submit(StoreRecovered())
        self._writing = False
        self._written.set()

    async def _write(self, entries: Sequence[Entry]) -> None:
        """Make records durable, and let the machine know when that fails or takes too long."""
        written = await self._try_to_write(entries)
        while not written:
            await asyncio.sleep(RETRY_S)
            written = await self._try_to_write(entries)

    async def _try_to_write(self, entries: Sequence[Entry]) -> bool:
        waiting = self._tasks.spawn(self._lose_patience(), name="wait for the store")
        try:
            with self._counters.commits.time():
                await self._store.append(entries)
        except StoreError as error:
            self._counters.store_failures += 1
            self._store_failed(str(error))
            return False
        else:
            return True
        finally:
            waiting.cancel()

    async def _lose_patience(self) -> None:
        for _ in range(LOOKS):
            await asyncio.sleep(PATIENCE_S / LOOKS)
        self._store_failed(f"the store has not answered for {PATIENCE_S:g} s")

    def _store_failed(self, error: str) -> None:
        if self._machine.store_error != error:
            text = "nothing can be recorded: no round is formed, the workers go on: %s"
            log.error(text, error, extra=fields("recording_stopped"))
            self._written.set()  # readers of durable state are answered with what is known
            self._submit(StoreFailed(error))


class Driver:
    """Runs one machine on one event loop."""

    def __init__(
        self,
        machine: Coordinator,
        store: Store,
        tasks: Tasks,
        counters: Counters,
        crashes: Path | None = None,
        may_act: Callable[[], bool] = lambda: True,
    ) -> None:
        """Drive the machine; a bug of it leaves a crash file in `crashes`.

        `may_act` returns whether this coordinator still is the one that decides; once it is not, nothing is sent.
        """
        self.machine = machine
        self._carry_out: dict[type, Callable[[Any], None]] = {}
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()  # kept, since to ask for it costs a system call for each heartbeat
        self._timer = DeadlineTimer(self._loop, lambda now: self._handle(Tick(), now))
        self._effects = PacedEffects(self._release, may_act)
        self._record_writer = RecordWriter(
            machine, store, tasks, counters, submit=self.submit, release=self._release_durable
        )
        self._recorder = FlightRecorder(RECORDED, machine)
        self._crashes = crashes
        self.may_act = may_act
        """Whether this coordinator still is the one that decides."""
        self._closed = False
        self.shown = ShownRecords()

    @property
    def now(self) -> float:
        """The machine's clock, in seconds."""
        return self._loop.time()

    def on(self, kind: type[Carried], carry_out: Callable[[Carried], None]) -> None:
        """Register what carries out effects of one kind; it must not wait for anything."""
        self._carry_out[kind] = carry_out

    def start(self) -> None:
        """Begin to keep the machine's deadlines."""
        self._timer.arm(self.machine.next_deadline())

    def submit(self, event: Event, size: int = 0) -> None:
        """Let the machine handle an event now, from a message of `size` bytes if it came in one.

        After `close`, nothing happens.
        """
        if not self._closed:
            self._handle(event, self.now, size)

    def close(self) -> None:
        """Stop deciding: sessions that end because the daemon ends mean nothing about their nodes."""
        self._closed = True
        self._timer.arm(None)
        self.shown.finish()

    async def written(self) -> None:
        """Wait until all that the machine has decided is durable, or the store is degraded."""
        await self._record_writer.written()

    async def written_run(self, job: str) -> Run | None:
        """Return the live or last run of a job, as it is once all decisions are durable; None if there is none."""
        await self.written()
        return self.machine.jobs.get(job)

    def _handle(self, event: Event, now: float, size: int = 0) -> None:
        if not self.may_act():
            self._tasks.fail(LeadershipLostError(OVER))
            return
        self._recorder.record(event, now, size)
        try:
            batch = self.machine.handle(event, now)
            self._timer.arm(self.machine.next_deadline())
            self._effects.put(self._record_writer.journal.take(batch, now))
            for look in batch.looks:
                self._carry_out[Look](look)
        except Exception as error:
            # It is a bug: the state can no longer be trusted, so the daemon ends instead of deciding by it.
            self._tasks.fail(self._recorder.explain(error, self._crashes))
            raise
        if batch.records:
            self._record_writer.begin()

    def _release_durable(self, entries: Sequence[Entry], effects: Iterable[Effect]) -> None:
        """Carry out the effects that waited for records, and show the records."""
        if not self.may_act():
            raise LeadershipLostError(OVER)
        self._effects.put_many(effects)
        self.shown.show(entries)

    def _release(self, effect: Effect) -> None:
        self._carry_out[type(effect)](effect)


def _log_records(entries: Sequence[Entry]) -> None:
    for record in (entry.record for entry in entries):
        facts = asdict(record)
        if isinstance(record, RoundFormed):
            facts |= {"nodes": len(record.nodes), "workers": sum(ranks.workers for ranks in record.nodes)}
        shown = facts.keys() - {"job", "run", "reason"}
        plain = {name: value for name, value in facts.items() if name in shown and isinstance(value, str | int | float)}
        names = fields("_".join(record.kind_words()), job=record.job, run=record.run, **plain)
        log.info("%s: %s", " ".join(record.kind_words()), record.reason, extra=names)


JOB_COST = 40
"""The cost of a job as a whole, in nodes, beside its own nodes."""


async def iterate_jobs(driver: Driver, piece: int) -> AsyncIterator[Run]:
    """Yield the run of each job, as far as it is durable, with a pause after every `piece` of nodes.

    Heartbeats are answered in the pauses. Each job is read at one moment; two jobs may be read at different ones.
    """
    await driver.written()
    cost = 0
    for job in list(driver.machine.jobs):
        run = driver.machine.jobs.get(job)
        if run is None:
            continue  # it was forgotten in a pause
        yield run
        cost += JOB_COST + len(run.members)
        if cost > piece:
            cost = 0
            await asyncio.sleep(0)
            await driver.written()
