"""A coordinator of the simulated world: the real machine and journal, in a shell like `server/driver.py`.

`Daemon` is one alone on its disk, with the real database. `etcd_coordinator` is one of several that share an etcd.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Concatenate

from coordinatord.commands.delayed_end import POLL_EVERY_S
from coordinatord.core.journal import Decided, Journal
from coordinatord.core.machine import Coordinator
from coordinatord.core.own_end import may_end_at
from coordinatord.core.rounds.effects import Answer, Batch, Effect, Refuse, ReportDegraded, Send
from coordinatord.core.rounds.events import (
    AdminRequested,
    Connected,
    Disconnected,
    Event,
    PolicyChanged,
    Reported,
    StoreFailed,
    StoreRecovered,
    Tick,
    TokensRevoked,
)
from coordinatord.core.rounds.policy import Policy
from coordinatord.core.rounds.values.admin_requests import Request
from coordinatord.core.rounds.values.records import Record
from coordinatord.protocol.fields import DEFAULT_PORT
from coordinatord.protocol.ip_addresses import Endpoint
from coordinatord.protocol.messages import Join, Observed
from coordinatord.server.driver import RETRY_S, WRITE_WITHIN_S
from coordinatord.store.interface import Entry, StoreError
from tests.sim.disk import CrashPoint, Disk, Fault
from tests.sim.event_queue import Alarm, Clock
from tests.sim.invariants.laws import Laws, LawSets, P
from tests.sim.network import DOWN, Message, Session
from tests.sim.worker_looks import Looks

if TYPE_CHECKING:  # the world imports its coordinators
    from tests.sim.host import Host
    from tests.sim.world import World


OWN_ADDRESS = "10.255.0.1"


class SimulatedCoordinator(abc.ABC):
    """One coordinatord after another, on one host."""

    def __init__(self, world: World, name: str) -> None:
        self.endpoint = Endpoint(name, DEFAULT_PORT)
        """The address at which nodes find it."""
        self._world = world
        self._queue = world.queue
        self.disk = Disk()
        self.clock = Clock(world.queue)
        self.host_up = True
        """Whether the host is up, and answers that the port is closed."""
        self.is_cut = False
        """Whether no node can reach it, nor it any node."""
        self.wall_offset = 1.7e9
        """The reading of its host's wall clock at the time 0: it may step at any time."""
        self.life = 0
        """The number of its present or last life as the one that decides; no two lives of coordinators have the
        same."""
        self.up = False
        """Whether it decides, or would if its process were not stopped."""
        self.started_at = 0.0
        self.machine = Coordinator(world.scenario.policy, "")
        self._journal = Journal()
        self._writing = 0
        """The number of the present attempt to write; 0 while there is none."""
        self._attempts = 0
        self._decided: tuple[Decided, ...] = ()
        """The records that are being written."""
        self._entries: Sequence[Entry] = ()
        """The same records with their times by the wall clock. It is read once, for all attempts to write them."""
        self.stamped_with = self.wall_offset
        """The offset of the wall clock at that reading."""
        self._alarm: Alarm
        self._looks: Looks
        self._ages_s: dict[tuple[int, str, int], float] = {}
        """The greatest age in the joins of each process, keyed by (life, node, incarnation)."""
        self._sessions: dict[int, Session] = {}
        self._numbers = 0
        self._last_request = 0
        """The number of the last request of an operator; they are numbered downward."""
        self._requests: dict[int, tuple[Request, str | None]] = {}
        """The requests in progress, each with the id of the run at its time."""
        self._unread: list[Event] | None = None
        """The events that wait while its process is stopped; None while it is not."""
        self._connecting: list[Session] = []
        self._doom: CrashPoint | None = None
        self._doomed_with: type[Record] = Record

    # Life and death

    @abc.abstractmethod
    def start(self) -> None:
        """Start the process, if it is down."""

    @abc.abstractmethod
    def crash(self, *, host: bool = False) -> None:
        """Kill the process; with its `host`, its connections are not closed."""

    def end(self) -> None:
        """Ask the process to end, as by SIGTERM."""
        self._world.trace.note("coordinatord is asked to end")
        self._end_when_through(self.life, self.clock.read())

    def _end_when_through(self, life: int, asked_at: float) -> None:
        if self.up and self.life == life:
            if may_end_at(self.machine.registry.runs.values(), asked_at) <= self.clock.read():
                self.crash()
            else:
                self._queue.after(POLL_EVERY_S, self._end_when_through, life, asked_at)

    def _begin_life(self) -> None:
        """Begin a life with the records on the disk."""
        world = self._world
        world.lives += 1
        self.life, self.up, self.started_at = world.lives, True, self._queue.now
        self.machine = Coordinator(world.scenario.policy, f"life{self.life}")
        self._journal, self._writing, self._doom, self._unread = Journal(), 0, None, None
        machine, life = self.machine, self.life
        self._sessions = {}
        self._looks = Looks(world, lambda looked: self.take(looked, life), self._sessions)
        self._alarm = Alarm(self._queue, self.clock, machine.next_deadline, lambda: self._ring(machine))
        entries = self.disk.load()
        now, wall_now = self.clock.read(), self.wall  # as `server/app.py` does it
        past = [(now - max(0.0, wall_now - entry.at), entry.record) for entry in entries]
        if past:
            self.machine.restore(past, now, {host.token for host in world.hosts.values()})
        world.trace.note("coordinatord starts, life %d, with %d records", self.life, len(entries))
        world.tell(Laws.restored, self.machine, past)
        self._alarm.arm()

    def _end_life(self, *, notified: bool) -> None:
        """Decide no more, and lose all connections; with `notified`, the host closes them."""
        self.up = False
        sessions, self._sessions = self._sessions, {}
        for session in [*sessions.values(), *self._connecting]:
            self._world.wires.lose_coordinator(session, notified=notified)
        self._connecting = []
        self._tell(Laws.crashed)
        self._world.touch()

    def set_store_back(self, copy: bytes) -> None:
        """Kill the process, and replace its store by an old copy: later records are forgotten."""
        self.crash()
        self.disk.set_back(copy)
        self._world.trace.note("the store is set back")
        self._world.tell(Laws.set_back, [entry.record for entry in self.disk.load()], self.clock.read())

    def doom(self, point: CrashPoint, record: type[Record] = Record) -> None:
        """Let the process be killed at its next commit that has a record of this type."""
        if self.up:
            self._doom, self._doomed_with = point, record

    def _is_doomed(self, point: CrashPoint) -> bool:
        return self._doom is point and any(isinstance(record, self._doomed_with) for _, record in self._decided)

    def _dies(self, point: CrashPoint) -> bool:
        """Kill the process at this point of a commit if it is doomed; return whether it was."""
        if not self._is_doomed(point):
            return False
        self._writing = 0
        self._world.trace.note("coordinatord dies %s", point)
        self.crash()
        return True

    def spare(self) -> None:
        """Undo `doom`."""
        self._doom = None

    def pause(self) -> None:
        """Stop the process, as with SIGSTOP or on a host that swaps."""
        if self.up and self._unread is None:
            self._world.trace.note("coordinatord is stopped")
            self._unread = []
            self._world.touch()

    def wake(self) -> None:
        """Resume the process; its timer may come before or after the messages that arrived meanwhile."""
        if self.up and self._unread is not None:
            self._world.trace.note("coordinatord goes on")
            unread, self._unread = self._unread, None
            life = self.life
            if self._world.chance.random() < 0.5:
                unread.insert(0, Tick())
            if not self._writing:  # the store's answer was read first
                unread = [event for event in unread if not isinstance(event, StoreFailed)]
            for event in unread:
                if self.life == life and self.up:
                    self._handle(event)
            self._alarm.arm()
            self._welcome_all()
            self._world.touch()

    def heal(self) -> None:
        """Let nodes reach it again."""
        if self.is_cut:
            self.is_cut = False
            self._world.wires.heal(self)

    def _welcome_all(self) -> None:
        connecting, self._connecting = self._connecting, []
        for session in connecting:
            self._world.wires.welcome(session, self.life)

    def ask(self, request: Request) -> None:
        """Handle a request of an operator; do nothing if the daemon is away."""
        if self.up and self._unread is None:
            self._last_request -= 1
            run = self.machine.jobs.get(request.target)
            self._requests[self._last_request] = request, None if run is None else run.id
            self._world.trace.note("operator asks for %s", request)
            self._submit(AdminRequested(self._last_request, request))

    def change_policy(self, policy: Policy) -> None:
        """Change the settings, as on SIGHUP; do nothing if the daemon is away."""
        if self.up and self._unread is None:
            self._world.trace.note("the settings are now %s", policy)
            self._submit(PolicyChanged(policy))

    def take(self, event: Event, life: int) -> None:
        """Handle an event that its shell made in one of its lives."""
        if self.up and self.life == life:
            self._submit(event)

    @property
    def writing(self) -> bool:
        """Whether any decision is not durable yet."""
        return self._writing != 0

    @property
    def paused(self) -> bool:
        """Whether its process is stopped."""
        return self._unread is not None

    @property
    def wall(self) -> float:
        """The reading of its host's wall clock."""
        return self.wall_offset + self._queue.time

    @property
    def idle(self) -> bool:
        """Whether it is up and well, and all that it decided is durable."""
        well = self.disk.fault is None and self._doom is None and self.machine.store_error is None
        return self.up and well and not self._writing and self._unread is None and not self._connecting

    def _tell(self, hook: Callable[Concatenate[Laws, P], None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Tell the laws that it has to keep: those of a former leader if another one decides by now."""
        world = self._world
        sets = world.invariants.sets if world.daemon is self else LawSets(world.former)
        sets.tell(hook, *args, **kwargs)

    def _tell_durable(self, decided: Sequence[Decided]) -> None:
        for at, record in decided:
            self._tell(Laws.durable, record)
            self._tell(Laws.recorded, at, record)

    # Events in

    @property
    def listens(self) -> bool:
        """Whether a process accepts connections."""
        return self.up

    def accept(self, session: Session) -> None:
        """Answer an attempt to connect, or let it wait."""
        if self._unread is None:
            self._world.wires.welcome(session, self.life)
        else:
            self._connecting.append(session)

    def receive(self, session: Session, message: Message | None) -> None:
        """Handle a message of a connection; None is its end."""
        if not self.up or session.life != self.life:
            if self.host_up and message is not None:
                self._world.wires.lose_coordinator(session, notified=True)  # the kernel knows no such connection
            return
        if isinstance(message, Join):
            self._numbers += 1
            session.number = self._numbers
            self._sessions[session.number] = session
            self._tell(Laws.joined, message)
            self._world.trace.note(
                "%s joins, session %d, round %d", message.node, session.number, message.observed.round
            )
            self._submit(Connected(session.number, message, session.host.address, OWN_ADDRESS, session.host.token))
        elif session.number in self._sessions:
            if isinstance(message, Observed):
                self._submit(Reported(session.number, message))
            else:
                del self._sessions[session.number]
                self._world.trace.note("session %d of %s has ended", session.number, session.host.name)
                self._submit(Disconnected(session.number))

    def revoke(self, host: Host, token: str) -> None:
        """Revoke the token that a host's node had until now: its session ends."""
        self._submit(TokensRevoked(frozenset({token})))
        numbers = [number for number, session in self._sessions.items() if session.host is host]
        for number in numbers:
            self._world.trace.note("the token of %s is revoked", host.name)
            self._world.wires.send(self._sessions.pop(number), DOWN, None)
            self._submit(Disconnected(number))

    def _ring(self, machine: Coordinator) -> None:
        if self.up and self.machine is machine:
            self._submit(Tick())

    def _submit(self, event: Event) -> None:
        if self._unread is not None:
            if not isinstance(event, Tick):
                self._unread.append(event)
            return
        self._handle(event)

    def _handle(self, event: Event) -> None:
        if not self._is_overtaken(event):
            self._tell(Laws.note_event, event)
        batch = self.machine.handle(event, self.clock.read())
        for look in batch.looks if self._world.daemon is self else ():
            self._looks.begin(look)
        if batch.records:
            self._tell(Laws.decided, batch.records)
            self._world.touch()
        self.carry_out(batch)
        if batch.records and not self._writing and self.up:
            self._write_next()

    def _is_overtaken(self, event: Event) -> bool:
        """Whether an event is a join that comes after a later one of its process, so that it has to be refused.

        A run that was opened in between has not received the later one.
        """
        if not isinstance(event, Connected) or event.join.age_s is None:
            return False
        join, run = event.join, self.machine.jobs.get(event.join.job)
        key, age_s = (self.life, join.node, join.incarnation), event.join.age_s
        self._ages_s[key] = max(age_s, self._ages_s.get(key, 0.0))
        member = None if run is None else run.members.get(join.node)
        return member is not None and member.incarnation == join.incarnation and age_s < self._ages_s[key]

    def carry_out(self, batch: Batch) -> None:
        """Release the effects that may be released, and set the alarm for the next deadline."""
        self._alarm.arm()
        self._release(self._journal.add(batch, self.clock.read()))

    # Records out

    def _write_next(self) -> None:
        self._decided = self._journal.begin()
        if self._decided:
            began_at = self.wall - self.clock.read()
            self._entries = [Entry(began_at + at, record) for at, record in self._decided]
            self.stamped_with = self.wall_offset
            self._try_to_write()
        else:
            self._writing = 0
            self._tell(Laws.settled, self.machine)

    def _try_to_write(self) -> None:
        """Try to make the decided records durable, within the usual patience."""
        self._attempts += 1
        self._writing = self._attempts
        self._queue.after(WRITE_WITHIN_S, self._lose_patience, self._writing)
        self._write()

    @abc.abstractmethod
    def _write(self) -> None:
        """Begin to make the decided records durable; `_wrote` or `_store_failed` follows."""

    def _lose_patience(self, attempt: int) -> None:
        if self.up and self._writing == attempt:
            self._store_failed(f"a write takes longer than {WRITE_WITHIN_S:g} s")

    def _wrote(self) -> None:
        """Release the effects of records that have become durable, and write the next ones."""
        if self._dies(CrashPoint.AFTER):
            return
        effects = self._journal.finish()
        if self._is_doomed(CrashPoint.AMONG):
            self._release(effects[: self._world.chance.randint(0, len(effects))])
            self._dies(CrashPoint.AMONG)
            return
        self._release(effects)
        if self.machine.store_error is not None:
            self._world.trace.note("coordinatord can record again")
            self._handle(StoreRecovered())
        self._write_next()

    def _retry(self, attempt: int) -> None:
        if self.up and self._writing == attempt:
            self._try_to_write()

    def _store_failed(self, error: str) -> None:
        if self.machine.store_error != error:
            self._world.trace.note("coordinatord decides nothing: %s", error)
            self._submit(StoreFailed(error))

    # Effects out

    def _release(self, effects: Iterable[Effect]) -> None:
        wires = self._world.wires
        for effect in effects:
            if isinstance(effect, Answer):
                self._world.trace.note("operator is answered: %s: %s", effect.result, effect.text)
                self._tell(Laws.answered, *self._requests.pop(effect.session), effect)
                continue
            session = self._sessions.get(effect.session)
            if session is None:
                continue
            if isinstance(effect, Send | ReportDegraded):
                self._tell(Laws.sent, session, effect.message)
                wires.send(session, DOWN, effect.message)
                continue
            if isinstance(effect, Refuse):
                self._tell(Laws.sent, session, effect.message)
                wires.send(session, DOWN, effect.message)
            del self._sessions[effect.session]
            wires.send(session, DOWN, None)
            self._queue.after(0.0, self._closed, self.life, effect.session)

    def _closed(self, life: int, number: int) -> None:
        """Handle the shell's notice that its end of a session is closed."""
        if self.up and self.life == life:
            self._submit(Disconnected(number))


class Daemon(SimulatedCoordinator):
    """One coordinatord after another, on one disk."""

    # Life and death

    def start(self) -> None:
        """Start the process, if it is down; while its disk cannot be written it ends, and starts again each second."""
        if self.up:
            return
        if self.disk.fault is not None:
            self._queue.after(RETRY_S, self.start)
            return
        world = self._world
        self.host_up = True
        self.clock = Clock(self._queue, world.chance.uniform(0.0, 1e5), world.draw_rate())
        self._begin_life()

    def crash(self, *, host: bool = False) -> None:
        """Kill the process; with its `host`, its connections are not closed. A commit on its way may become durable."""
        if not self.up:
            return
        world = self._world
        if self._writing and self.disk.fault in {None, Fault.HANGS} and world.chance.random() < 0.5:
            self._make_durable()
        world.trace.note("coordinatord is killed%s", " with its host" if host else "")
        self.host_up = not host
        self._end_life(notified=not host)

    # Records out

    def _write(self) -> None:
        takes = self._world.chance.random() * self._world.scenario.commit_s
        self._queue.after(takes, self._written, self._writing)

    def _written(self, attempt: int) -> None:
        if not self.up or self._writing != attempt:
            return
        if self.disk.fault is Fault.HANGS or self.paused:
            self._queue.after(0.1, self._written, attempt)
            return
        if self._dies(CrashPoint.BEFORE):
            return
        try:
            self._make_durable()
        except StoreError as error:
            self._writing = self._attempts = self._attempts + 1
            self._queue.after(RETRY_S, self._retry, self._writing)
            self._store_failed(str(error))
            return
        self._wrote()

    def _make_durable(self) -> None:
        self.disk.append(self._entries)
        self._world.trace.records("durable", [record for _, record in self._decided])
        self._tell_durable(self._decided)
