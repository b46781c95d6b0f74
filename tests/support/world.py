"""A world in a box: the real coordinator and real agents over a simulated network, processes and clock, from one seed.

`World` is the clock and the wires, `Host` is where one node lives; what must always be true is in `laws`, what goes
wrong is in `faults`. Nothing here waits for real time, and the same seed gives the same history.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count

from coordinatord.core.effects import Close, Refuse, Send
from coordinatord.core.events import Connected, Disconnected, Event, Reported, Tick
from coordinatord.core.machine import Coordinator
from coordinatord.core.policy import Policy
from coordinatord.wire.messages import Desired, Join, Observed, Refused, Spec
from tests.support.host import Host
from tests.support.laws import Laws

Act = Callable[[], object]

OUTAGE_GRACE_S = 20.0
"""As `SETTINGS` of the hosts have it; shorter than in life, so that a history soon comes to its end."""


@dataclass(eq=False)
class Connection:
    """One session between a host and the coordinator, which keeps the order of what is sent each way."""

    number: int
    host: Host
    incarnation: int
    open_at_host: bool = True
    open_at_coordinator: bool = False
    severed: bool = False
    arrives: dict[str, float] = field(default_factory=lambda: {"up": 0.0, "down": 0.0})
    """When the last thing that was sent in each direction arrives."""
    held: list[Act] = field(default_factory=list)
    """What waits for the network to be healed."""


class World:
    """Everything there is, and the order in which it happens."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)  # noqa: S311 - repeatable on purpose
        self.now = 0.0
        self._agenda: list[tuple[float, int, Act]] = []
        self._order = count()
        self._lives = count(1)
        self.coordinator = self._new_coordinator()
        self._asleep: list[Event] | None = None
        """What the coordinator has not read yet, while it is asleep."""
        self._alarm = 0
        self.connections: dict[int, Connection] = {}
        self._numbers = count(1)
        nodes_min = self.chance.randint(1, 3)
        self.spec = Spec(nodes_min, nodes_min + self.chance.randint(0, 2), max_restarts=self.chance.choice([0, 1, 5]))
        self.work_s = self.chance.uniform(8.0, 40.0)
        """How long a round must run without a fault for the training to be done."""
        self.laws = Laws(self)
        names = [f"n{number}" for number in range(1, nodes_min + self.chance.randint(1, 3))]
        self.hosts = {name: Host(self, name) for name in names}

    # Time

    def after(self, seconds: float, act: Callable[..., object], *arguments: object) -> None:
        """Let something happen later."""
        item: tuple[float, int, Act] = (self.now + seconds, next(self._order), partial(act, *arguments))
        heapq.heappush(self._agenda, item)

    def between(self, least: float, most: float) -> float:
        """Draw a duration."""
        return self.chance.uniform(least, most)

    def run_until(self, end: float, done: Callable[[], bool] = lambda: False) -> None:
        """Let everything happen up to a time, or until `done`."""
        while self._agenda and self._agenda[0][0] <= end and not done():
            self.now, _, act = heapq.heappop(self._agenda)
            act()

    # The coordinator

    def submit(self, event: Event) -> None:
        """Let the coordinator handle an event, and carry out what it wants."""
        if self._asleep is not None:
            self._asleep.append(event)
            return
        batch = self.coordinator.handle(event, self.now)
        self.laws.judge(batch.records)
        for effect in batch.effects:
            connection = self.connections[effect.session]
            match effect:
                case Send():
                    self._send_down(connection, effect.message)
                case Refuse():
                    self._send_down(connection, effect.message)
                    self._close_at_coordinator(connection)
                case Close():
                    self._close_at_coordinator(connection)
        self._arm()

    def stall(self, seconds: float) -> None:
        """Stop the coordinator's process for a while; when it wakes, its timer comes before what it was sent."""
        if self._asleep is None:
            self._asleep = [Tick()]
            self.after(seconds, self._wake)

    def restart(self) -> None:
        """Kill the coordinator and start another, which remembers nothing."""
        self.coordinator, self._asleep = self._new_coordinator(), None
        for connection in self.connections.values():
            if connection.open_at_coordinator:
                connection.open_at_coordinator = False
                self._carry(connection, "down", connection.host.session_ended, connection)
        self._arm()

    def _wake(self) -> None:
        unread, self._asleep = self._asleep or [], None
        for event in unread:
            self.submit(event)

    def _new_coordinator(self) -> Coordinator:
        policy = Policy(outage_grace_s=OUTAGE_GRACE_S, stop_limit_s=5.0)
        return Coordinator(policy, f"life-{next(self._lives)}")

    def _arm(self) -> None:
        self._alarm += 1
        due = self.coordinator.next_deadline()
        if due is not None:
            self.after(max(0.0, due - self.now), self._ring, self._alarm)

    def _ring(self, alarm: int) -> None:
        if alarm == self._alarm:
            self.submit(Tick())

    # The network

    def connect(self, host: Host, join: Join) -> Connection:
        """Open a session, of which the coordinator hears a moment later."""
        connection = Connection(next(self._numbers), host, join.incarnation)
        self.connections[connection.number] = connection
        self._carry(connection, "up", self._accept, connection, join)
        return connection

    def send_up(self, connection: Connection, observed: Observed) -> None:
        """Carry a report to the coordinator."""
        self._carry(connection, "up", self._receive, connection, observed)

    def close_at_host(self, connection: Connection) -> None:
        """End a session from the host's side, or because its process died; the coordinator sees it close."""
        if connection.open_at_host:
            connection.open_at_host = False
            self._carry(connection, "up", self._closed_at_coordinator, connection)

    def sever(self, connection: Connection) -> None:
        """Let nothing arrive any more, as when a host loses its power: what was on its way is lost with it."""
        connection.open_at_host, connection.severed = False, True
        connection.held.clear()

    def heal(self, host: Host) -> None:
        """Let everything through again that waited for a host's network."""
        host.cut = False
        for connection in self.connections.values():
            if connection.host is host:
                held, connection.held = connection.held, []
                for act in held:
                    act()

    def _carry(self, connection: Connection, way: str, arrive: Callable[..., object], *arguments: object) -> None:
        at = max(self.now + self.between(0.0002, 0.02), connection.arrives[way])
        connection.arrives[way] = at
        self.after(at - self.now, self._arrive, connection, partial(arrive, *arguments))

    def _arrive(self, connection: Connection, arrive: Act) -> None:
        if connection.severed:
            return
        if connection.host.cut or connection.held:
            connection.held.append(arrive)
        else:
            arrive()

    def _send_down(self, connection: Connection, said: Desired | Refused) -> None:
        if connection.open_at_coordinator:
            self._carry(connection, "down", self._hear, connection, said)

    def _hear(self, connection: Connection, said: Desired | Refused) -> None:
        if connection.open_at_host:
            connection.host.hear(said)

    def _accept(self, connection: Connection, join: Join) -> None:
        connection.open_at_coordinator = True
        address = f"10.0.0.{join.node.removeprefix('n')}"
        self.submit(Connected(connection.number, join, address, "10.0.0.254"))

    def _receive(self, connection: Connection, observed: Observed) -> None:
        if connection.open_at_coordinator:
            self.submit(Reported(connection.number, observed))

    def _closed_at_coordinator(self, connection: Connection) -> None:
        if connection.open_at_coordinator:
            connection.open_at_coordinator = False
            self.submit(Disconnected(connection.number))

    def _close_at_coordinator(self, connection: Connection) -> None:
        if connection.open_at_coordinator:
            self._carry(connection, "down", connection.host.session_ended, connection)
            # The shell says so itself once its end of the session is closed.
            self.after(0.0, self._closed_at_coordinator, connection)
