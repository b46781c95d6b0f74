"""A job on several hosts with a node each, before a real machine of the coordinator: what nodes do is what it is told.

Time passes only as it is told, so days of a job are played in milliseconds.
"""

from itertools import count
from typing import Any

from msgspec.structs import replace

from coordinatord.core.journal import Decided
from coordinatord.core.machine import Coordinator
from coordinatord.core.rounds.events import Connected, Disconnected, Event, Reported
from coordinatord.core.rounds.policy import Policy
from coordinatord.core.rounds.state.run import Run
from coordinatord.protocol.messages import Failure, JobSpec, Phase
from tests.support.builders import EPOCH, a_failure, a_join, an_observed, an_offer, let_pass

JOIN_TIMEOUT_S = 86_400
"""No node gives up."""


class HostJob:
    """A job whose nodes run on hosts that are named after them."""

    def __init__(self, hosts: int, spec: JobSpec, policy: Policy) -> None:
        """Begin with all nodes, which are called n0, n1 and so on, just joined."""
        self.policy, self.spec = policy, spec
        self.coordinator = Coordinator(policy, EPOCH)
        self.past: list[Decided] = []
        self.now = 0.0
        self.names = [f"n{number}" for number in range(hosts)]
        self.sessions: dict[str, int] = {}
        """The open session of each node."""
        self.incarnations = dict.fromkeys(self.names, 1)
        """Which process of each node it is; a further one follows where a host was gone, or the run has ended."""
        self._numbers = count(1)
        for name in self.names:
            self.join(name)

    @property
    def run(self) -> Run:
        """Return the run of the job."""
        return self.coordinator.jobs["default"]

    @property
    def inside(self) -> list[str]:
        """The nodes of the round."""
        return sorted(member.node for member in self.run.roll.inside)

    @property
    def quarantined(self) -> set[str]:
        """The hosts that are quarantined."""
        return {host for host, known in self.coordinator.cluster.durable.hosts.items() if known.quarantined}

    def handle(self, event: Event) -> None:
        """Give the coordinator an event, and keep what it recorded."""
        self.past += ((self.now, record) for record in self.coordinator.handle(event, self.now).records)

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds
        self.past += ((self.now, record) for record in let_pass(self.coordinator, self.now))

    def join(self, name: str, **observed: Any) -> None:
        """Connect a node, whose host is named after it; `observed` is what it reports."""
        number = self.sessions[name] = next(self._numbers)
        offer = replace(an_offer(name), host_id=name, join_timeout_s=JOIN_TIMEOUT_S)
        join = a_join(name, spec=self.spec, offer=offer, observed=an_observed(**observed))
        join = replace(join, incarnation=self.incarnations.setdefault(name, 1))
        self.handle(Connected(number, join, f"10.0.0.{name[1:]}", "10.0.1.1"))

    def leave(self, name: str) -> None:
        """Close the connection of a node."""
        self.handle(Disconnected(self.sessions.pop(name)))

    def report(self, name: str, phase: Phase, failure: Failure | None = None, **observed: Any) -> None:
        """Have a node report on the present round."""
        said = {"run": self.run.id, "round": self.run.durable.round, "phase": phase, "failure": failure, "beat": True}
        self.handle(Reported(self.sessions[name], an_observed(**(said | observed))))

    def work(self) -> None:
        """Have the workers of the round run."""
        for each in self.inside:
            self.report(each, Phase.RUNNING)

    def fail(self, name: str, after_s: float, **failed: Any) -> None:
        """Have a worker of this node fail, after the round went on for a while, and all workers of the round end."""
        self.work()
        self.now += after_s
        inside, failure = self.inside, a_failure(**failed)
        self.report(name, Phase.STOPPING, failure)
        for each in inside:
            self.report(each, *((Phase.FAILED, failure) if each == name else (Phase.STOPPED,)))
