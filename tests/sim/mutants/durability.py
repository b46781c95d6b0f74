"""Mistakes about records: what they hold, when effects may follow, and what happens after a crash or on a full disk."""

from __future__ import annotations

from tests.sim.mutants.mutant import Mutant

MUTANTS = (
    # Persist, then send
    Mutant(
        "speaks-first",
        "coordinatord.core.journal",
        "nodes receive what is being written",
        "        last.hold(batch, now)\n        return ()\n",
        "        last.hold(batch, now)\n        return () if batch.records else batch.effects\n",
    ),
    Mutant(
        "speaks-while-writing",
        "coordinatord.core.journal",
        "an answer that rests on records which are being written does not wait for them",
        "last = self._waiting[-1] if self._waiting else self._writing",
        "last = self._waiting[-1] if self._waiting else None",
    ),
    Mutant(
        "speaks-with-group-before",
        "coordinatord.core.journal",
        "an answer that rests on the next group of records is let out with the present one",
        "last = self._waiting[-1] if self._waiting else self._writing",
        "last = self._waiting[-1] if self._waiting and (batch.records or not self._writing) else self._writing",
    ),
    Mutant(
        "speaks-of-next-group",
        "coordinatord.core.journal",
        "messages that rest on a waiting group of records are sent with the group before",
        "return tuple(group.effects.values())",
        "return tuple((group.effects | (self._waiting[0].effects if self._waiting else {})).values())",
    ),
    Mutant(
        "group-dropped",
        "coordinatord.core.journal",
        "what is decided while a group is being written is forgotten",
        "        return tuple(group.effects.values())\n",
        "        self._waiting.clear()\n        return tuple(group.effects.values())\n",
    ),
    Mutant(
        "repeats-what-waits",
        "coordinatord.core.journal",
        "a repeated message is sent while the record under the first one is being written",
        "return () if self._replace(batch) else batch.effects",
        "return batch.effects",
    ),
    Mutant(
        "renews-all-that-waits",
        "coordinatord.core.journal",
        "what follows from the next group of records goes out with the one that is being written",
        "            if holding:\n                holding[-1].effects[",
        "            for group in holding:\n                group.effects[",
        "slow_stores.slow_store_world",
    ),
    Mutant(
        "renews-the-first-that-waits",
        "coordinatord.core.journal",
        "a repeated message takes the place of an earlier one, and goes out with that one's records",
        "                holding[-1].effects[",
        "                holding[0].effects[",
        "slow_stores.slow_store_world",
    ),
    Mutant(
        "word-lost",
        "coordinatord.core.journal",
        "of two messages for a node that wait, the older one is sent",
        "            self.effects.pop(effect.session, None)\n            self.effects[effect.session] = effect\n",
        "            self.effects.setdefault(effect.session, effect)\n",
    ),
    # What is no record
    Mutant(
        "success-not-recorded",
        "coordinatord.core.transitions.observations",
        "that a node succeeded is known, but not recorded",
        "decision.record(NodeSucceeded(run.job, run.id, reason, member.node, member.incarnation, run.durable.round))",
        "member.durable.succeeded = bool(reason) and NodeSucceeded is not None\n            run.place(member)",
    ),
    Mutant(
        "release-not-recorded",
        "coordinatord.core.transitions.releases",
        "that a node was released is known, but not recorded",
        "decision.record(NodeReleased(run.job, run.id, outcome.summary, member.node, member.incarnation, outcome))",
        "member.durable.outcome = outcome if NodeReleased is not None else None\n    run.place(member)",
    ),
    Mutant(
        "replacement-not-recorded",
        "coordinatord.core.machine",
        "a younger process takes its forerunner's place, and that is not recorded",
        "            known = observations.take_in(run, younger, join, decision)\n",
        "                run.add(younger)\n"
        "            else:\n"
        "                younger = observations.take_in(run, younger, join, decision)\n"
        "            known = younger\n",
    ),
    # What a record holds
    Mutant(
        "first-failure-not-kept",
        "coordinatord.core.transitions.actions",
        "the failure that stopped a round is forgotten in a crash if its node is gone too",
        "first = _first_failure(run, decision.now)",
        "first = None and _first_failure(run, decision.now)",
    ),
    Mutant(
        "last-failure-kept",
        "coordinatord.core.transitions.actions",
        "of several failures the last one is recorded for a restart",
        "first = min(run.failures.values(), key=lambda failure: failure.at, default=None)",
        "first = max(run.failures.values(), key=lambda failure: failure.at, default=None)",
        "coincident_world",
    ),
    Mutant(
        "rounds-counted-anew",
        "coordinatord.core.transitions.apply",
        "a run whose records are lost gives numbers to rounds that its nodes have had",
        "        run.round = max(run.round, record.round)\n",
        "        run.round = max(run.round, 0)\n",
    ),
    Mutant(
        "older-copy-believed",
        "coordinatord.core.transitions.observations",
        "a coordinator whose store was set back goes on as if its nodes had not seen later rounds",
        "    if latest > run.durable.round:\n",
        "    if latest > run.durable.round + 1:\n",
        "coincident_world",
    ),
    # A start
    Mutant(
        "no-grace-after-start",
        "coordinatord.core.machine",
        "after a start, nodes that are not back within two heartbeats are lost",
        "self._leases.set((run.id, member.node), now + self.policy.restart_grace_s)",
        "self._leases.set((run.id, member.node), now + 2 * self.policy.heartbeat_s)",
    ),
    Mutant(
        "no-lease-after-start",
        "coordinatord.core.machine",
        "after a start, nodes that never come back are never lost",
        "                self._leases.set((run.id, member.node), now + self.policy.restart_grace_s)\n",
        "",
    ),
    Mutant(
        "absence-counts",
        "coordinatord.core.state.run",
        "the time for which the coordinator was away counts against the nodes",
        "self.begin_stop(now)",
        "self.begin_stop(durable.entered_at)",
    ),
    Mutant(
        "alive-until-start",
        "coordinatord.core.machine",
        "a node that is not back after a start counts as having lived until then",
        "member.heard_at, member.closed_at = now, now - AGE_MAX",
        "member.heard_at, member.closed_at = now, now",
    ),
    Mutant(
        "last-round-unread",
        "coordinatord.store.database",
        "of a run that has ended, a start reads how its rounds ended and not which one was formed last",
        "(RunOpened, RoundFormed, RoundsMissed, RoundEnded, RunEnded)",
        "(RunOpened, RoundsMissed, RoundEnded, RunEnded)",
    ),
    Mutant(
        "stops-not-told",
        "coordinatord.core.values.round_history",
        "the rounds of a run that has ended are shown without why they were stopped",
        "(RoundFormed, RoundStarted, RoundStopped, RoundEnded, RunEnded)",
        "(RoundFormed, RoundStarted, RoundEnded, RunEnded)",
    ),
    Mutant(
        "run-ids-again",
        "coordinatord.core.transitions.runs",
        "each life of the coordinator gives its runs the same names",
        'run_id = f"{self._epoch}-{self._opened}"',
        'run_id = f"run-{self._opened}"',
    ),
    # A disk that fails
    Mutant(
        "decides-in-trouble",
        "coordinatord.core.machine",
        "decisions go on while nothing can be recorded",
        "if self.store_error is not None or run.durable.state.ended:",
        "if run.durable.state.ended:",
    ),
    Mutant(
        "spins-in-trouble",
        "coordinatord.core.machine",
        "what is due while nothing can be decided is looked at again and again",
        "        if self.store_error is not None:\n            return None\n        lease_ends",
        "        lease_ends",
    ),
    Mutant(
        "newcomer-in-trouble",
        "coordinatord.core.machine",
        "a younger process is taken in while that cannot be recorded",
        "            admission.check_not_degraded(self.store_error)\n            if not run.durable.state.ended:",
        "            if not run.durable.state.ended:",
    ),
    Mutant(
        "refused-for-good-in-trouble",
        "coordinatord.core.queries.admission",
        "a node that comes while the disk is full is sent away for good",
        "Refused(RefusalCode.DEGRADED, clip(text), retry=True)",
        "Refused(RefusalCode.DEGRADED, clip(text), retry=False)",
    ),
    Mutant(
        "mute-in-trouble",
        "coordinatord.core.machine",
        "while nothing can be recorded, heartbeats are not answered",
        "for session in decision.answers)",
        "for session in decision.notified if session in decision.answers)",
    ),
    Mutant(
        "trouble-not-forgiven",
        "coordinatord.core.machine",
        "the time for which nothing could be recorded counts against the nodes",
        "        degraded_s = self._wake(decision.now)\n"
        "        for run in self._registry.live.values():\n"
        "            self._leases.give_chance(run, self._heartbeat_s, degraded_s, decision.now)\n",
        "        self._stalls.awake_at = decision.now\n",
    ),
    Mutant(
        "trouble-forgiven-twice",
        "coordinatord.core.machine",
        "a node that is lost while nothing can be recorded is noticed as late after that as it was lost into it",
        "            self._leases.give_chance(run, self._heartbeat_s, degraded_s, decision.now)\n",
        "            run.heard_at = max(run.heard_at, decision.now - degraded_s)\n",
        "coincident_world",
    ),
    Mutant(
        "trouble-for-ever",
        "coordinatord.core.machine",
        "when the disk is well again, nothing is decided as before",
        "        self.store_error = None\n        degraded_s = self._wake(decision.now)\n",
        "        degraded_s = self._wake(decision.now)\n",
    ),
)
