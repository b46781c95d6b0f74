"""Mistakes about the steps of the workers: which round they belong to, and whether they arrive at all."""

from __future__ import annotations

from tests.sim.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "steps-of-another-round",
        "coordinatord.core.values.training_progress",
        "a round that has only been formed is where the one before it was",
        "if (observed.round, observed.run) == (number, run)",
        "if observed.run == run",
    ),
    Mutant(
        "steps-not-heard",
        "coordinatord.core.machine",
        "steps are only taken in with what else is new, so a job that is well stands still",
        "        if has_progress:\n            observations.note_steps",
        "        if False:\n            observations.note_steps",
    ),
    Mutant(
        "pace-of-last-round",
        "coordinatord.core.state.run",
        "a new round begins with the pace of the one before it",
        "        self.progress.clear()\n",
        "",
    ),
)
