"""All mutants.

Each has a name and a text about what it breaks; `tests/sim/test_mutants.py` checks that it fits the source.

They are mistakes that could have been made: a condition left out, a bound off by one, one of two places forgotten.
"""

from __future__ import annotations

from tests.sim.mutants import (
    checkpoint_waits,
    corroboration,
    durability,
    hangs,
    identities,
    kept_state,
    node,
    operators,
    persisted_state,
    progress,
    root_cause,
    rounds,
    staying,
    takeovers,
    time_ledger,
)

MUTANTS = (
    *rounds.MUTANTS,
    *root_cause.MUTANTS,
    *corroboration.MUTANTS,
    *durability.MUTANTS,
    *operators.MUTANTS,
    *identities.MUTANTS,
    *node.MUTANTS,
    *kept_state.MUTANTS,
    *persisted_state.MUTANTS,
    *checkpoint_waits.MUTANTS,
    *progress.MUTANTS,
    *time_ledger.MUTANTS,
    *hangs.MUTANTS,
    *staying.MUTANTS,
    *takeovers.MUTANTS,
)
