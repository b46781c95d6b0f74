"""The planned copies of the steps that nodes protect."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from coordinatord.core.keeping.copy_plan import CopyPlan, are_protected_twice
from coordinatord.core.keeping.kept_index import Parts, PartsChange
from coordinatord.protocol.kept_state import KeptStep


class CopyPlans:
    """The planned copies of the steps of one run, and why nodes cannot have theirs."""

    def __init__(self) -> None:
        """Begin without plans."""
        self.plans: dict[KeptStep, CopyPlan] = {}
        """The plan of each protected step; a candidate without a plan waits for one."""
        self.are_void = True
        """Whether a node has come or gone, or a round has begun, since copies were planned last, if they ever were."""
        self.problems: dict[str, str] = {}
        """Why nodes cannot have the copies that they are to have; no step waits for these."""
        self._domains: Mapping[str, str] = {}
        """The failure domain of each node, as of the last plan. It stays while no round runs, since copies stay too."""

    def note_problem(self, node: str, why: str) -> bool:
        """Take in why a node cannot have its copies, or that it can; return whether that has changed."""
        before = self.problems.pop(node, "")
        if why:
            self.problems[node] = why
        return why != before

    def note_change(self, node: str, change: PartsChange) -> None:
        """Have the copies of a step planned anew if another node has the same shard now, or a copy is gone."""
        plan = self.plans.get(change.at)
        if plan is not None and (change.lost or (change.is_new and node not in plan.wanted)):
            del self.plans[change.at]

    def note_plan(self, at: KeptStep, plan: CopyPlan) -> None:
        """Take in the planned copies of a step, and with them the failure domains."""
        self.plans[at], self._domains = plan, plan.domains

    def keep_only(self, steps: Collection[KeptStep]) -> None:
        """Drop the plans of other steps."""
        self.plans = {at: plan for at, plan in self.plans.items() if at in steps}

    def void(self) -> None:
        """Have the copies of all steps planned anew: other nodes may take them, or have to."""
        self.plans.clear()
        self.are_void = True

    def begin_round(self) -> None:
        """Have all copies planned anew; the nodes of the round may have other topology keys."""
        self.void()
        self._domains = {}

    def outlives(self, held: Mapping[str, Parts]) -> bool:
        """Whether a step that nodes hold so outlives the loss of all hosts of any one failure domain."""
        shards = next((part.shards for parts in held.values() for part in parts), 0)
        return shards > 0 and are_protected_twice(range(shards), held, self._domains)
