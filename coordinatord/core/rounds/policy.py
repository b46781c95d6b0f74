"""The numbers that the coordinator decides by, each with its reason; `coordinatord.config` sets those with a flag."""

from __future__ import annotations

import math
from enum import StrEnum

from msgspec import Struct

from coordinatord.protocol.fields import DURATION_S_MAX

HEARTBEAT_STEP_S = 0.25
"""The heartbeat grows in steps of so many seconds; otherwise each node that joins would change it for all others."""


class PreflightWhen(StrEnum):
    """When nodes are tested in pairs; each value includes the ones before it."""

    ASKED = "asked"
    """Only if an operator asks for it."""
    IDLE = "idle"
    """Also while they wait beside a round, on hosts without workers."""
    SUSPICION = "suspicion"
    """Also before a round, if the network or a hang ended the last two rounds, or the last round had a laggard."""


class Policy(Struct, frozen=True):
    """Durations in seconds, and limits as counts; their relations are checked, since decisions rest on them."""

    heartbeat_s: float = 1.0
    """The least interval that nodes are granted between two heartbeats."""

    heartbeats_per_s_max: float = 4_000.0
    """The most heartbeats that all nodes together send: with more nodes, each sends fewer (as in Nomad). So many cost
    some 30 % of a core, twice what a bare WebSocket echo takes. If the limit were half as high, the silence of one of
    10,000 nodes would be noticed only after 25 s."""

    heartbeats_per_lease: float = 5.0
    """A node is lost after this many heartbeats of silence: 5 s, as in torchft; Kubernetes takes 50 s."""

    lease_stretch_max: float = 3.0
    """The lease is up to so many times as long if heartbeats came late recently: with 30 % of all packets lost, TCP is
    silent for more than 5 s about once a minute, and for more than 15 s hardly ever."""

    reconnect_grace_s: float = 1.0
    """How long a node may take to reconnect after its connection closed: its process may still be alive."""

    settle_s: float = 2.0
    """The settle window: a round that has enough nodes waits this long after each arrival for one more, since nodes
    that are started together come one after the other (torchrun: 30 s)."""

    settle_max_s: float = 10.0
    """The longest settle window after the first arrival, so that a trickle of nodes cannot delay a round for ever."""

    retry_pause_s: float = 4.0
    """The pause before the next round, when the same error has come twice in a row without a step in between: warm
    workers start at once, so the budget would be gone in seconds, before a person could mend the cause. It is doubled
    each time that the error comes again; 0: no pause."""

    retry_pause_max_s: float = 60.0
    """The longest such pause: six restarts then take at least two minutes, and the job still shows activity."""

    repeat_within_s: float = 60.0
    """A round that lasted longer than these seconds counts as progress, even if its workers report no steps."""

    first_step_s: float = 600.0
    """How long workers that announced steps may take to the first one before it is recorded as overdue: a large model
    may take minutes to load and to compile."""

    stop_limit_s: float = 30.0
    """The time beyond the longest stop timeout of a round's nodes after which the others go on without a node that
    cannot end its workers. A node that waits until the memory of its GPUs is free reports before it is over."""

    collateral_s: float = 1.0
    """A worker's failure up to this long before its peer's node fell silent still counts as caused by that: the worker
    sees the broken connection before the coordinator does."""

    outage_grace_s: float = 300.0
    """How long a node that is cut off from the coordinator lets its workers go on. It may have been replaced, so they
    should stop soon; but a coordinator outage that is shorter than this loses nothing. A run of which no node is
    heard ends after the sum of this time, the stop timeout and the join timeout: no worker or waiting node is left."""

    restart_grace_s: float = 15.0
    """How long a member may take to reconnect after a restart of the coordinator: two and a half attempts to connect,
    of 5 s and a pause of 1 s each, so that an attempt that began too early does not cost the round."""

    quarantine_at: float = 1.5
    """The weight of charges from which a host is quarantined, so that rounds do without it; 0: never. A charge is a
    failed round that the host ended. It weighs 1, halved with each half-life: two within one half-life are enough."""

    charge_half_life_s: float = 86_400.0
    """The half-life of charges. In a public trace the three worst of 63 hosts cause a failed round every few days
    (Lablup, arXiv 2605.09370), and a healthy one not once in a month. In `benchmarks/policy`, half-lives of one,
    three and seven days avoid 86, 88 and 86 % of these rounds; seven days keep good hosts out four times as long."""

    quarantine_share: float = 0.25
    """The most hosts of a job that are quarantined at a time, as a share; one may always be. Without a limit, a fault
    of the network or of a script would take one host after the other (NVSentinel stops at a half)."""

    preflight: PreflightWhen = PreflightWhen.ASKED
    """When nodes are tested. A test loads GPUs and network of a host, which another job may use, and before a round it
    costs seconds. So by default somebody has to ask. (IBM gave up tests in pairs before each round for their cost.)"""

    pair_timeout_s: float = 8.0
    """How long a test of two nodes may take. The import of torch takes 2 s, or 3 s with CUDA, and the measurement 1 to
    2 s. Each of the three turns of tests has 2 s more for messages, so all take 30 s at most."""

    jobs_max: int = 1_000
    """How many jobs are remembered. A new one replaces the oldest that has ended; live ones are never forgotten. At
    its start, the daemon reads records of each job before it answers any node."""

    nodes_max: int = 20_000
    """The limit of all sessions: twice the 10,000 nodes that the heartbeat is tuned for."""

    def __post_init__(self) -> None:
        """Refuse numbers that contradict each other. Raises `ValueError`."""
        if self.heartbeats_per_lease < 3:  # noqa: PLR2004 - two lost messages in a row must not end a node
            raise ValueError("a lease must span at least 3 heartbeats")
        if self.heartbeat_s * self.heartbeats_per_lease > DURATION_S_MAX:
            raise ValueError(f"--heartbeat {self.heartbeat_s:g}: a lease would be longer than a day")
        if self.reconnect_grace_s > self.heartbeat_s * self.heartbeats_per_lease:
            raise ValueError("the reconnect grace must not be longer than the lease")
        # After the stop limit a round goes on without a node: it must be known by then whether the node is dead.
        if self.stop_limit_s <= max(self.collateral_s, self.restart_grace_s):
            raise ValueError("the stop limit must be longer than the restart grace and the collateral time")
        if self.settle_s > self.settle_max_s:
            raise ValueError("the settle window must not be longer than its cap")

    def pause_after(self, repeats: int) -> float:
        """Return the pause in seconds after a round whose error had come in `repeats` rounds in a row before it."""
        doublings = min(repeats - 1, 32)  # enough for the longest pause; from 1,024 on, `2.0**doublings` overflows
        return 0.0 if repeats == 0 else min(self.retry_pause_s * 2.0**doublings, self.retry_pause_max_s)

    def heartbeat_for(self, nodes: int) -> float:
        """Return the heartbeat interval in seconds that each of `nodes` nodes is granted.

        It grows in steps, so most answers have the same interval as the last one, and can be repeated as they are.
        """
        least_s = nodes / self.heartbeats_per_s_max
        if least_s <= self.heartbeat_s:
            return self.heartbeat_s
        return math.ceil(least_s / HEARTBEAT_STEP_S) * HEARTBEAT_STEP_S
