"""The kept state of a run as tests change it, without a coordinator."""

from dataclasses import replace
from typing import Any

from coordinatord.core.keeping.copy_plan import CopyPlan
from coordinatord.core.keeping.known import KeptState, kept_of
from coordinatord.core.keeping.write_progress import StepWriter, WriteAttempt
from coordinatord.core.machine import WINGS
from coordinatord.core.rounds.policy import Policy
from coordinatord.core.rounds.state.durable import DurableRun
from coordinatord.core.rounds.state.run import Run
from coordinatord.core.rounds.values.time_ledger import Ledger
from coordinatord.protocol.kept_state import KeptParts, KeptStep
from tests.support.builders import a_member, a_spec
from tests.support.kept_state import kept_parts

NODES = 3


def a_kept(members: int = 0, **changes: Any) -> KeptState:
    """Return the kept state of a run with some members, whose records have some changes."""
    durable = DurableRun("job", "e-1", a_spec(), "n0", entered_at=0.0, ledger=Ledger(0.0))
    durable.members = {f"n{number}": a_member(f"n{number}").durable for number in range(members)}
    return kept_of(Run(replace(durable, **changes), Policy(), WINGS))


def a_write(at: KeptStep) -> WriteAttempt:
    """Return an attempt of one node to write a step."""
    writers = {"n1": StepWriter(1, ())}
    return WriteAttempt(1, at, NODES, NODES, writers, "n1", began_at=0.0, progressed_at=0.0)


def shard(number: int, step: int, *, protected: bool = False) -> KeptParts:
    """Return the shard of a step that a node has, whose number is the shard's."""
    ranks = range(number, number + 1)
    return kept_parts(1, step, ranks, world_size=NODES, shards=NODES, protected=protected)


def note(kept: KeptState, number: int, *parts: KeptParts) -> bool:
    """Take in what a node keeps, where no node takes copies; return whether other steps are to be protected."""
    kept.record_parts(f"n{number}", parts)
    changed = kept.protection.advance()
    for at in kept.protection.steps or ():
        kept.copies.plans.setdefault(at, CopyPlan({}))
    return changed


def keep(kept: KeptState, step: int, *, protected: bool = False, nodes: int = NODES) -> None:
    """Have the first nodes keep a step."""
    for number in range(nodes):
        note(kept, number, shard(number, step, protected=protected))
