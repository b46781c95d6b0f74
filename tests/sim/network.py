"""The network between the nodes and the coordinators: connections that deliver late, or not at all, or are torn.

A session is a TCP connection, so within it nothing is lost, repeated or put out of order. Messages on a cut network
wait, and arrive when it is healed, unless the connection is torn before. Between connections, things do get lost, late
and out of order: attempts to connect, a connection that one side takes for open, a first message that arrives when the
node has opened another connection.

The protocol claims more: any single message may be lost, repeated, late or out of order. So a *harsh* network does that
to messages within a session too, but not to a `Join`, which makes a connection a session, and not to its end.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from coordinatord.protocol.ip_addresses import Endpoint
from coordinatord.protocol.messages import Degraded, Desired, Join, Observed, Refused
from nodeclient.shell.coordinator_connection import CONNECT_WITHIN_S, REACH_WITHIN_S

if TYPE_CHECKING:  # the world imports its network
    from tests.sim.coordinator import SimulatedCoordinator
    from tests.sim.host import Host
    from tests.sim.world import World

Message = Join | Observed | Desired | Degraded | Refused
Mail = list[Message | None]
"""One message on its way; None is the end of the connection. A newer message of the same moment takes its place, as in
the real session, which has one unsent message at most."""

UNACKNOWLEDGED_S = 20.0
"""The time after which the coordinator's host gives up a connection that acknowledges nothing, as in
`server/app.py`."""


@dataclass(slots=True, eq=False)
class Session:
    """One connection of a node, from the attempt to its end, which each side sees at a time of its own."""

    host: Host
    at: SimulatedCoordinator
    """The coordinator that it leads to."""
    incarnation: int
    reached: bool = False
    """Whether the kernel of that coordinator's host has accepted the connection."""
    life: int = 0
    """The life of the coordinator that answered."""
    number: int = 0
    """The coordinator's number of the session, once it has read the `Join`."""
    established: bool = False
    """Whether the host has sent its `Join`."""
    open_at_host: bool = True
    broken: bool = False
    """Whether nothing arrives any more, either way."""
    arrives: list[float] = field(default_factory=lambda: [0.0, 0.0])
    """When the last message up, and the last one down, arrives."""
    held: tuple[list[Mail], list[Mail]] = field(default_factory=lambda: ([], []))
    """The messages that wait for the network to be healed, up and down."""
    last: list[tuple[float, Mail]] = field(default_factory=lambda: [(-1.0, []), (-1.0, [])])
    """The last message up, and the last one down, with its time."""


UP, DOWN = 0, 1


class Wires:
    """All connections."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._queue = world.queue
        self._network = world.scenario.network
        self._random = world.chance.random
        self._torn: list[Session] = []

    # Opening

    def dial(self, session: Session) -> None:
        """Try to connect; the host is notified, or gives up after a while."""
        self._queue.after(self._delay(session.host), self._arrive_at_port, session)
        if len(self._world.coordinators) > 1:
            self._queue.after(REACH_WITHIN_S, self._unreached, session)
        else:
            self._queue.after(CONNECT_WITHIN_S, self._unanswered, session)

    def _unreached(self, session: Session) -> None:
        if session.reached:
            self._queue.after(session.host._search.answer_within_s, self._unanswered, session)
        else:
            session.host.dial_failed(session, "its host does not take the connection", silent=True)

    def _unanswered(self, session: Session) -> None:
        session.host.dial_failed(session, "no answer in time", silent=True)

    def _arrive_at_port(self, session: Session) -> None:
        host = session.host
        if _is_cut(session) or not session.open_at_host:
            return
        if session.at.listens:
            session.reached = True
            session.at.accept(session)
        elif session.at.host_up:
            self._queue.after(self._delay(host), host.dial_failed, session, "connection refused")

    def redirect(self, session: Session, leader: Endpoint | None) -> None:
        """Notify the host that the coordinator stands by, with the leader if that is known."""
        self._queue.after(self._delay(session.host), self._redirected, session, leader)

    def _redirected(self, session: Session, leader: Endpoint | None) -> None:
        if not _is_cut(session) and not session.broken:
            session.host.dial_failed(session, "the coordinator stands by", leader)

    def welcome(self, session: Session, life: int) -> None:
        """Notify the host that the coordinator answers."""
        session.life = life
        self._queue.after(self._delay(session.host), self._opened, session)

    def _opened(self, session: Session) -> None:
        if not _is_cut(session) and not session.broken:
            session.host.opened(session)

    # Carrying

    def send(self, session: Session, way: int, message: Message | None) -> None:
        """Carry a message, or the end of the connection."""
        if session.broken:
            return
        now = self._queue.now
        at, mail = session.last[way]
        if at == now and mail[0] is not None and message is not None and not isinstance(mail[0], Join):
            if not isinstance(message, Degraded):
                mail[0] = message  # the other one is not sent yet
            return
        mail = [message]
        session.last[way] = (now, mail)
        arrives = now + self._delay(session.host)
        if self._network.harsh and isinstance(message, Observed | Desired | Degraded):
            if self._is_lost(session, way, mail):
                return
            in_order = self._random() >= self._network.disorder
        else:
            in_order = True
        if in_order:
            arrives = session.arrives[way] = max(arrives, session.arrives[way])
        self._queue.after(arrives - now, self._arrive, session, way, mail)

    def _is_lost(self, session: Session, way: int, mail: Mail) -> bool:
        if self._random() < self._network.repeats:
            self._queue.after(self._delay(session.host) + self._random(), self._arrive, session, way, mail)
        lost = self._random() < self._network.loss
        if lost:
            session.host.trouble()
        return lost

    def _delay(self, host: Host) -> float:
        network = self._network
        delay = network.least_s + network.spread_s * self._random() + host.slow_s
        if network.spike_chance and self._random() < network.spike_chance:
            delay += network.spike_s * self._random()
            host.trouble(delay)
        return delay

    def _arrive(self, session: Session, way: int, mail: Mail) -> None:
        if session.broken:
            return
        if session.host.cut[way] or session.at.is_cut or session.held[way]:
            session.held[way].append(mail)
            if session not in self._torn:
                self._torn.append(session)
            return
        self._deliver(session, way, mail)

    def _deliver(self, session: Session, way: int, mail: Mail) -> None:
        if way == UP:
            session.at.receive(session, mail[0])
        else:
            session.host.receive(session, mail[0])

    def calm(self) -> None:
        """Stop losing and delaying messages."""
        self._network = replace(self._network, spike_chance=0.0, loss=0.0, repeats=0.0, disorder=0.0)

    def heal(self, healed: Host | SimulatedCoordinator) -> None:
        """Deliver all messages that waited for the network of this host or coordinator."""
        waiting = [session for session in self._torn if healed in {session.host, session.at} and not _is_cut(session)]
        self._torn = [session for session in self._torn if session not in waiting]
        for session in waiting:
            for way in (UP, DOWN):
                held = list(session.held[way])
                session.held[way].clear()
                for mail in held:
                    if not session.broken:
                        self._deliver(session, way, mail)

    # Ending

    def close_up(self, session: Session) -> None:
        """End a connection from the host's side; the coordinator sees it when the packet arrives."""
        if session.open_at_host:
            session.open_at_host = False
            self.send(session, UP, None)

    def reset(self, session: Session) -> None:
        """Tear a connection: messages on their way are lost, and both sides see its end."""
        self._break(session)
        self._queue.after(self._delay(session.host), self._reset_seen, session)
        session.host.ended(session)

    def forget(self, session: Session) -> None:
        """Drop all that either side sends, without a packet: a kernel notices when nothing is acknowledged."""
        self._break(session)
        self._queue.after(UNACKNOWLEDGED_S, self._reset_seen, session)

    def lose_host(self, session: Session) -> None:
        """Remove a host without a packet."""
        self.forget(session)
        session.open_at_host = False

    def lose_coordinator(self, session: Session, *, notified: bool) -> None:
        """Remove the coordinator's process.

        With `notified`, its kernel sends the end, after its last messages or in their place.
        """
        if notified and self._random() < 0.5:
            self.send(session, DOWN, None)
            return
        self._break(session)
        if notified:
            self._queue.after(self._delay(session.host), self._end_seen, session)

    def _break(self, session: Session) -> None:
        session.broken = True
        for held in session.held:
            held.clear()

    def _reset_seen(self, session: Session) -> None:
        session.at.receive(session, None)

    def _end_seen(self, session: Session) -> None:
        if not session.host.cut[DOWN] and not session.at.is_cut:
            session.host.ended(session)


def _is_cut(session: Session) -> bool:
    return session.host.is_cut or session.at.is_cut
