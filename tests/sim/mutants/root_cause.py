"""Mistakes about what counts as a loss, what ended a round, and who pays for it."""

from __future__ import annotations

from tests.sim.mutants.mutant import Mutant

MUTANTS = (
    # The budget
    Mutant(
        "budget-for-membership",
        "coordinatord.core.transitions.actions",
        "a lost node whose peers' workers fail in consequence is charged to the budget",
        "charged, repeats = report is not None, repeats_of",
        "charged, repeats = bool(run.failures), repeats_of",
    ),
    Mutant(
        "budget-never-charged",
        "coordinatord.core.transitions.actions",
        "a failure is recorded as charged, but the count stays as it was",
        "restarts_used=run.durable.restarts_used + charged",
        "restarts_used=run.durable.restarts_used",
    ),
    Mutant(
        "budget-charged-twice",
        "coordinatord.core.transitions.actions",
        "one failure is charged for each node that saw it",
        "restarts_used=run.durable.restarts_used + charged",
        "restarts_used=run.durable.restarts_used + (charged and len(run.failures))",
    ),
    Mutant(
        "budget-overdrawn",
        "coordinatord.core.state.run",
        "there is one restart more than the budget has",
        "self.durable.restarts_used >= self.spec.max_restarts",
        "self.durable.restarts_used > self.spec.max_restarts",
    ),
    Mutant(
        "budget-not-used-up",
        "coordinatord.core.state.run",
        "a run fails with a restart left",
        "self.durable.restarts_used >= self.spec.max_restarts",
        "self.durable.restarts_used + 1 >= self.spec.max_restarts",
    ),
    Mutant(
        "exit-code-of-nobody",
        "coordinatord.core.transitions.actions",
        "a run that fails exits with the code of a bug, not of the worker",
        "shell_exit_code(verdict.charged.failure.exit_code) if verdict.charged else ExitCode.INTERNAL",
        "ExitCode.INTERNAL if verdict.charged else ExitCode.TEMPFAIL",
    ),
    # What came first
    Mutant(
        "planned-stop-charged",
        "coordinatord.core.values.root_cause",
        "workers that fail because their peers go in a planned stop are charged",
        "if first.at >= consequences_from:",
        "if first.at < consequences_from:",
    ),
    Mutant(
        "collateral-window-missing",
        "coordinatord.core.values.root_cause",
        "a node must have fallen silent before its peers' workers failed to have caused it",
        "return loss.silent_since <= first.at + collateral_s and",
        "return loss.silent_since <= first.at and",
    ),
    Mutant(
        "collateral-window-reversed",
        "coordinatord.core.values.root_cause",
        "a node that is lost later is taken for the cause, one lost before is not",
        "return loss.silent_since <= first.at + collateral_s and",
        "return loss.silent_since >= first.at - collateral_s and",
    ),
    Mutant(
        "all-losses-excuse",
        "coordinatord.core.values.root_cause",
        "a failure is excused by any loss, however much later",
        "return loss.silent_since <= first.at + collateral_s and",
        "return loss.silent_since <= first.at + 3600 and",
    ),
    Mutant(
        "last-failure-charged",
        "coordinatord.core.values.root_cause",
        "the last of several failures is taken for the root cause",
        "first = min(failures, key=lambda failure: failure.at)",
        "first = max(failures, key=lambda failure: failure.at)",
    ),
    Mutant(
        "failure-dated-by-receipt",
        "coordinatord.core.state.run",
        "a failure counts from when it is heard of, not from when it happened",
        "WorkerFailure(member.node, member.offer.host, now - failure.age_s, failure)",
        "WorkerFailure(member.node, member.offer.host, now, failure)",
    ),
    Mutant(
        "failure-of-older-round",
        "coordinatord.core.transitions.observations",
        "a failure in an older round is held against the present one",
        "return inside and observed.round == run.durable.round and observed.run == run.id",
        "return inside and observed.run == run.id",
    ),
    Mutant(
        "evidence-outlives-round",
        "coordinatord.core.state.run",
        "failures of the last round are held against the next",
        'self.failures, self.lost_at, self.restart_asked = {}, math.inf, ""',
        'self.lost_at, self.restart_asked = math.inf, ""',
    ),
    Mutant(
        "losses-outlive-round",
        "coordinatord.core.transitions.apply",
        "a node that was lost in an older round excuses failures in the next",
        'run.round, run.superseded_reason, run.losses, run.first_failure = record.round, "", [], None',
        'run.round, run.superseded_reason, run.first_failure = record.round, "", None',
    ),
    Mutant(
        "done-and-gone-excuses",
        "coordinatord.core.transitions.apply",
        "a node that is lost after it did its part excuses failures of others",
        "if member.in_round and not member.succeeded:",
        "if member.in_round:",
    ),
    # Losses
    Mutant(
        "loss-not-noted",
        "coordinatord.core.transitions.apply",
        "a lost node leaves no evidence, so what its peers' workers fail of is charged",
        "    if member.in_round and not member.succeeded:\n"
        "        run.losses.append(LostNode(member.node, at - record.silent_s))\n",
        "",
    ),
    Mutant(
        "lease-not-renewed",
        "coordinatord.core.machine",
        "a node that only sends heartbeats is lost after its first lease",
        "        self._leases.renew(run, member, heartbeat_s, now)\n        if observed.steps",
        "        observed.beat or self._leases.renew(run, member, heartbeat_s, now)\n        if observed.steps",
    ),
    Mutant(
        "no-grace-to-reconnect",
        "coordinatord.core.state.leases",
        "a node whose connection closes is lost at once",
        "self.set((run.id, member.node), min(lease, grace))",
        "self.set((run.id, member.node), min(lease, now))",
    ),
    Mutant(
        "reconnect-grace-adds-up",
        "coordinatord.core.state.leases",
        "a node whose process died is waited for a whole lease",
        "self.set((run.id, member.node), min(lease, grace))",
        "self.set((run.id, member.node), max(lease, grace))",
    ),
    Mutant(
        "all-silent-all-lost",
        "coordinatord.core.queries.conditions",
        "when the coordinator itself is cut off, it gives up the whole round",
        "if not run.count(MemberState.SILENT) or not run.connected:",
        "if not run.count(MemberState.SILENT):",
    ),
    Mutant(
        "first-silent-is-lost",
        "coordinatord.core.queries.conditions",
        "when the coordinator itself is cut off, the first node to fall silent is lost",
        "return _when(run.heard_at >= run.expired_at - 2 * heartbeat_s)",
        "return _when(heartbeat_s)",
    ),
    Mutant(
        "others-not-renewed",
        "coordinatord.core.machine",
        "when the first node is heard again after all were silent, the others are lost",
        "        if run.all_silent:\n            self._leases.renew_all(run, self._heartbeat_s, now)\n",
        "",
    ),
    Mutant(
        "silence-without-end",
        "coordinatord.core.queries.conditions",
        "a run whose nodes all fell silent stands for ever",
        "    return run.expired_at + run.workers_gone_s + patience_s",
        "    return None and patience_s",
    ),
    Mutant(
        "silent-while-stopping",
        "coordinatord.core.machine",
        "a node that falls silent while a round is stopped is never lost",
        "at_work = durable.in_round and run.durable.state in {State.STARTING, State.RUNNING}",
        "at_work = durable.in_round",
    ),
    Mutant(
        "stall-not-forgiven",
        "coordinatord.core.machine",
        "after the coordinator was asleep, all nodes are lost",
        "if self._due is not None and now - self._due > self.policy.heartbeat_s and",
        "if self._due is not None and self._due - now > self.policy.heartbeat_s and",
    ),
)
