"""The network between the nodes and the coordinator: connections that deliver late, or not at all, or are torn.

A session is a TCP connection, so within it nothing is lost, repeated or put out of order: what is cut off waits, and
arrives when the network is healed, unless the connection is torn before. What does get lost, late and out of order is
between connections: attempts to connect, a connection that one side still believes in, a first message that arrives
when the node has already opened another connection.

The protocol claims more: any one message may be lost, repeated, late or out of order. So a *harsh* network does that to
single messages within a session too (not to a `Join`, which is what makes a connection a session, nor to its end).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from coordinatord.protocol.messages import Degraded, Desired, Join, Observed, Refused
from nodeclient.access.endpoint import Endpoint
from nodeclient.shell.coordinator_connection import CONNECT_WITHIN_S, REACH_WITHIN_S

if TYPE_CHECKING:  # the world imports its network
    from tests.sim.coordinator import SimulatedCoordinator
    from tests.sim.host import Host
    from tests.sim.world import World

Said = Join | Observed | Desired | Degraded | Refused
Mail = list[Said | None]
"""One message on its way; None is the end of the connection. It can still be exchanged at the moment it is sent, as the
real session has one unsent message, whose place a newer one takes."""

UNACKNOWLEDGED_S = 20.0
"""How long until the coordinator's host gives up a connection that does not answer, as coordinatord sets it."""


class Session:
    """One connection of a node, from the attempt to its end, which each side sees at a time of its own."""

    __slots__ = (
        "arrives",
        "at",
        "broken",
        "established",
        "held",
        "host",
        "incarnation",
        "last",
        "life",
        "number",
        "open_at_host",
        "reached",
    )

    def __init__(self, host: Host, at: SimulatedCoordinator, incarnation: int) -> None:
        self.host = host
        self.at = at
        """The coordinator that is asked."""
        self.reached = False
        """Its kernel has taken the connection."""
        self.incarnation = incarnation
        """The incarnation of its nodeclient."""
        self.life = 0
        """The life of the coordinator that answered."""
        self.number = 0
        """The number by which the coordinator knows it, once it has read the `Join`."""
        self.established = False
        """The host has sent its `Join`."""
        self.open_at_host = True
        self.broken = False
        """Nothing arrives any more, either way."""
        self.arrives = [0.0, 0.0]
        """When the last thing that was sent up, and down, arrives."""
        self.held: tuple[list[Mail], list[Mail]] = ([], [])
        """What waits for the network to be healed, up and down."""
        self.last: list[tuple[float, Mail]] = [(-1.0, []), (-1.0, [])]
        """When something was last sent up, and down, and what."""


UP, DOWN = 0, 1


class Wires:
    """All connections."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._queue = world.queue
        self._manners = world.scenario.network
        self._random = world.chance.random
        self._torn: list[Session] = []

    # Opening

    def dial(self, session: Session) -> None:
        """Try to connect; the host is notified, or gives up after a while."""
        self._queue.after(self._delay(session.host), self._knock, session)
        if len(self._world.coordinators) > 1:
            self._queue.after(REACH_WITHIN_S, self._unreached, session)
        else:
            self._queue.after(CONNECT_WITHIN_S, self._unanswered, session)

    def _unreached(self, session: Session) -> None:
        if session.reached:
            self._queue.after(session.host._seeker.answer_within_s, self._unanswered, session)
        else:
            session.host.dial_failed(session, "its host does not take the connection", silent=True)

    def _unanswered(self, session: Session) -> None:
        session.host.dial_failed(session, "no answer in time", silent=True)

    def _knock(self, session: Session) -> None:
        host = session.host
        if _is_cut(session) or not session.open_at_host:
            return
        if session.at.listens:
            session.reached = True
            session.at.knock(session)
        elif session.at.host_up:
            self._queue.after(self._delay(host), host.dial_failed, session, "connection refused")

    def send_on(self, session: Session, leader: Endpoint | None) -> None:
        """Notify the host that the coordinator stands by, and who leads if that is known."""
        self._queue.after(self._delay(session.host), self._sent_on, session, leader)

    def _sent_on(self, session: Session, leader: Endpoint | None) -> None:
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

    def send(self, session: Session, way: int, said: Said | None) -> None:
        """Carry a message, or the end of the connection."""
        if session.broken:
            return
        now = self._queue.now
        at, mail = session.last[way]
        if at == now and mail[0] is not None and said is not None and not isinstance(mail[0], Join):
            if not isinstance(said, Degraded):
                mail[0] = said  # the other was not yet sent
            return
        mail = [said]
        session.last[way] = (now, mail)
        arrives = now + self._delay(session.host)
        if self._manners.harsh and isinstance(said, Observed | Desired | Degraded):
            if self._is_lost(session, way, mail):
                return
            in_order = self._random() >= self._manners.disorder
        else:
            in_order = True
        if in_order:
            arrives = session.arrives[way] = max(arrives, session.arrives[way])
        self._queue.after(arrives - now, self._arrive, session, way, mail)

    def _is_lost(self, session: Session, way: int, mail: Mail) -> bool:
        if self._random() < self._manners.repeats:
            self._queue.after(self._delay(session.host) + self._random(), self._arrive, session, way, mail)
        lost = self._random() < self._manners.loss
        if lost:
            session.host.trouble()
        return lost

    def _delay(self, host: Host) -> float:
        manners = self._manners
        delay = manners.least_s + manners.spread_s * self._random() + host.slow_s
        if manners.spike_chance and self._random() < manners.spike_chance:
            delay += manners.spike_s * self._random()
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
        self._manners = replace(self._manners, spike_chance=0.0, loss=0.0, repeats=0.0, disorder=0.0)

    def heal(self, healed: Host | SimulatedCoordinator) -> None:
        """Let all messages through that waited for the network of a host, or for that of a coordinator alone."""
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
        """Tear a connection: what is on its way is lost, and both sides see its end."""
        self._break(session)
        self._queue.after(self._delay(session.host), self._reset_seen, session)
        session.host.ended(session)

    def lose_host(self, session: Session) -> None:
        """Remove a host without a packet: the coordinator may see it when nothing it sends is acknowledged."""
        self._break(session)
        session.open_at_host = False
        self._queue.after(UNACKNOWLEDGED_S, self._reset_seen, session)

    def lose_coordinator(self, session: Session, *, notified: bool) -> None:
        """Remove the coordinator's process.

        `notified`: its kernel sends the end, after what it had sent or in its place.
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
