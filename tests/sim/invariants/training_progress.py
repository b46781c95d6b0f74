"""Invariants of the steps that the coordinator knows, by the workers' steps and the nodes' reports.

`time_attribution` checks when a round began to train by them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coordinatord.core.machine import Coordinator
from coordinatord.core.rounds.queries.reasons import awaits_first_step
from coordinatord.core.rounds.state.run import Run
from coordinatord.protocol.messages import Observed
from tests.sim.invariants.laws import Facts, Laws
from tests.sim.workers import STEP_S, Round

if TYPE_CHECKING:  # the world imports its invariants
    from tests.sim.host import Host

Steps = tuple[int | None, ...]
Life = tuple[str, int, Round]
"""Node, incarnation, and the round of its report."""

PACE_ROUGHLY = 1.3
"""The factor by which the pace may be off where reports arrive at once, since clocks differ, and reports are a second
apart."""


LATE_S = 2.5
"""A step is reported with the next heartbeat, and that arrives within another one."""


class ProgressLaws(Laws):
    """Watches the steps of one world."""

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._steps_reported: dict[Life, set[Steps]] = {}
        """All reports of each node of the steps of each round."""
        self._steps_last: dict[Life, Steps] = {}
        self._steps_known: dict[tuple[int, Life], Steps] = {}
        """The last of these reports that each life of the coordinator has received."""

    def note_sent(self, host: Host, observed: Observed) -> None:
        """Check a node's report of its workers."""
        key = (host.node, host.incarnation, (observed.run, observed.round))
        before = self._steps_last.get(key, ())
        self.check(_has_grown(before, observed.steps), "%s reports %s after %s", host.name, observed.steps, before)
        self._steps_last[key] = observed.steps
        self._steps_reported.setdefault(key, set()).add(observed.steps)

    def settled(self, machine: Coordinator) -> None:
        """Check the coordinator's knowledge against the reports of the nodes."""
        for run in machine.jobs.values():
            if not self.facts.leaves_out(machine):
                self._judge_members(run)
            self._judge_progress(run)

    def _judge_members(self, run: Run) -> None:
        for member in run.members.values():
            observed = member.observed
            key = (member.node, member.incarnation, (observed.run, observed.round))
            steps = observed.steps
            self.check(not steps or steps in self._steps_reported[key], "%s never reported %s", member.node, steps)
            here = (self.world.daemon.life, key)
            before = self._steps_known.get(here, ())
            late = self.world.scenario.network.harsh  # an old report may come after a new one
            self.check(late or _has_grown(before, steps), "%s is at %s after %s", member.node, steps, before)
            self._steps_known[here] = steps

    def _judge_progress(self, run: Run) -> None:
        training = self.world.trainings.get((run.id, run.durable.round))
        stepped = None if training is None else training.stepped()
        step, pace = run.step, run.progress.pace.steps_per_s
        self._judge_announcements(run)
        if stepped is None:
            earlier = run.durable.reached if run.durable.state.ended else None  # an ended run shows how far it came
            known = step in {None, earlier} and pace is None
            self.check(known, "round %d is at step %s, and takes none", run.durable.round, step)
        else:
            kept = run.keeping.reached  # once one replica has saved a step, all others do it in the next round too
            most = stepped[0] if kept is None else max(stepped[0], kept)
            is_over = run.durable.state.ended  # and what nodes had saved is forgotten
            self.check(is_over or step is None or 0 <= step <= most, "step %s is known, of %s", step, most)
            self.check(pace is None or pace > 0, "%s steps a second", pace)
            if self._nothing_was_delayed:
                self.check(pace is None or pace < PACE_ROUGHLY / STEP_S, "%s steps a second, of %s", pace, 1 / STEP_S)
                least = stepped[0] - LATE_S / STEP_S
                self.check(step is None or step > least, "step %s is known, of %s", step, stepped[0])

    def _judge_announcements(self, run: Run) -> None:
        """Check that a round awaits its first step only if one of its workers has announced steps."""
        key = run.id, run.durable.round
        heard = [member.observed for member in run.members.values()]
        announced = any(observed.steps for observed in heard if (observed.run, observed.round) == key)
        known = announced or run.durable.reports_steps or self.world.scenario.network.harsh
        self.check(known or not awaits_first_step(run), "round %d awaits steps that were not announced", key[1])

    @property
    def _nothing_was_delayed(self) -> bool:
        """Whether no report was ever delayed or lost."""
        network = self.world.scenario.network
        slow = network.harsh or network.spike_chance or network.spread_s > STEP_S / 4
        return not (slow or self.world.faults)


def _has_grown(before: Steps, steps: Steps) -> bool:
    """Whether every worker is where it was, or further."""
    same = len(before) in {0, len(steps)}
    return same and all(
        old is None or (new is not None and new >= old) for old, new in zip(before, steps, strict=False)
    )
