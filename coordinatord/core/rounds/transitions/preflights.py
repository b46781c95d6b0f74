"""Plays a preflight: begins it, and at the end of each turn begins the next one or judges the hosts."""

from __future__ import annotations

from collections.abc import Sequence

from coordinatord.core.rounds.queries.conditions import IDLE_FOR_S, needs_test
from coordinatord.core.rounds.queries.master_address import master_address
from coordinatord.core.rounds.state.member import Member
from coordinatord.core.rounds.state.preflight import HOLD_S, Preflight
from coordinatord.core.rounds.state.run import Run
from coordinatord.core.rounds.transitions.decision import Decision
from coordinatord.core.rounds.transitions.judging import heed_preflight
from coordinatord.core.rounds.values.records import Reason


def begin(run: Run, members: Sequence[Member], why: str, decision: Decision) -> Preflight:
    """Begin a preflight of these members, and return it."""
    run.preflight = Preflight(members, why, after=run.preflight.number)
    _begin_turn(run, run.preflight, decision)
    return run.preflight


def begin_idle(run: Run, reason: Reason, decision: Decision) -> None:
    """Begin a preflight of the members on hosts where no job has workers; look again later if they need none."""
    busy = decision.cluster.hosts_at_work
    members = [member for member in run.testable if member.offer.host not in busy]
    if needs_test(members):
        begin(run, members, reason.sentence, decision)
    else:
        run.preflight.idle_at = decision.now + IDLE_FOR_S


def begin_suspected(run: Run, reason: Reason, decision: Decision) -> None:
    """Begin a preflight of all members, for which the next round waits for a while."""
    run.evidence.suspicions = 0
    preflight = begin(run, run.testable, reason.sentence, decision)
    preflight.hold(decision.now + HOLD_S)


def end_turn(run: Run, _: Reason, decision: Decision) -> None:
    """Record the results of a turn; begin the next one, or judge the hosts if there is none."""
    preflight = run.preflight
    preflight.search.end_turn(preflight.results)
    _begin_turn(run, preflight, decision)
    if preflight.is_over:
        heed_preflight(run, preflight.search, decision)


def make_way(run: Run, decision: Decision) -> None:
    """End the tests of all jobs on hosts of a round that was just formed: they would slow its workers."""
    hosts = {member.offer.host for member in run.roll.inside}
    for each in decision.cluster.live:
        tests = each.preflight
        if any(tests.members[node].offer.host in hosts for node in tests.orders):
            tests.stop(f"round {run.durable.round} of job {run.job} was formed on its hosts")
            decision.notify_all(each)


def _begin_turn(run: Run, preflight: Preflight, decision: Decision) -> None:
    waiting = {member.node: member for member in run.testable if preflight.members.get(member.node) is member}
    pairs = [(waiting.get(node), waiting.get(partner)) for node, partner in preflight.search.pairs]
    addresses = {
        first.node: (master_address(first, [first, second]), first.observed.port)
        for first, second in pairs
        if first is not None and second is not None
    }
    preflight.begin_turn(addresses, run.policy.pair_timeout_s, decision.now)
    decision.notify_all(run)
