"""Mistakes in the proof that a node is gone: each accepts something as a proof that is none."""

from __future__ import annotations

from tests.sim.mutants.mutant import Mutant

MODULE = "coordinatord.core.queries.corroboration"

MUTANTS = (
    Mutant(
        "failure-alone-proves",
        MODULE,
        "a node whose peers' collectives failed counts as gone, though its session is open",
        "if not suspect.vanished or is_ending or _may_have_closed(suspect):",
        "if is_ending or _may_have_closed(suspect):",
        "torn_world",
    ),
    Mutant(
        "closed-session-alone-proves",
        MODULE,
        "a node whose session closes while a worker of another node fails by itself counts as gone",
        "return suspect if all(_is_consequence(failure.failure) for failure in run.failures.values()) else None",
        "return suspect",
        "torn_world",
    ),
    Mutant(
        "lost-peer-ignored",
        MODULE,
        "a node counts as gone for what another one that was lost before has caused",
        "if run.with_workers != 1 or run.round_size != len(run.durable.order) or not run.failures:",
        "if run.with_workers != 1 or not run.failures:",
        "torn_world",
    ),
)
