"""Invariants of a round that is stopped for arrivals: the job wants them, and no more are expected at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from coordinatord.core.state.member import MemberState
from coordinatord.core.state.run import Run
from coordinatord.protocol.messages import Join, ScaleUp
from tests.sim.invariants.root_cause import ROUGHLY

if TYPE_CHECKING:  # the world imports its invariants
    from tests.sim.world import World


def too_soon(run: Run, joins: Mapping[tuple[str, int], tuple[Join, float]], world: World) -> str:
    """Return why no round may be stopped for arrivals now; empty if one may.

    `joins` has the first `Join` of each node and incarnation, with its time.
    """
    ready, now, policy = run.members_in(MemberState.READY), world.queue.now, world.scenario.policy
    came = [joins[member.node, member.incarnation][1] for member in ready]
    if not came:
        return "none is ready"
    if run.spec.scale_up is ScaleUp.NEVER:
        return "the job wants none"
    if (
        run.spec.scale_up is ScaleUp.AT_CHECKPOINT
        and (why := world.invariants.kept.waits.too_soon(run, min(came))) is not None
    ):
        return why
    if run.round_size + len(came) >= run.spec.nodes_max:
        return ""
    settled = now - max(came) >= ROUGHLY * policy.settle_s or now - min(came) >= ROUGHLY * policy.settle_max_s
    return "" if settled else f"one came {now - max(came):.2f} s ago, and more may follow"
