"""Mistakes about where the seconds of a run went."""

from __future__ import annotations

from tests.sim.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "all-is-training",
        "coordinatord.core.values.time_ledger",
        "every second counts as training",
        "return self.settled.plus(before, turn - self.settled_at).plus(since, now - turn)",
        "return self.settled.plus(Activity.TRAINING, now - self.settled_at)",
    ),
    Mutant(
        "detected-at-once",
        "coordinatord.core.queries.time_attribution",
        "a round trains until it is known to be broken",
        "return _split(run, min(signs), Activity.DETECTING, now)",
        "return _split(run, now if signs else now, Activity.DETECTING, now)",
    ),
    Mutant(
        "silence-not-dated",
        "coordinatord.core.queries.time_attribution",
        "a round trains until the lease of a dead node is over",
        "signs += [member.lived_at for member in run.members_in(MemberState.SILENT)]",
        "signs += [now for member in run.members_in(MemberState.SILENT)]",
    ),
    Mutant(
        "time-away-was-lost",
        "coordinatord.core.state.member",
        "who does not come back after a start of the coordinator counts as dead since for ever",
        "return max(self.heard_at, self.silent_since)",
        "return self.silent_since",
    ),
    Mutant(
        "turn-outside-the-time",
        "coordinatord.core.values.time_ledger",
        "what happened before the last record is taken from the causes that came before",
        "turn = min(max(turn, self.settled_at), now)",
        "turn = min(turn, now)",
    ),
    Mutant(
        "second-lost-at-a-boundary",
        "coordinatord.core.values.time_ledger",
        "the time since the last record counts from when the next was made, and what is left is counted to nobody",
        "return self.settled.plus(before, turn - self.settled_at).plus(since, now - turn)",
        "return self.settled.plus(before, turn - self.settled_at)",
    ),
    Mutant(
        "enough-for-ever",
        "coordinatord.core.transitions.table",
        "once there were enough nodes, no time counts as waiting for them again",
        "        run.enough_since = None\n    elif",
        "        pass\n    elif",
    ),
    Mutant(
        "always-waiting",
        "coordinatord.core.queries.time_attribution",
        "the settle window counts as waiting for nodes",
        "if run.durable.state is State.FORMING and run.enough_since is not None:",
        "if run.durable.state is State.FORMING and run.enough_since is None and now < 0:",
    ),
    Mutant(
        "first-step-at-the-start",
        "coordinatord.core.queries.time_attribution",
        "what workers do before their first step counts as training",
        "split(first_step_at, Activity.STARTING, Activity.TRAINING, now)",
        "split(first_step_at, Activity.TRAINING, Activity.TRAINING, now)",
    ),
    Mutant(
        "steps-to-come-not-heard",
        "coordinatord.core.state.run",
        "workers run, as far as is known, until the first of the steps that they have said to come",
        "return Activity.STARTING if recorded is Activity.RUNNING and self.steps_announced else recorded",
        "return recorded",
    ),
    Mutant(
        "steps-to-come-for-ever",
        "coordinatord.core.state.run",
        "what workers of one round have said of steps to come holds for the next",
        "        self.steps_announced = False\n        self.failures",
        "        self.failures",
    ),
    Mutant(
        "stall-not-seen",
        "coordinatord.core.transitions.observations",
        "that nobody does a step is only seen when something else is new",
        "return conditions.stalled(run) is not None or conditions.resumed(run) is not None",
        "return conditions.resumed(run) is not None",
    ),
    Mutant(
        "stall-for-ever",
        "coordinatord.core.transitions.observations",
        "that workers do steps again is only seen when something else is new",
        "return conditions.stalled(run) is not None or conditions.resumed(run) is not None",
        "return conditions.stalled(run) is not None",
    ),
    Mutant(
        "stall-at-once",
        "coordinatord.core.values.training_progress",
        "a step that is late by a second is a stall",
        "            self.idle_s = heard_at - self.stepped_at\n",
        "            self.idle_s = 10 * (heard_at - self.stepped_at)\n",
    ),
    Mutant(
        "heard-by-itself",
        "coordinatord.core.queries.conditions",
        "a coordinator that is started again takes that for the word of nodes that were silent",
        "return _when(run.durable.silent and run.connected)",
        "return _when(run.durable.silent and not run.all_silent)",
    ),
    Mutant(
        "stall-not-dated",
        "coordinatord.core.queries.time_attribution",
        "all the time since the last record counts as a stall",
        "_split(run, newest, Activity.STALLED, now)",
        "_split(run, 0.0, Activity.STALLED, now)",
    ),
    Mutant(
        "steps-awaited-for-ever",
        "coordinatord.core.transitions.apply",
        "a round that reports its steps never trains",
        "_spend(run, record.spent, Activity.TRAINING, at)\n\n\ndef _training_stalled",
        "_spend(run, record.spent, Activity.STARTING, at)\n\n\ndef _training_stalled",
    ),
    Mutant(
        "time-beside-the-records",
        "coordinatord.core.transitions.table",
        "that enough nodes were there is counted beside the records",
        "        run.enough_since = now\n",
        "        run.enough_since = now\n        run.durable.ledger.settled = run.durable.ledger.at(now)\n",
    ),
)
