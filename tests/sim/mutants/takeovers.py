"""Mistakes about which of several coordinators leads, and what a former leader may still do."""

from __future__ import annotations

from tests.sim.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "no-fence",
        "coordinatord.store.etcd.history",
        "a commit does not demand that this coordinator still leads",
        "        fenced = [created_at(self._keys.leader, self._fence), *demands]\n",
        "        fenced = demands\n",
        plays="standby_world",
    ),
    Mutant(
        "late-commit-done-again",
        "coordinatord.store.etcd.history",
        "a commit does not demand that nobody has written since: one that was sent twice and comes late is done twice",
        "        answer = await self._try([self._nothing_committed], [put",
        "        answer = await self._try([self._nothing_committed][head != self._head :], [put",
        plays="standby_world",
    ),
    Mutant(
        "late-sweep",
        "coordinatord.store.etcd.history",
        "the sweep of a leader that begins deletes its own commits if it comes late",
        "        await self._write_head(self._head, [unfinished, *others])\n",
        "        await self._change([], [unfinished, *others])\n",
        plays="standby_world",
    ),
    Mutant(
        "speaks-before-etcd",
        "coordinatord.core.journal",
        "nodes receive what etcd is still asked to keep",
        "        last.hold(batch, now)\n        return ()\n",
        "        last.hold(batch, now)\n        return () if batch.records else batch.effects\n",
        plays="standby_world",
    ),
    Mutant(
        "believes-its-clock",
        "coordinatord.store.etcd.election",
        "a leader that was paused acts as the leader until etcd refuses a renewal",
        "        return not self.term.is_over(now)\n",
        "        return self.fence > 0\n",
        plays="standby_world",
    ),
    Mutant(
        "end-not-noticed",
        "coordinatord.store.etcd.election",
        "a standby notices the end of a leader only where another one leads at once",
        "        return created_at != self._seen\n",
        "        return created_at is not None and created_at != self._seen\n",
        plays="standby_world",
    ),
    Mutant(
        "own-key-not-known",
        "coordinatord.store.etcd.leadership",
        "a coordinator stands by for itself, as the answer to its first try to lead was lost",
        "        leads = self.election.tried(found.create_revision, found.lease)\n",
        "        leads = False\n",
        plays="standby_world",
    ),
    Mutant(
        "leader-not-asked",
        "nodeclient.access.contact_points",
        "a node passes over the leader that a standby names",
        "            self._leader, self._served = ContactPoint(leader), False\n            return True\n",
        "            return True\n",
        plays="standby_world",
    ),
    Mutant(
        "silent-coordinator-asked-again",
        "nodeclient.access.contact_points",
        "a node tries for ever a coordinator that accepts connections and answers nothing",
        "        self._advance(addresses)\n        self._served = False\n",
        "        if served:\n            self._advance(addresses)\n        self._served = False\n",
        plays="standby_world",
    ),
    Mutant(
        "leads-on-unheard",
        "coordinatord.core.queries.reach",
        "a leader that no node can reach leads on, although a standby is there",
        "    return silent\n",
        "    return False\n",
        plays="cut_leaders.cut_leader_world",
    ),
    Mutant(
        "never-heard-is-cut-off",
        "coordinatord.core.queries.reach",
        "coordinators that nobody reaches take turns for ever, and none ends the job",
        "            silent |= member.session is not None\n",
        "            silent = True\n",
        plays="cut_leaders.cut_leader_world",
    ),
)
