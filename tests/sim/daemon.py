"""coordinatord in the simulated world: the real machine, journal and database, in a shell like `server/driver.py`.

It can be killed at every point of a commit (`CrashPoint`), stopped and woken, and its disk can fail (`disk`).
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import TYPE_CHECKING

from coordinatord.core.effects import Answer, Effect, Refuse, ReportDegraded, Send
from coordinatord.core.events import (
    AdminRequested,
    Connected,
    Disconnected,
    Event,
    PolicyChanged,
    Reported,
    StoreFailed,
    StoreRecovered,
    Tick,
)
from coordinatord.core.journal import Decided, Journal
from coordinatord.core.machine import Coordinator
from coordinatord.core.policy import Policy
from coordinatord.core.values.admin_requests import Request
from coordinatord.core.values.records import Record
from coordinatord.protocol.messages import Join, Observed
from coordinatord.server.driver import PATIENCE_S, RETRY_S
from coordinatord.store.interface import Entry, StoreError
from tests.sim.disk import Disk, Fault
from tests.sim.event_queue import Alarm, Clock
from tests.sim.network import DOWN, Said, Session
from tests.sim.standstills import Looks

if TYPE_CHECKING:  # the world imports its daemon
    from tests.sim.host import Host
    from tests.sim.world import World


OWN_ADDRESS = "10.255.0.1"


class CrashPoint(StrEnum):
    """Where in a commit the daemon is killed."""

    BEFORE = "before its records are durable"
    AFTER = "when its records are durable and no node has received any"
    AMONG = "when some nodes have received theirs"


class Daemon:
    """One coordinatord after another, on one disk."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._queue = world.queue
        self.disk = Disk()
        self.clock = Clock(world.queue)
        self.host_up = True
        """Whether the host is there to answer that the port is closed."""
        self.wall_offset = 1.7e9
        """The reading of its host's wall clock at the time 0: it may step at any time."""
        self.life = 0
        self.up = False
        self.started_at = 0.0
        self.machine: Coordinator
        self._journal: Journal
        self._writing = 0
        """The number of the present attempt to write; 0 while there is none."""
        self._attempts = 0
        self._decided: tuple[Decided, ...] = ()
        """What is being written."""
        self._alarm: Alarm
        self._looks: Looks
        self._ages_s: dict[tuple[int, str, int], float] = {}
        """How old each process was at its last join, by life of the coordinator, node and incarnation."""
        self._sessions: dict[int, Session] = {}
        self._numbers = 0
        self._claims = 10**9
        """The last session of another token's bearer."""
        self._asked = 0
        """The last request of an operator, numbered downward."""
        self._asking: dict[int, tuple[Request, str | None]] = {}
        """The requests in progress, with the run that was on then."""
        self._asleep: list[Event] | None = None
        """The events that it has not read yet, while it is stopped."""
        self._knocking: list[Session] = []
        self._doom: CrashPoint | None = None
        self._doomed_with: type[Record] = Record

    # Life and death

    def start(self) -> None:
        """Start it, if it is down. While its disk cannot be written it gives up and is started again each second."""
        if self.up:
            return
        if self.disk.fault is not None:
            self._queue.after(RETRY_S, self.start)
            return
        world = self._world
        self.life += 1
        self.up = self.host_up = True
        self.clock = Clock(self._queue, world.chance.uniform(0.0, 1e5), world.draw_rate())
        self.started_at = self._queue.now
        self.machine = Coordinator(world.scenario.policy, f"life{self.life}")
        self._journal, self._writing, self._doom, self._asleep = Journal(), 0, None, None
        self._knocking = []
        machine, life = self.machine, self.life
        self._sessions = {}
        self._looks = Looks(world, lambda looked: self.take(looked, life), self._sessions)
        self._alarm = Alarm(self._queue, self.clock, machine.next_deadline, lambda: self._ring(machine))
        entries = self.disk.load()
        now, wall_now = self.clock.read(), self.wall
        past = [(now - max(0.0, wall_now - entry.at), entry.record) for entry in entries]  # as `server/app.py` does it
        if past:
            self.machine.restore(past, now, {host.token for host in world.hosts.values()})
        world.trace.note("coordinatord starts, life %d, with %d records", self.life, len(entries))
        world.invariants.restored(self.machine, past)
        self._alarm.arm()

    def crash(self, *, host: bool = False) -> None:
        """Kill it; with its `host`, nothing is there to close its connections. What is being written may be written."""
        if not self.up:
            return
        world = self._world
        if self._writing and self.disk.fault in {None, Fault.HANGS} and world.chance.random() < 0.5:
            self._make_durable()
        world.trace.note("coordinatord is killed%s", " with its host" if host else "")
        self.up, self.host_up = False, not host
        sessions, self._sessions = self._sessions, {}
        for session in [*sessions.values(), *self._knocking]:
            world.wires.lose_coordinator(session, notified=not host)
        self._knocking = []
        world.invariants.crashed()
        world.touch()

    def doom(self, point: CrashPoint, record: type[Record] = Record) -> None:
        """Have it killed at its next commit, or the next one that has a record of some type."""
        if self.up:
            self._doom, self._doomed_with = point, record

    def set_store_back(self, copy: bytes) -> None:
        """Kill it, and put an old copy of its store in place: what it sent since is forgotten."""
        self.crash()
        self.disk.set_back(copy)
        self._world.trace.note("the store is set back")
        self._world.invariants.set_back([entry.record for entry in self.disk.load()], self.clock.read())

    def spare(self) -> None:
        """Take back that it is to be killed."""
        self._doom = None

    def pause(self) -> None:
        """Stop its process, as with SIGSTOP, or as a host does that swaps."""
        if self.up and self._asleep is None:
            self._world.trace.note("coordinatord is stopped")
            self._asleep = []
            self._world.touch()

    def wake(self) -> None:
        """Resume it; its timer may come before or after the messages that arrived meanwhile."""
        if self.up and self._asleep is not None:
            self._world.trace.note("coordinatord goes on")
            unread, self._asleep = self._asleep, None
            life = self.life
            if self._world.chance.random() < 0.5:
                unread.insert(0, Tick())
            for event in unread:
                if self.life == life and self.up:
                    self._handle(event)
            self._alarm.arm()
            knocking, self._knocking = self._knocking, []
            for session in knocking:
                self._world.wires.welcome(session, self.life)
            self._world.touch()

    def ask(self, request: Request) -> None:
        """Have an operator send a request; if the daemon is away, nothing follows."""
        if self.up and self._asleep is None:
            self._asked -= 1
            run = self.machine.jobs.get(request.target)
            self._asking[self._asked] = request, None if run is None else run.id
            self._world.trace.note("operator asks for %s", request)
            self._submit(AdminRequested(self._asked, request))

    def change_policy(self, policy: Policy) -> None:
        """Have it read other settings, as on SIGHUP; if the daemon is away, nothing follows."""
        if self.up and self._asleep is None:
            self._world.trace.note("the settings are now %s", policy)
            self._submit(PolicyChanged(policy))

    def take(self, event: Event, life: int) -> None:
        """Have it handle what its shell has found out in one of its lives."""
        if self.up and self.life == life:
            self._submit(event)

    @property
    def writing(self) -> bool:
        """Whether something is not durable yet."""
        return self._writing != 0

    @property
    def paused(self) -> bool:
        """Whether it is stopped."""
        return self._asleep is not None

    @property
    def wall(self) -> float:
        """What its host's clock on the wall shows."""
        return self.wall_offset + self._queue.time

    @property
    def idle(self) -> bool:
        """Whether it is up and well, and all that it decided is durable."""
        well = self.disk.fault is None and self._doom is None and self.machine.store_error is None
        return self.up and well and not self._writing and self._asleep is None and not self._knocking

    # Events in

    def knock(self, session: Session) -> None:
        """Answer an attempt to connect, or let it wait."""
        if self._asleep is None:
            self._world.wires.welcome(session, self.life)
        else:
            self._knocking.append(session)

    def receive(self, session: Session, said: Said | None) -> None:
        """Read a message of a connection."""
        if not self.up or session.life != self.life:
            if self.host_up and said is not None:
                self._world.wires.lose_coordinator(session, notified=True)  # the kernel knows no such connection
            return
        if isinstance(said, Join):
            self._numbers += 1
            session.number = self._numbers
            self._sessions[session.number] = session
            self._world.invariants.joined(said)
            self._world.trace.note("%s joins, session %d, round %d", said.node, session.number, said.observed.round)
            self._submit(Connected(session.number, said, session.host.address, OWN_ADDRESS, session.host.token))
        elif session.number in self._sessions:
            if isinstance(said, Observed):
                self._submit(Reported(session.number, said))
            else:
                del self._sessions[session.number]
                self._world.trace.note("session %d of %s has ended", session.number, session.host.name)
                self._submit(Disconnected(session.number))

    def claim(self, join: Join, token: str) -> None:
        """Read the `Join` of another token's bearer, whom no host of this world is, and nobody answers."""
        self._claims += 1
        claim = Connected(self._claims, join, OWN_ADDRESS, OWN_ADDRESS, token)
        identities = self._world.invariants.identities
        before = identities.standing(self.machine)
        batch = self.machine.handle(claim, self.clock.read())
        identities.judge_claim(claim, before, batch)
        self._alarm.arm()
        self._release(self._journal.take(batch, self.clock.read()))

    def revoke(self, host: Host) -> None:
        """Have the token of a host's node revoked: its session ends."""
        numbers = [number for number, session in self._sessions.items() if session.host is host]
        for number in numbers:
            self._world.trace.note("the token of %s is revoked", host.name)
            self._world.wires.send(self._sessions.pop(number), DOWN, None)
            self._submit(Disconnected(number, revoked=True))

    def _ring(self, machine: Coordinator) -> None:
        if self.up and self.machine is machine:
            self._submit(Tick())

    def _submit(self, event: Event) -> None:
        if self._asleep is not None:
            if not isinstance(event, Tick):
                self._asleep.append(event)
            return
        self._handle(event)

    def _is_overtaken(self, event: Event) -> bool:
        """Whether a join comes after one that its process sent later. It tells nothing, and is to be refused."""
        if not isinstance(event, Connected) or event.join.age_s is None:
            return False
        key, age_s = (self.life, event.join.node, event.join.incarnation), event.join.age_s
        self._ages_s[key] = max(age_s, self._ages_s.get(key, 0.0))
        return age_s < self._ages_s[key]

    def _handle(self, event: Event) -> None:
        if not self._is_overtaken(event):
            self._world.invariants.hears(event)
        batch = self.machine.handle(event, self.clock.read())
        self._alarm.arm()
        for look in batch.looks:
            self._looks.begin(look)
        if batch.records:
            self._world.invariants.decided(batch.records)
            self._world.touch()
        self._release(self._journal.take(batch, self.clock.read()))
        if batch.records and not self._writing and self.up:
            self._write_next()

    # Records out

    def _write_next(self) -> None:
        self._decided = self._journal.begin()
        if self._decided:
            self._try_to_write()
        else:
            self._writing = 0
            self._world.invariants.settled(self.machine)

    def _try_to_write(self) -> None:
        self._attempts += 1
        self._writing = self._attempts
        self._queue.after(PATIENCE_S, self._lose_patience, self._writing)
        takes = self._world.chance.random() * self._world.scenario.commit_s
        self._queue.after(takes, self._written, self._writing)

    def _lose_patience(self, attempt: int) -> None:
        if self.up and self._writing == attempt:
            self._store_failed(f"the disk has not answered for {PATIENCE_S:g} s")

    def _written(self, attempt: int) -> None:
        if not self.up or self._writing != attempt:
            return
        if self.disk.fault is Fault.HANGS or self.paused:
            self._queue.after(0.1, self._written, attempt)
            return
        doom = self._doom if any(isinstance(record, self._doomed_with) for _, record in self._decided) else None
        if doom is CrashPoint.BEFORE:
            self._die_of(doom)
            return
        try:
            self._make_durable()
        except StoreError as error:
            self._writing = self._attempts = self._attempts + 1
            self._queue.after(RETRY_S, self._retry, self._writing)
            self._store_failed(str(error))
            return
        if doom is CrashPoint.AFTER:
            self._die_of(doom)
            return
        effects = self._journal.finish()
        if doom is CrashPoint.AMONG:
            self._release(effects[: self._world.chance.randint(0, len(effects))])
            self._die_of(doom)
            return
        self._release(effects)
        if self.machine.store_error is not None:
            self._world.trace.note("coordinatord can record again")
            self._handle(StoreRecovered())
        self._write_next()

    def _retry(self, attempt: int) -> None:
        if self.up and self._writing == attempt:
            self._try_to_write()

    def _make_durable(self) -> None:
        began_at = self.wall - self.clock.read()
        self.disk.append([Entry(began_at + at, record) for at, record in self._decided])
        self._world.trace.records("durable", [record for _, record in self._decided])
        self._world.invariants.durable(self._decided)

    def _die_of(self, point: CrashPoint) -> None:
        self._writing = 0
        self._world.trace.note("coordinatord dies %s", point)
        self.crash()

    def _store_failed(self, why: str) -> None:
        if self.machine.store_error != why:
            self._world.trace.note("coordinatord decides nothing: %s", why)
            self._submit(StoreFailed(why))

    # Effects out

    def _release(self, effects: Iterable[Effect]) -> None:
        wires = self._world.wires
        for effect in effects:
            if isinstance(effect, Answer):
                self._world.trace.note("operator is answered: %s: %s", effect.result, effect.text)
                self._world.invariants.answered(*self._asking.pop(effect.session), effect)
                continue
            session = self._sessions.get(effect.session)
            if session is None:
                continue
            if isinstance(effect, Send | ReportDegraded):
                self._world.invariants.sent(session, effect.message)
                wires.send(session, DOWN, effect.message)
                continue
            if isinstance(effect, Refuse):
                self._world.invariants.refused(session, effect.message)
                wires.send(session, DOWN, effect.message)
            del self._sessions[effect.session]
            wires.send(session, DOWN, None)
            self._queue.after(0.0, self._closed, self.life, effect.session)

    def _closed(self, life: int, number: int) -> None:
        """Handle the shell's notice that its end of a session is closed."""
        if self.up and self.life == life:
            self._submit(Disconnected(number))
