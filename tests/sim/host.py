"""A host of the simulated world: a real agent in a shell like `nodeclient/shell/node.py`, its session and its workers.

Faults call its methods: `boot`, `kill`, `vanish`, `leave`, `pause`, `wake`, `cut_off`, `heal`, `reset`.
"""

from __future__ import annotations

import math
import signal
from collections import deque
from typing import TYPE_CHECKING

from msgspec.structs import replace

from coordinatord.protocol.ip_addresses import Endpoint
from coordinatord.protocol.messages import PROTOCOL_VERSION, Degraded, Desired, Join, Observed, Refused
from coordinatord.protocol.pair_messages import PairOrder, PairResult
from nodeclient.access.contact_points import ContactPoints
from nodeclient.core import effects, events
from nodeclient.core.agent import Agent
from nodeclient.core.effects import Effect, Exit, KeptOrder, Probe, ReuseOrder
from nodeclient.core.events import Event
from nodeclient.shell.coordinator_connection import CONNECT_WITHIN_S, PAUSE_FIRST_S, REACH_WITHIN_S, pause_after
from tests.sim.event_queue import Alarm, Clock
from tests.sim.invariants.laws import Laws
from tests.sim.kept_memory import KeptMemory
from tests.sim.network import DOWN, UP, Message, Session
from tests.sim.workers import LocalWorkers, Round

if TYPE_CHECKING:  # the world imports its hosts
    from tests.sim.coordinator import SimulatedCoordinator
    from tests.sim.world import World


class CoordinatorSearch:
    """The contact points of one nodeclient."""

    def __init__(self, world: World) -> None:
        """Begin with the first coordinator."""
        self._world = world
        self._contacts = ContactPoints([coordinator.endpoint for coordinator in world.coordinators])
        self._pause_s = PAUSE_FIRST_S
        self._leader: Endpoint | None = None
        self._silent = False

    @property
    def target(self) -> SimulatedCoordinator:
        """The coordinator to try now."""
        wanted = self._contacts.current.coordinator
        return next(coordinator for coordinator in self._world.coordinators if coordinator.endpoint == wanted)

    @property
    def alone(self) -> bool:
        """Whether there is no other coordinator."""
        return self._contacts.is_only_one

    @property
    def answer_within_s(self) -> float:
        """How long to wait for an answer of the present one, in seconds."""
        return REACH_WITHIN_S if self._contacts.is_suspect else CONNECT_WITHIN_S

    def failed(self, leader: Endpoint | None, *, silent: bool) -> None:
        """Note that the present one has not answered in time (`silent`), or stands by and may have named the leader."""
        self._leader, self._silent = leader, silent

    def give_up(self) -> None:
        """Note that the node gives up its connection to the present one."""
        self._silent = True

    def over(self, now: float, *, welcome: bool) -> bool:
        """Note the end of an attempt, which may have been `welcome`; return whether the next one follows at once.

        `now` is by the clock of the host.
        """
        leader, self._leader = self._leader, None
        silent, self._silent = self._silent, False
        self._pause_s = pause_after(self._pause_s, let_in=welcome, turned_away=False)
        return self._contacts.record_attempt(now, served=welcome, silent=silent, leader=leader)

    def draw_pause(self) -> float:
        """Draw the pause before the next attempt, in seconds."""
        return self._pause_s * self._world.chance.uniform(0.5, 1.0)


BIRTH_NS = 10**15
"""The least incarnation, so large that a clock may be behind."""

GFLOPS = 50.0
"""What a healthy host computes in a test with another one; one that is ill computes a fifth."""

LINGERS_CHANCE = 0.1
LINGERS_S = 0.8
"""The share of dead processes whose connection stays open for a moment, and the longest such moment."""


class Host:
    """One machine, with at most one nodeclient."""

    test: PairOrder | None = None
    """The test with another node that its nodeclient was last told to run; None if it is to run none."""

    def __init__(self, world: World, name: str, node: str, number: int) -> None:
        self._world = world
        self._queue = world.queue
        self.name = name
        self.node = node
        """Its node id: its own name, unless two hosts were given the same one."""
        self.address = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
        self.clock = Clock(world.queue, world.chance.uniform(0.0, 1e5), world.draw_rate())
        self._wall_skew_ns = int(world.chance.uniform(-10.0, 10.0) * 1e9) if world.scenario.skew else 0
        self.token = f"token of {node}"
        """The name of its node's token."""
        self.cut = [False, False]
        """Whether packets from it, and packets to it, are blocked."""
        self.slow_s = 0.0
        """How much longer messages to and from it take at present."""
        self.troubled_until = 0.0
        """The time until which its messages to the coordinator may be delayed or lost."""
        self.troubled_before = 0.0
        """The same as of the end of its last nodeclient, without that end itself."""
        self.woken_at = -math.inf
        """When its nodeclient was last resumed, by the host's clock."""
        self.agent: Agent | None = None
        self.incarnation = 0
        self.booted_at = self._booted_at = 0.0
        """When its last nodeclient was started, by the queue and by its own clock."""
        self.joined_at = 0.0
        """When it last reported its age."""
        self.session: Session | None = None
        self.workers = LocalWorkers(self, world)
        self.memory: KeptMemory | None = None
        """The kept state of its nodeclient, if it keeps any."""
        self.exit: Exit | None = None
        """The end of the last nodeclient, if it exited by itself."""
        self.gone = False
        """Whether its last nodeclient was killed, and no other one is planned."""
        self.prepared = False
        """Whether its nodeclient has imported all that its workers need."""
        self.health: int | None = 0
        """The exit code of its health checks from now on; None if they do not end."""
        self._offer = world.scenario.offer_of(name)
        self._number = number
        """No two processes begin in the same nanosecond."""
        self._spec = world.scenario.spec
        self._alarm: Alarm
        self._begun: Round = ("", 0)
        """The round in which this nodeclient last started workers."""
        self._search: CoordinatorSearch
        self._welcome = False
        self._unread: list[Event] | None = None
        self._events: deque[Event] = deque()

    # Faults

    def boot(self) -> None:
        """Start a nodeclient, unless one is running."""
        if self.agent is not None:
            return
        world, within_s = self._world, self._world.scenario.prepares_within_s
        self.incarnation = BIRTH_NS + int(self._queue.time * 1e9) + self._wall_skew_ns + self._number
        world.trace.note("%s: nodeclient starts, incarnation %d", self.name, self.incarnation)
        world.touch()
        self.exit, self.gone, self._unread, self.prepared, self.test = None, False, None, not within_s, None
        self.booted_at, self._booted_at = self._queue.now, self.clock.read()
        self._begun = ("", 0)
        keeps = world.scenario.keeps
        keeps = None if keeps is not None and world.chance.random() < world.scenario.keeps_nothing else keeps
        agent = Agent(world.scenario.agent_settings(keeps=keeps is not None), self.draw_port(), self.clock.read())
        self.agent = agent
        self.memory = None if keeps is None else KeptMemory(self, world, keeps)
        self._alarm = Alarm(self._queue, self.clock, agent.next_deadline, lambda: self._ring(agent))
        self._alarm.arm()
        self._search = CoordinatorSearch(world)
        self._spec = world.spec
        if within_s:
            self._queue.after(world.chance.random() * within_s, self._prepare, agent)
        self.submit(events.SearchBegan())
        self._dial(agent)

    def kill(self) -> None:
        """Kill the nodeclient: its workers die with it, and the kernel closes its connection."""
        if self.agent is not None:
            self._world.trace.note("%s: nodeclient is killed", self.name)
            self._world.invariants.departures.killed(self)
            self.gone = True
            self._end()

    def vanish(self) -> None:
        """Cut the host's power: nothing shows that its connection has closed."""
        if self.agent is not None:
            self._world.trace.note("%s: the host is gone", self.name)
            self.gone = True
            session, self.session = self.session, None
            if session is not None:
                self._world.wires.lose_host(session)
            self._end()

    def leave(self) -> None:
        """Send the nodeclient a signal; not SIGTERM, so that the invariants can distinguish the two."""
        if self.agent is not None:
            self._world.trace.note("%s: nodeclient is asked to leave", self.name)
            self._world.touch()
            self.submit(events.LeaveRequested(signal.SIGUSR1, self.workers.training_is_over))

    def pause(self) -> None:
        """Stop the nodeclient's process; its workers go on."""
        if self.agent is not None and self._unread is None:
            self._world.trace.note("%s: nodeclient is stopped", self.name)
            self.trouble()
            self._unread = []

    def wake(self) -> None:
        """Resume the nodeclient; its timer may come before or after the messages that arrived."""
        if self._unread is not None:
            self._world.trace.note("%s: nodeclient goes on", self.name)
            self.trouble()
            unread, self._unread = self._unread, None
            self.woken_at = self.clock.read()
            agent = self.agent
            if self._world.chance.random() < 0.5:
                unread.insert(0, events.Tick())
            for event in unread:
                if self.agent is agent:
                    self.submit(event)
            if self.agent is agent:
                self._alarm.arm()

    def cut_off(self, *, up: bool = True, down: bool = True) -> None:
        """Block packets from the host, or to it, or both."""
        self._world.trace.note("%s: cut off, up %s, down %s", self.name, up, down)
        self.trouble()
        self.cut = [up, down]

    def heal(self) -> None:
        """Let all packets through again."""
        if self.is_cut:
            self._world.trace.note("%s: healed", self.name)
            self.trouble()
            self.cut = [False, False]
            self._world.wires.heal(self)

    def reset(self) -> None:
        """Tear the connection, with what is on its way."""
        if self.session is not None:
            self._world.trace.note("%s: the connection is reset", self.name)
            self.trouble()
            self._world.wires.reset(self.session)

    def forget(self) -> None:
        """Have a firewall or a load balancer forget the connection; others, old and new, get through as before.

        Nothing happens to one by which the node has not joined yet. Otherwise the node may be lost though it is well:
        it was out of reach for longer than a lease.
        """
        if self.session is not None and self.session.number:
            self._world.trace.note("%s: its connection is forgotten", self.name)
            self._world.wires.forget(self.session)

    @property
    def is_cut(self) -> bool:
        """Whether any packets are blocked."""
        return self.cut[UP] or self.cut[DOWN]

    @property
    def paused(self) -> bool:
        """Whether its nodeclient is stopped."""
        return self._unread is not None

    @property
    def well(self) -> bool:
        """Whether its nodeclient runs, and messages get through between it and the coordinator that decides."""
        return self.agent is not None and not (self.is_cut or self.paused or self.slow_s or self._world.daemon.is_cut)

    def trouble(self, seconds: float = 0.0) -> None:
        """Note that its messages to the coordinator may be delayed or lost for so long."""
        self.troubled_until = max(self.troubled_until, self._queue.now + seconds)
        self._world.touch()

    # The session, as `nodeclient/shell/coordinator_connection.py` has it

    def _dial(self, agent: Agent) -> None:
        if self.agent is agent and self.session is None:
            if self._unread is not None:
                self._queue.after(0.5, self._dial, agent)
                return
            self._welcome = False
            self.session = Session(self, self._search.target, self.incarnation)
            self._world.wires.dial(self.session)

    def dial_failed(self, session: Session, why: str, leader: Endpoint | None = None, *, silent: bool = False) -> None:
        """Handle a failed attempt to connect, which may name the `leader`; do nothing if the session is open."""
        if self.session is session and not session.established:
            session.open_at_host, session.broken = False, True
            self._search.failed(leader, silent=silent)
            self._closed(session, why)

    def opened(self, session: Session) -> None:
        """Handle the coordinator's answer: send the `Join`."""
        if self.session is not session or (agent := self.agent) is None:
            return
        if self._unread is not None:
            self._queue.after(0.5, self.opened, session)
            return
        session.established, self.joined_at = True, self._queue.now
        observed = self._completed(agent.observed(self.clock.read(), beat=True))
        age_s = self.clock.read() - self._booted_at
        join = Join(
            PROTOCOL_VERSION,
            "job",
            self.node,
            self.incarnation,
            self._spec,
            self._offer,
            observed,
            age_s=age_s,
            command=f"ascript-{self.name}" if self._world.scenario.commands_differ else "",
            keeper=None if self.memory is None else self.memory.keeper,
            awaits_own=agent.awaits_own(self.clock.read()),
        )
        self._world.wires.send(session, UP, join)
        self.submit(events.SessionOpened("coordinator"))

    def receive(self, session: Session, message: Message | None) -> None:
        """Handle a message of a connection; None is its end."""
        if not session.open_at_host or self.session is not session:
            return
        if isinstance(message, Desired):
            self._welcome = True
            self.submit(events.DesiredReceived(message))
        elif isinstance(message, Degraded):
            self._welcome = True
            self.submit(events.CoordinatorDegraded(message))
        elif isinstance(message, Refused):
            self._world.trace.note("%s: refused: %s", self.name, message.message)
            self.submit(events.TurnedAway(message))
            self._close(message.message)
        else:
            self.ended(session)

    def ended(self, session: Session) -> None:
        """Handle the end of a connection."""
        if self.session is session and session.open_at_host:
            self._close("the coordinator closed the connection")

    def _close(self, reason: str) -> None:
        if (session := self.session) is not None:
            self._world.wires.close_up(session)
            self._closed(session, reason)

    def _closed(self, session: Session, reason: str) -> None:
        if self.session is session:
            self.session = None
            self.submit(events.SessionClosed(reason))
            at_once = self._search.over(self.clock.read(), welcome=self._welcome)
            if self.agent is not None:
                self._queue.after(0.0 if at_once else self._search.draw_pause(), self._dial, self.agent)

    # The agent, as `nodeclient/shell/node.py` has it

    def submit(self, event: Event) -> None:
        """Let the agent handle an event, now or after the one that it is handling."""
        if (agent := self.agent) is None:
            return
        if self._unread is not None:
            self._unread.append(event)
            return
        waiting = self._events
        waiting.append(event)
        if len(waiting) > 1:
            return
        while waiting:
            event = waiting[0]
            self._world.tell(Laws.happens, self, event)
            for effect in agent.handle(event, self.clock.read()):
                self._carry_out(effect)
            if waiting:
                waiting.popleft()
        if self.agent is agent:
            self._alarm.arm()

    def _prepare(self, agent: Agent) -> None:
        if self.agent is agent:
            self.prepared = True
            self.submit(events.Prepared())

    def fall_ill(self, health: int | None) -> None:
        """Have its health checks end with this exit code from now on."""
        self._world.trace.note("%s: its health checks end with %s", self.name, health)
        self.health = health

    def _end_check(self, agent: Agent) -> None:
        if self.agent is agent:
            self.submit(events.HealthChecked(self.health, ""))

    def _end_test(self, agent: Agent, order: PairOrder) -> None:
        if self.agent is agent and self.test is order:
            gflops = GFLOPS / (5 if self.health else 1)
            self.submit(events.PairTested(PairResult(order.number, gflops, 1_000.0)))

    def _ring(self, agent: Agent) -> None:
        if self.agent is agent and self._unread is None:
            self.submit(events.Tick())

    def _carry_out(self, effect: Effect) -> None:  # noqa: C901, PLR0912 - one effect a case
        self._world.tell(Laws.does, self, effect)
        match effect:
            case effects.CheckHealth(within_s):
                takes_s = within_s * (1.0 if self.health is None else self._world.chance.random())
                self._queue.after(takes_s, self._end_check, self.agent)
            case effects.RunPairTest(order):
                self.test = order
                if order is not None:
                    takes_s = order.within_s * self._world.chance.random()
                    self._queue.after(takes_s, self._end_test, self.agent, order)
            case effects.SendObserved(observed):
                if self.session is not None:
                    self._world.wires.send(self.session, UP, self._completed(observed))
            case Probe():
                answers_in_s = 0.005 * self._world.chance.random()
                self._queue.after(answers_in_s, self._probe, self.agent, effect, effect.patience_s)
            case effects.Start():
                self._world.trace.note("%s: starts round %d of %s", self.name, effect.round, effect.run)
                self._begun = (effect.run, effect.round)
                self.workers.start(effect)
                if self.memory is not None:
                    self.memory.started()
            case effect if isinstance(effect, KeptOrder):
                if self.memory is not None:  # the nodeclient, and its memory, may have ended with an effect before
                    self.memory.carry_out(effect)
            case effect if isinstance(effect, ReuseOrder):
                self.workers.staying.carry_out(effect)
            case effects.Terminate():
                self.workers.terminate()
            case effects.Kill():
                self.workers.kill()
            case effects.Sweep(checks_gpus):
                self.workers.sweep(checks_gpus=checks_gpus)
            case effects.Reconnect(reason):
                self._world.touch()
                self._queue.after(0.0, self._give_up, self.session, reason)
            case Exit():
                self._world.trace.note("%s: nodeclient exits with %d: %s", self.name, effect.code, effect.message)
                self.exit = effect
                self._end()

    def _completed(self, observed: Observed) -> Observed:
        """Complete a report with what the shell knows: the workers' steps, and the kept state."""
        observed = self.workers.with_steps(observed, self._begun)
        if self.memory is not None:
            observed = replace(observed, kept=self.memory.holding(observed))
        self._world.invariants.progress.note_sent(self, observed)
        return observed

    def _probe(self, agent: Agent, probe: Probe, left_s: float) -> None:
        """Probe the master, and again each second until it answers; a host that is stopped or gone does not."""
        if self.agent is not agent:
            return
        node = probe.assignment.master_node
        masters = [host for host in self._world.hosts.values() if host.node == node]
        if any(host.agent is not None and host._unread is None for host in masters):
            self.submit(events.Reached(probe.run, probe.round))
        elif left_s > 0:
            self._queue.after(1.0, self._probe, agent, probe, left_s - 1.0)
        else:
            self.submit(events.Unreached(probe.run, probe.round, f"it cannot reach node {node}"))

    def _give_up(self, session: Session | None, reason: str) -> None:
        if session is not None and self.session is session:
            self._search.give_up()
            self._close(reason)

    def _end(self) -> None:
        """End the nodeclient, and its workers with it."""
        self.troubled_before = self.troubled_until if self.well else math.inf
        self.agent = self.memory = None
        self._events.clear()
        self._unread = None
        self.trouble()
        self.workers.die()
        session, self.session = self.session, None
        if session is not None:
            # The kernel may close the connection of a dead process a little late.
            chance = self._world.chance
            lingers = LINGERS_S * chance.random() if chance.random() < LINGERS_CHANCE else 0.0
            self._queue.after(lingers, self._world.wires.close_up, session)

    def draw_port(self) -> int:
        """Reserve a port."""
        return self._world.chance.randint(30_000, 60_000)
