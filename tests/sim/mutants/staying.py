"""Mistakes about workers that go into another round as the same processes, and about the first failure among them."""

from __future__ import annotations

from tests.sim.mutants.mutant import Mutant

PLAYS = "staying_world"
STAYING = "nodeclient.core.staying"

MUTANTS = (
    Mutant(
        "connection-lost-first",
        "coordinatord.core.values.root_cause",
        "a worker that loses its connection to a dead one is charged, if its failure is reported first",
        "    if not lost_connection(first.failure):\n        return first\n",
        "    return first\n",
        PLAYS,
    ),
    Mutant(
        "node-keeps-to-its-first-word",
        "coordinatord.core.state.run",
        "a node's later report, with the cause of a lost connection, is ignored",
        "if known is None or (lost_connection(known.failure) and not lost_connection(failure)):",
        "if known is None:",
        PLAYS,
    ),
    Mutant(
        "node-blames-the-lost-connection",
        "nodeclient.core.worker_group",
        "a node reports the worker that lost its connection, and not the one whose end it was",
        "elif by_itself and lost_connection(first):",
        "elif before and lost_connection(first):",
        PLAYS,
    ),
    Mutant(
        "node-denies-its-dead",
        "nodeclient.core.worker_group",
        "a worker that dies just before its node has to stop is no failure if its exit is seen just after",
        "            if before or by_itself:\n",
        "            if before:\n",
        PLAYS,
    ),
    Mutant(
        "node-begins-from-nothing-in-old-processes",
        "nodeclient.core.agent",
        "processes that wait take part in a round that begins from nothing",
        '            self._effects += self._staying.dismiss("the round begins from nothing, and so do its workers")\n',
        "            pass\n",
        PLAYS,
    ),
    Mutant(
        "node-starts-beside-who-waits",
        STAYING,
        "a round begins with new processes beside those that wait",
        "        stay = tuple(sorted(self._held))\n",
        "        stay = ()\n",
        PLAYS,
    ),
    Mutant(
        "node-takes-the-dead",
        STAYING,
        "a process that ended while it waited is to go on",
        "        state = self._states.pop(local_rank, None)\n",
        "        state = self._states.get(local_rank)\n",
        PLAYS,
    ),
    Mutant(
        "node-takes-the-unreachable",
        STAYING,
        "a process without a connection to its node is to go on, and its end is charged to the round that it misses",
        "            self._states[local_rank] = StayState.CUT_OFF\n",
        "            pass\n",
        PLAYS,
    ),
    Mutant(
        "node-keeps-the-unreachable",
        STAYING,
        "a process without a connection to its node lives on beside the one in its place",
        "        return [] if phase is Phase.STOPPING else self._dismiss({StayState.CUT_OFF})\n",
        "        return []\n",
        PLAYS,
    ),
    Mutant(
        "node-holds-for-ever",
        STAYING,
        "processes wait for a round that never comes",
        "        self.hold_until = now + HOLD_S if self._held else None\n",
        "        self.hold_until = None\n",
        "waiting_world",
    ),
    Mutant(
        "node-leaves-who-waits",
        "nodeclient.core.agent",
        "a node ends, and processes wait for a round",
        "        self._effects += self._staying.dismiss()\n        self.exited = True\n",
        "        self.exited = True\n",
        PLAYS,
    ),
    Mutant(
        "node-takes-who-is-not-out",
        "nodeclient.core.worker_departures",
        "a worker whose collective failed is given the next round, and hangs while it destroys its groups",
        '        return Stimulus.FAILED, [Notice(level, notices.failed(failure), "worker_failed")]\n',
        "        held = staying.take(event.local_rank, group.alive)\n"
        "        group.alive.discard(event.local_rank)\n"
        '        told = Notice(level, notices.failed(failure), "worker_failed")\n'
        "        return Stimulus.FAILED, [*([Hold(event.local_rank)] if held else []), told]\n",
        PLAYS,
    ),
    Mutant(
        "node-waits-for-who-is-stuck",
        STAYING,
        "a worker that does not leave its round is never ended",
        "        return [(self._leave_by, Stimulus.LEAVE_OVER)] if self._leave is Leave.ASKED else []\n",
        "        return []\n",
        PLAYS,
    ),
)
