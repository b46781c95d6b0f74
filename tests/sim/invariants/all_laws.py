"""All sets of laws of a world, in the order in which they are told what happens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.sim.invariants.admin_requests import AdminLaws
from tests.sim.invariants.agent import AgentLaws
from tests.sim.invariants.decisions import DecisionLaws
from tests.sim.invariants.departures import DepartureLaws
from tests.sim.invariants.exits import ExitLaws
from tests.sim.invariants.hangs import HangLaws
from tests.sim.invariants.identities import IdentityLaws
from tests.sim.invariants.judgements import JudgementLaws
from tests.sim.invariants.kept_state import KeptStateLaws
from tests.sim.invariants.laws import Facts, LawSets
from tests.sim.invariants.messages import MessageLaws
from tests.sim.invariants.nodes import NodeLaws
from tests.sim.invariants.planned_events import PlannedEventLaws
from tests.sim.invariants.preparing_nodes import PreparingLaws
from tests.sim.invariants.redone_steps import RedoneLaws
from tests.sim.invariants.replicas import ReplicaLaws
from tests.sim.invariants.retry_pause import RetryPauseLaws
from tests.sim.invariants.root_cause import RootCauseLaws
from tests.sim.invariants.rounds import RoundLaws
from tests.sim.invariants.successors import SuccessorLaws
from tests.sim.invariants.time_attribution import TimeLaws
from tests.sim.invariants.training_progress import ProgressLaws

if TYPE_CHECKING:  # the world has the laws
    from tests.sim.world import World


class AllLaws:
    """The laws of the coordinator that leads, and of its nodes."""

    def __init__(self, world: World) -> None:
        facts = self.facts = Facts(world)
        successors = SuccessorLaws(facts)
        self.rounds = RoundLaws(facts, successors)
        self.agents = AgentLaws(facts)
        self.progress = ProgressLaws(facts)
        times = TimeLaws(facts)
        self.departures = DepartureLaws(facts)
        self.identities = IdentityLaws(facts)
        self.kept = KeptStateLaws(facts)
        self.redone = RedoneLaws(facts)
        self.planned = PlannedEventLaws(facts)
        self.root_cause = RootCauseLaws(facts)
        self.hangs = HangLaws(facts, self.root_cause)
        preparing = PreparingLaws(facts)
        self.judgements = JudgementLaws(facts)
        self.replicas = ReplicaLaws(facts, self.root_cause)
        self.sets = LawSets(
            facts,
            self.rounds,
            NodeLaws(facts),
            self.agents,
            MessageLaws(facts),
            self.progress,
            AdminLaws(facts),
            times.ledger,
            times,
            successors,
            self.hangs,
            ExitLaws(facts),
            RetryPauseLaws(facts),
            self.identities,
            self.kept.persisted,
            self.kept.candidates,
            self.kept.waits,
            self.kept,
            self.redone,
            self.planned,
            self.judgements,
            self.replicas,
            preparing,
            self.departures,
            DecisionLaws(facts, preparing, self.kept.waits, self.departures),
            self.root_cause,
        )
