"""A cluster in a box, from one seed: the real coordinator machine, journal and database, and real agents.

How to play a scenario by hand::

    world = World(seed=1, scenario=Scenario(hosts=4, nodes_min=2, nodes_max=4))
    world.boot()                                        # a nodeclient on every host: "n1" to "n4"
    world.until(world.is_running)                       # or BrokenError, with the history so far
    assert world.run.round == 1
    world.hosts["n2"].kill()                            # or vanish, pause, cut_off, reset, leave ...
    world.daemon.doom(CrashPoint.AFTER)                 # or crash, pause; `world.daemon.disk.break_down(Fault.FULL)`
    world.hosts["n3"].workers.fail(exit_code=3)
    world.go_on(30)                                     # let so many seconds pass
    world.daemon.start()
    world.until(lambda: world.is_running() and world.run.round > 2, within=60)
    world.until(world.is_over)
    assert world.hosts["n1"].exit.code == 0             # and `world.run.restarts_used`, `world.run.outcome` ...

Every step is checked against `invariants`; `world.invariants` knows what happened (`formed`, `ended`, `charged`). The
same seed gives the same history. What a world is furnished with is in `scenario`, what goes wrong by chance in
`faults`, a whole history with both in `history`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence

from coordinatord.core.queries.reasons import Reasons
from coordinatord.core.state.durable import State
from coordinatord.core.state.run import Run
from coordinatord.protocol.messages import Assignment
from tests.sim.contender import Contender
from tests.sim.coordinator import SimulatedCoordinator
from tests.sim.daemon import Daemon
from tests.sim.etcd import Etcd
from tests.sim.event_queue import EventQueue
from tests.sim.host import Host
from tests.sim.idle_skip import IdleSkip
from tests.sim.invariants.decisions import AllInvariants
from tests.sim.invariants.former_leaders import FormerLeaders
from tests.sim.kept_disk import Disks
from tests.sim.laggards import Laggards
from tests.sim.network import Wires
from tests.sim.scenario import Scenario
from tests.sim.trace import Trace
from tests.sim.workers import Round, Training

JOB = "job"
"""All nodes are of one job."""


class BrokenError(AssertionError):
    """Something happened that must not, or did not happen in time. The text ends with it; the history comes before."""


class World:
    """A simulated cluster, with all that belongs to it."""

    def __init__(
        self, seed: int, scenario: Scenario | None = None, *, loud: bool = False, digested: bool = False
    ) -> None:
        """Build it; `loud` prints the history as it happens, `digested` makes a digest of it."""
        self.seed = seed
        self.scenario = scenario or Scenario()
        self.chance = random.Random(seed)  # noqa: S311 - repeatable on purpose
        self.queue = EventQueue()
        self.trace = Trace(self.queue, loud=loud, digested=digested)
        self.touched_at = 0.0
        """When something last happened beside heartbeats, in the queue's `now`."""
        self.end = 0.0
        """Up to when the queue is run at present, in `time`."""
        self.work_left: dict[str, float] = {}
        """Seconds of training that each run still needs, once a round of it was broken."""
        self.spec = self.scenario.spec
        """The spec of nodeclients that are started from now on."""
        self.faults: Counter[str] = Counter()
        """What went wrong so far, by name: see `faults`."""
        self.comes_back = 0.7
        """How often a nodeclient that is gone is started again."""
        self.on_done: list[Callable[[Training], None]] = []
        """Called, and forgotten, when a training has come to its end and its workers begin to exit."""
        self.trainings: dict[Round, Training] = {}
        """What the workers of each round have in common, once one has started."""
        self.disks = Disks()
        """Where nodes write steps, if they do."""
        self.wires = Wires(self)
        self.lives = 0
        """How often a coordinator has begun to decide."""
        self.etcd = Etcd(self)
        """What coordinators share, if there are several."""
        self.coordinators = self._coordinators()
        self.daemon = self.coordinators[0]
        """The coordinator that decides, or did last."""
        self.invariants = AllInvariants(self)
        self.former = FormerLeaders(self)
        """What must be true of coordinators that decided before the present one."""
        self.takeovers = 0
        """How often another coordinator than before has begun to decide."""
        self.hosts: dict[str, Host] = {}
        for number in range(1, self.scenario.hosts + 1):
            self.add_host(f"n{number}")
        self.laggards: Laggards | None = None
        """What asks who is late to collectives, if anything does."""
        self.idle_skip = IdleSkip(self) if self.scenario.skips_idle else None
        for coordinator in self.coordinators:
            coordinator.start()

    # Building

    def _coordinators(self) -> Sequence[SimulatedCoordinator]:
        names = [f"h{number}" for number in range(1, self.scenario.standbys + 2)]
        return [Contender(self, name) for name in names] if len(names) > 1 else [Daemon(self, *names)]

    def lead(self, coordinator: SimulatedCoordinator) -> None:
        """Have a coordinator decide from now on; another one that did may not have found out yet."""
        if self.daemon is coordinator:
            return
        if self.daemon.up:
            self.invariants.crashed()
        self.daemon = coordinator
        self.former.led()
        self.takeovers += 1

    def add_host(self, name: str, node: str = "") -> Host:
        """Put up another host, on which nothing runs yet; `node` is the node id, which ought to be its own."""
        host = Host(self, name, node or name, len(self.hosts) + 1)
        self.hosts[name] = host
        return host

    def boot(self) -> None:
        """Start a nodeclient on every host, within the time that the scenario gives."""
        for host in self.hosts.values():
            self.queue.plan(self.chance.random() * self.scenario.arrive_within_s, host.boot)

    # Going on

    def go_on(self, seconds: float) -> None:
        """Let so much time pass."""
        self._run(seconds, None)

    def until(self, done: Callable[[], bool], within: float = 120.0) -> None:
        """Let time pass until something is so. Raises `BrokenError` if it is not so in time."""
        if not self._run(within, done):
            raise self.failure(f"not so within {within:g} s; {self.situation}")

    def try_until(self, done: Callable[[], bool], within: float) -> bool:
        """Let time pass until something is so, or so many seconds; return whether it is."""
        return self._run(within, done)

    def _run(self, seconds: float, done: Callable[[], bool] | None) -> bool:
        self.end = self.queue.time + seconds
        try:
            return self.queue.run(self.end, done)
        except BrokenError:
            raise
        except Exception as error:
            raise self.failure(f"{type(error).__name__}: {error}") from error

    # Looking

    @property
    def run(self) -> Run:
        """The job's live or last run, as the coordinator has it."""
        return self.daemon.machine.jobs[JOB]

    @property
    def order(self) -> list[str]:
        """The nodes of that run's current or last round, by group rank."""
        return list(self.run.durable.order)

    @property
    def assignments(self) -> dict[str, Assignment]:
        """What each node of the current round was given."""
        parts = ((member.node, member.assignment) for member in self.run.durable.members.values())
        return {node: part for node, part in parts if part is not None}

    @property
    def state(self) -> State | None:
        """The state of that run; None if there is none."""
        run = self.daemon.machine.jobs.get(JOB)
        return None if run is None else run.durable.state

    def is_running(self) -> bool:
        """Whether a round runs."""
        return self.daemon.up and self.state is State.RUNNING

    def is_over(self) -> bool:
        """Whether the run has ended and no nodeclient is left."""
        ended = self.daemon.up and self.state is not None and self.state.ended
        return ended and all(host.agent is None for host in self.hosts.values())

    @property
    def situation(self) -> str:
        """Where everything stands, for a person."""
        run = self.daemon.machine.jobs.get(JOB)
        where = (
            "no run"
            if run is None
            else f"{run.id} is {run.durable.state}, round {run.durable.round}: {Reasons(run).situation}"
        )
        nodes = [
            f"{host.name} {'down' if host.agent is None else host.agent.phase}{'' if host.session else ' alone'}"
            for host in list(self.hosts.values())[:16]
        ]
        return f"{where}; {', '.join(nodes)}"

    def failure(self, what: str) -> BrokenError:
        """Return an error with the history so far."""
        return BrokenError(f"seed {self.seed}: {what}\n{self.trace}\nseed {self.seed}: {what}")

    # Methods for its parts

    def touch(self) -> None:
        """Note that something happens beside heartbeats."""
        self.touched_at = self.queue.now

    def training(self, key: Round) -> Training:
        """Return what the workers of a round have in common."""
        if key not in self.trainings:
            self.trainings[key] = Training(self, key)
        return self.trainings[key]

    def draw_rate(self) -> float:
        """Draw how fast a clock goes."""
        return 1.0 + self.chance.uniform(-self.scenario.skew, self.scenario.skew)
