"""A simulated cluster, from one seed: the real coordinator machine, journal and database, and real agents.

How to play a scenario by hand::

    world = World(seed=1, scenario=Scenario(hosts=4, nodes_min=2, nodes_max=4))
    world.boot()                                        # a nodeclient on every host: "n1" to "n4"
    world.until(world.is_running)                       # or BrokenError, with the history so far
    assert world.run.durable.round == 1
    world.hosts["n2"].kill()                            # or vanish, pause, cut_off, reset, leave ...
    world.daemon.doom(CrashPoint.AFTER)                 # or crash, pause; `world.daemon.disk.break_down(Fault.FULL)`
    world.hosts["n3"].workers.fail(exit_code=3)
    world.go_on(30)                                     # let so many seconds pass
    world.daemon.start()
    world.until(lambda: world.is_running() and world.run.durable.round > 2, within=60)
    world.until(world.is_over)
    assert world.hosts["n1"].exit.code == 0             # and `world.run.durable.restarts_used`, `.outcome` ...

Everything that happens is told to `invariants`; `world.invariants.facts` has the results (`formed`, `charged`,
`records`). The same seed gives the same history. `scenario` has the settings of a world, `faults` what goes wrong by
chance, and `history` plays whole histories.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Concatenate

from coordinatord.core.rounds.queries.reasons import situation
from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.state.run import Run
from coordinatord.protocol.messages import Assignment
from tests.sim.coordinator import Daemon, SimulatedCoordinator
from tests.sim.etcd import Etcd
from tests.sim.etcd_coordinator import EtcdCoordinator
from tests.sim.event_queue import EventQueue
from tests.sim.foreign_coordinator import ForeignCoordinator
from tests.sim.host import Host
from tests.sim.idle_skip import IdleSkip
from tests.sim.invariants.all_laws import AllLaws
from tests.sim.invariants.former_leaders import FormerLeaderLaws
from tests.sim.invariants.laws import Laws, P
from tests.sim.kept_disk import Disks
from tests.sim.laggards import Laggards
from tests.sim.network import Wires
from tests.sim.scenario import Scenario
from tests.sim.trace import Trace
from tests.sim.workers import Round, Training

JOB = "job"
"""All nodes are of one job."""


class BrokenError(AssertionError):
    """An invariant is broken, or something did not happen in time. The text has the history, and then the violation."""


class World:
    """A simulated cluster with its network, disks and operators."""

    def __init__(self, seed: int, scenario: Scenario | None = None) -> None:
        self.seed = seed
        self.scenario = scenario or Scenario()
        self.chance = random.Random(seed)  # noqa: S311 - repeatable on purpose
        self.queue = EventQueue()
        self.trace = Trace(self.queue)
        self.touched_at = 0.0
        """When something last happened beside heartbeats, in the queue's `now`."""
        self.end = 0.0
        """The `time` until which the queue is run at present."""
        self.work_left: dict[str, float] = {}
        """Seconds of training that each run still needs, once a round of it was broken."""
        self.spec = self.scenario.spec
        """The spec of nodeclients that are started from now on."""
        self.faults: Counter[str] = Counter()
        """The faults so far, by name: see `faults`."""
        self.comes_back = 0.7
        """The share of nodeclients that are started again after their end."""
        self.on_done: list[Callable[[Training], None]] = []
        """Each is called once, when a training is done and its workers begin to exit."""
        self.trainings: dict[Round, Training] = {}
        """The worker group of each round, once one of its workers has started."""
        self.disks = Disks()
        """The directory to which nodes write steps, if they do."""
        self.wires = Wires(self)
        self.lives = 0
        """How often a coordinator has begun to decide."""
        self.etcd = Etcd(self)
        """The etcd that the coordinators share, if there are several."""
        self.coordinators = self._coordinators()
        self.daemon = self.coordinators[0]
        """The coordinator that decides, or did last."""
        self.invariants = AllLaws(self)
        self.former = FormerLeaderLaws(self.invariants.facts)
        """The invariants of coordinators that decided before the present one."""
        self.takeovers = 0
        """How often another coordinator than before has begun to decide."""
        self.hosts: dict[str, Host] = {}
        for number in range(1, self.scenario.hosts + 1):
            self.add_host(f"n{number}")
        self.laggards: Laggards | None = None
        """The simulation of late workers, if the history has any."""
        self.idle_skip = IdleSkip(self) if self.scenario.skips_idle else None
        for coordinator in self.coordinators:
            coordinator.start()

    # Building

    def _coordinators(self) -> Sequence[SimulatedCoordinator]:
        names = [f"h{number}" for number in range(1, self.scenario.standbys + 2)]
        own = [EtcdCoordinator(self, name) for name in names] if len(names) > 1 else [Daemon(self, *names)]
        return [*own, ForeignCoordinator(self, "stranger")] if self.scenario.has_foreign_coordinator else own

    def lead(self, coordinator: SimulatedCoordinator) -> None:
        """Let a coordinator decide from now on; the former leader may not know that yet."""
        if self.daemon is coordinator:
            return
        if self.daemon.up:
            self.tell(Laws.crashed)
        self.daemon = coordinator
        self.former.led()
        self.takeovers += 1

    def add_host(self, name: str, node: str = "") -> Host:
        """Add a host, on which nothing runs yet; its node id is its own name by default."""
        host = Host(self, name, node or name, len(self.hosts) + 1)
        self.hosts[name] = host
        return host

    def boot(self) -> None:
        """Start a nodeclient on every host, within the time that the scenario gives."""
        for host in self.hosts.values():
            self.queue.plan(self.chance.random() * self.scenario.arrive_within_s, host.boot)

    # Time

    def go_on(self, seconds: float) -> None:
        """Let some time pass."""
        self._run(seconds, None)

    def until(self, done: Callable[[], bool], within: float = 120.0) -> None:
        """Let time pass until `done()`. Raises `BrokenError` if that is not true in time."""
        if not self._run(within, done):
            raise self.failure(f"not so within {within:g} s; {self.situation}")

    def try_until(self, done: Callable[[], bool], within: float) -> bool:
        """Let time pass until `done()`, for `within` seconds at most; return whether it is true."""
        return self._run(within, done)

    def _run(self, seconds: float, done: Callable[[], bool] | None) -> bool:
        self.end = self.queue.time + seconds
        try:
            return self.queue.run(self.end, done)
        except BrokenError:
            raise
        except Exception as error:
            raise self.failure(f"{type(error).__name__}: {error}") from error

    # State

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
        """The assignment of each node of the current round."""
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
        """A description of the present state, for a person."""
        run, now = self.daemon.machine.jobs.get(JOB), self.daemon.clock.read()
        where = (
            "no run"
            if run is None
            else f"{run.id} is {run.durable.state}, round {run.durable.round}: {situation(run, now)}"
        )
        nodes = [
            f"{host.name} {'down' if host.agent is None else host.agent.phase}{'' if host.session else ' alone'}"
            for host in list(self.hosts.values())[:16]
        ]
        return f"{where}; {', '.join(nodes)}"

    def failure(self, text: str) -> BrokenError:
        """Return an error with the history so far."""
        return BrokenError(f"seed {self.seed}: {text}\n{self.trace}\nseed {self.seed}: {text}")

    # Methods for its parts

    def check(self, holds: object, text: str, *arguments: object) -> None:
        """Raise `BrokenError` unless a law holds, which belongs to no set."""
        if not holds:
            raise self.failure(text % arguments)

    def tell(self, hook: Callable[Concatenate[Laws, P], None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Tell all sets of laws what happens to the coordinator that leads, or to a node: `hook` is one of `Laws`."""
        self.invariants.sets.tell(hook, *args, **kwargs)

    def touch(self) -> None:
        """Note that something beside heartbeats happens."""
        self.touched_at = self.queue.now

    def training(self, key: Round) -> Training:
        """Return the worker group of a round."""
        if key not in self.trainings:
            self.trainings[key] = Training(self, key)
        return self.trainings[key]

    def draw_rate(self) -> float:
        """Draw the rate of a clock."""
        return 1.0 + self.chance.uniform(-self.scenario.skew, self.scenario.skew)
