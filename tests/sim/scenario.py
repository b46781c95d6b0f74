"""The settings of a simulated world: the cluster, the run, and the behaviour of network, disk and workers."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field, replace

from coordinatord.core.rounds.policy import Policy
from coordinatord.protocol.messages import JobSpec, NodeOffer, OnDivergence, ScaleUp
from nodeclient.core.agent_settings import Settings
from tests.sim.kept_copies import Keeps

POLICY = Policy(outage_grace_s=20.0, stop_limit_s=16.0)
"""The default policy, but with shorter waits where they are longest, so that a history soon ends."""


@dataclass(frozen=True)
class Network:
    """How messages travel. Durations in seconds."""

    least_s: float = 0.0002
    spread_s: float = 0.005
    """A message takes `least_s`, and a random time up to `spread_s` more."""
    spike_chance: float = 0.0
    """The share of messages that wait for a retransmission, and delay all later ones of their connection."""
    spike_s: float = 1.0
    loss: float = 0.0
    """The share of messages within a session that are lost, which does not happen with TCP; see `network`."""
    repeats: float = 0.0
    """The share of these that arrives twice."""
    disorder: float = 0.0
    """The share of these that overtakes earlier ones."""

    @property
    def harsh(self) -> bool:
        """Whether it is worse than TCP allows."""
        return bool(self.loss or self.repeats or self.disorder)


@dataclass(frozen=True)
class Workers:
    """How training processes behave. Chances are for each worker of each start."""

    each: int = 1
    """The number on every node."""
    work_s: float = 1e9
    """How long the training of a run takes, all its rounds together."""
    ends_within_s: float = 0.3
    """The time within which the workers exit after the end of training."""
    saves_within_s: float = 0.3
    """The longest time between SIGTERM and the end of a worker that handles it."""
    stubborn: float = 0.1
    """The share that ignores SIGTERM."""
    slow_to_die: float = 0.02
    """The share that takes seconds to die of SIGKILL."""
    gpu_held_s: float = 0.0
    """How long at most the driver holds memory of the GPU after their ends."""
    breaks: float = 1.0
    """The share that fails when a peer is gone; the others hang, as in a collective without a timeout."""
    stay: float = 0.0
    """The share of local worker groups that can go into another round as the same processes."""
    starts_within_s: float = 0.0
    """The longest time that it takes to start them. In the real shell no event comes in between."""
    first_step_s: float | None = None
    """How long after the start of all of them the first step is reported; None if steps are not."""
    stalls: float = 0.0
    """The share of rounds, in a training that reports its steps, that have a time without any."""
    announces_steps: bool = False
    """Whether they announce from the start that they will report steps, if they do."""
    rounds_with_steps: float = math.inf
    """Steps are reported up to this round: after it, another version of the script trains."""
    fails_at_once: float = 0.0
    cannot_start: float = 0.0
    """The share of starts that fail."""

    def first_step_in(self, number: int) -> float | None:
        """Return how long after the start of all of them the first step of a round is reported; None if none is."""
        return self.first_step_s if number <= self.rounds_with_steps else None

    def announces_in(self, number: int) -> bool:
        """Whether they announce from the start of a round that they will report steps, and do."""
        return self.announces_steps and self.first_step_in(number) is not None


@dataclass(frozen=True)
class Scenario:
    """All settings of a world."""

    hosts: int = 3
    nodes_min: int = 1
    nodes_max: int = 4
    max_restarts: int = 3
    restart_window_s: int | None = None
    """The window in which restarts count; None: all of a run do."""
    scale_up: ScaleUp = ScaleUp.NOW
    join_timeout_s: float = 15.0
    stop_timeout_s: float = 3.0
    hang_timeout_s: float | None = None
    """How long there may be no step; None: by the run's own steps, 0: for ever."""
    drain_laggards: float = 0.0
    """How many times as long a step must take for a node to be drained; 0: none ever is."""
    digest_steps: int = 8
    """The steps between two digests that workers report of their states: a step takes 0.4 s, and a node reports each
    second."""
    digest_steps_of_others: int = 8
    """The same for nodes without rank 0, which divides the one above."""
    on_divergence: OnDivergence = OnDivergence.REPORT
    """What is done if these differ."""
    max_futile_rounds: int = 0
    arrive_within_s: float = 3.0
    """When `World.boot` starts the nodeclients, at the latest."""
    skew: float = 0.0
    """The greatest part by which a clock is fast or slow."""
    skips_idle: bool = True
    """Whether quiet time is skipped: see `idle_skip`."""
    commit_s: float = 0.005
    """How long the disk takes for a commit at most, unless it hangs."""
    commands_differ: bool = False
    """Whether each node starts its workers with a command of its own."""
    keeps: Keeps | None = None
    """What state nodes keep in memory; None if none do."""
    save_steps: int = 1
    """The steps between two saves while training: so few that places are overwritten before they are reported."""
    states_differ: float = 0.0
    """The share of breaks at which a node saves another state than others, though all should have the same."""
    copies: bool = False
    """Whether nodes take copies of what others keep."""
    writes_every: int | None = None
    """How many steps lie between two checkpoints that the script writes by itself; None if it writes none."""
    persist_every_s: int | None = None
    """How often nodes write what they keep to a disk that all share; None if they do not."""
    racks: int = 0
    """How many racks the hosts stand in; 0: each is a failure domain of its own."""
    keeps_nothing: float = 0.0
    """The share of nodeclients that keep no state, though the others do."""
    only_planned: bool = False
    """Whether nothing fails: nodes come and leave, and operators ask for something."""
    prepares_within_s: float = 0.0
    """How long a nodeclient imports before it can start workers; 0: it has nothing to import."""
    standbys: int = 0
    """How many coordinators stand by beside the one that leads; with any, their records are in etcd."""
    has_foreign_coordinator: bool = False
    """Whether nodes also look for their coordinator at an address where one of another history answers."""
    checks_health: bool = False
    """Whether nodes check their hosts; `Host.health` is what the checks find."""
    policy: Policy = POLICY
    network: Network = field(default_factory=Network)
    workers: Workers = field(default_factory=Workers)

    def of_nodes(self, number: int) -> Scenario:
        """Return the same with so many nodes, all of which are needed."""
        return replace(self, hosts=number, nodes_min=number, nodes_max=number)

    @property
    def spec(self) -> JobSpec:
        """The settings that the nodes agree on."""
        return JobSpec(
            self.nodes_min,
            self.nodes_max,
            self.max_restarts,
            restart_window_s=self.restart_window_s,
            scale_up=self.scale_up,
            hang_timeout_s=self.hang_timeout_s,
            drain_laggards=self.drain_laggards,
            on_divergence=self.on_divergence,
            max_futile_rounds=self.max_futile_rounds,
        )

    def offer_of(self, name: str) -> NodeOffer:
        """Return what the node of a host brings into a run."""
        return NodeOffer(
            host=f"host-{name}",
            host_id=f"boot-{name}",
            workers=self.workers.each,
            role="default",
            topology=f"rack-{sum(map(ord, name)) % self.racks}" if self.racks else "",
            group_rank=None,
            advertise_address=None,
            routable_address=None,
            probe_port=1,
            join_timeout_s=self.join_timeout_s,
            stop_timeout_s=self.stop_timeout_s,
        )

    def agent_settings(self, *, keeps: bool) -> Settings:
        """Return the settings of a nodeclient, whose workers keep state or not."""
        return Settings(
            self.workers.each,
            self.join_timeout_s,
            self.stop_timeout_s,
            preloads=self.prepares_within_s > 0,
            keeps=keeps,
            checks_health=self.checks_health,
        )


def draw_scenario(chance: random.Random) -> Scenario:
    """Draw a small world: a few nodes, and all kinds of difficulties."""
    nodes_min = chance.randint(1, 3)
    nodes_max = nodes_min + chance.randint(0, 2)
    harsh = chance.random() < 0.25
    network = Network(
        least_s=chance.choice([0.0001, 0.0001, 0.02]),
        spread_s=chance.choice([0.001, 0.02, 0.2]),
        spike_chance=chance.choice([0.0, 0.0, 0.01, 0.05]),
        spike_s=chance.choice([0.5, 3.0, 8.0]),
        loss=chance.choice([0.0, 0.01, 0.1, 0.3]) if harsh else 0.0,
        repeats=chance.choice([0.0, 0.1, 0.3]) if harsh else 0.0,
        disorder=chance.choice([0.0, 0.1, 0.3]) if harsh else 0.0,
    )
    workers = Workers(
        each=chance.choice([1, 1, 2, 3]),
        work_s=chance.uniform(8.0, 40.0),
        ends_within_s=chance.choice([0.0, 0.5, 8.0]),
        saves_within_s=chance.choice([0.01, 0.3, 2.0]),
        stubborn=chance.choice([0.0, 0.1, 0.5]),
        slow_to_die=chance.choice([0.0, 0.0, 0.2]),
        breaks=chance.choice([1.0, 1.0, 0.5, 0.0]),
        starts_within_s=chance.choice([0.0, 0.0, 0.1, 3.0]),
        fails_at_once=chance.choice([0.0, 0.0, 0.0, 0.1]),
        cannot_start=chance.choice([0.0, 0.0, 0.0, 0.1]),
        first_step_s=chance.choice([None, None, 0.0, 0.7, 6.0]),
        stalls=chance.choice([0.0, 0.3, 1.0]),
        announces_steps=chance.random() < 0.5,
    )
    return Scenario(
        hosts=max(1, nodes_max + chance.randint(-2, 2)),
        nodes_min=nodes_min,
        nodes_max=nodes_max,
        max_restarts=chance.choice([0, 1, 5]),
        arrive_within_s=chance.choice([0.2, 3.0, 15.0]),
        skew=chance.choice([0.0, 0.001, 0.03]),
        skips_idle=chance.random() < 0.5,
        commit_s=chance.choice([0.001, 0.005, 0.2]),
        network=network,
        workers=workers,
    )


def draw_calm_scenario(chance: random.Random) -> Scenario:
    """Draw a small healthy cluster, for histories with one fault."""
    nodes_min = chance.randint(1, 2)
    nodes_max = nodes_min + chance.randint(1, 2)
    workers = Workers(
        each=chance.choice([1, 1, 2]),
        work_s=chance.uniform(8.0, 30.0),
        ends_within_s=chance.choice([0.5, 8.0]),
        saves_within_s=chance.choice([0.01, 0.3, 2.0]),
        stubborn=chance.choice([0.0, 0.1]),
        slow_to_die=0.0,
        breaks=chance.choice([1.0, 1.0, 0.0]),
        starts_within_s=chance.choice([0.0, 0.1, 3.0]),
        first_step_s=chance.choice([None, 0.0, 0.7, 6.0]),
        announces_steps=chance.random() < 0.5,
        rounds_with_steps=chance.choice([1, math.inf]),
    )
    return Scenario(
        hosts=nodes_max + chance.randint(-1, 1),
        nodes_min=nodes_min,
        nodes_max=nodes_max,
        max_restarts=chance.choice([0, 1, 5]),
        arrive_within_s=chance.choice([0.2, 3.0]),
        skips_idle=False,
        commit_s=chance.choice([0.001, 0.2]),
        commands_differ=chance.random() < 0.5,
        network=Network(spread_s=chance.choice([0.001, 0.02])),
        workers=workers,
    )


def stepping_workers(chance: random.Random, drawn: Scenario) -> Workers:
    """Return the workers of a scenario, which do steps for a minute in all; the first one comes at once or later."""
    first_step_s = chance.choice([0.0, 0.7])
    return replace(drawn.workers, first_step_s=first_step_s, rounds_with_steps=math.inf, work_s=60.0)


def draw_persisting_scenario(chance: random.Random) -> Scenario:
    """Draw a small healthy cluster, whose nodes keep state and write it to a disk that all share."""
    drawn = draw_calm_scenario(chance)
    workers = replace(stepping_workers(chance, drawn), stubborn=0.0)
    return replace(
        drawn,
        nodes_min=1,
        hosts=2,
        nodes_max=2,
        max_restarts=9,
        join_timeout_s=60.0,
        keeps=chance.choice(list(Keeps)),
        persist_every_s=chance.choice([2, 600]),
        workers=workers,
    )


def draw_waiting_scenario(chance: random.Random) -> Scenario:
    """Draw a small healthy cluster, which needs all of its nodes, and whose workers can go into another round."""
    drawn = draw_calm_scenario(chance)
    workers = replace(stepping_workers(chance, drawn), stay=1.0, breaks=1.0)
    return replace(
        drawn.of_nodes(chance.choice([2, 3])),
        max_restarts=9,
        join_timeout_s=200.0,
        keeps=chance.choice(list(Keeps)),
        workers=workers,
    )


def large_scenario(nodes: int) -> Scenario:
    """Make the scenario of a large cluster, with realistic times and rates of faults."""
    return Scenario(
        hosts=nodes + max(1, nodes // 25),
        nodes_min=max(1, nodes - nodes // 10),
        nodes_max=nodes,
        max_restarts=1_000_000,
        join_timeout_s=600.0,
        stop_timeout_s=30.0,
        policy=Policy(),
        skew=0.001,
        workers=Workers(work_s=6 * 3600.0, stubborn=0.02, slow_to_die=0.001, breaks=0.9),
    )
