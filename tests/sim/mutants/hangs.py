"""Mistakes about workers that hang, or come late: when they are looked at, what that shows, what becomes of it."""

from __future__ import annotations

from tests.sim.mutants.mutant import Mutant

PLAYS = "hanging_world"

OFTEN_HEARD = "frequent_heartbeats.often_heard_world"

LAGS = "lagging_world"

CALM = "calm_runs.calm_run"

LOOKS = "coordinatord.core.transitions.hang_looks"
COMPARISON = "coordinatord.core.values.look_comparison"
VERDICT = "coordinatord.hints.hang_verdict"
SEEN = "coordinatord.hints.seen_worker"

MUTANTS = (
    Mutant(
        "one-look-only",
        LOOKS,
        "a training that waits in a collective for a moment is taken for one that hangs",
        "        watch.keep(look, now, looks_apart_s(run))\n        return\n",
        "        watch.first = look\n",
        PLAYS,
    ),
    Mutant(
        "looks-too-close",
        COMPARISON,
        "the second look comes before any training could have got on",
        "APART_S = 1.0",
        "APART_S = 0.0",
        OFTEN_HEARD,
    ),
    Mutant(
        "counters-not-compared",
        COMPARISON,
        "a worker that waits in both looks is taken to have waited in between",
        "    return moves or (first.group, first.number, first.state) != (second.group, second.number, second.state)",
        "    return moves",
        PLAYS,
    ),
    Mutant(
        "section-ignored",
        "coordinatord.core.values.training_progress",
        "a section of the script may take no longer than its steps",
        "        self.sections.note(group_rank, observed.section, heard_at)\n",
        "",
        PLAYS,
    ),
    Mutant(
        "verdict-outlives-its-round",
        "coordinatord.core.state.run",
        "older looks still count: the next round is restarted for the hang of the one before",
        "        self.hang.clear()\n",
        "",
        PLAYS,
    ),
    Mutant(
        "busy-is-hung",
        "coordinatord.core.queries.hanging",
        "an evaluation of one worker is restarted",
        "found is not None and ((found.is_hang and not is_borne) or allows_no_more)",
        "found is not None",
        PLAYS,
    ),
    Mutant(
        "last-round-ended-by-its-pace",
        "coordinatord.core.queries.hanging",
        "a job of which no restart is left is ended as a worker of it waits for something else",
        "run.hang.is_tolerated or is_left_to_torch(run)",
        "run.hang.is_tolerated",
        "calm_runs.last_calm_run",
    ),
    Mutant(
        "off-is-on",
        "coordinatord.core.queries.hanging",
        "a job that wants no alarm has one",
        "run.spec.hang_timeout_s == 0 or run.spec",
        "run.spec",
        PLAYS,
    ),
    Mutant(
        "lost-look-awaited",
        "coordinatord.core.state.hang_watch",
        "a look that never comes back is waited for",
        "self.pending, self.due_at = self._numbers, now + ANSWERED_WITHIN_S",
        "self.pending, self.due_at = self._numbers, math.inf",
        PLAYS,
    ),
    Mutant(
        "laggard-drained-at-once",
        "coordinatord.core.state.lateness_watch",
        "one look in which a worker is late costs its node its place",
        "AGREEING = 3",
        "AGREEING = 1",
        LAGS,
    ),
    Mutant(
        "laggards-take-turns",
        "coordinatord.core.state.lateness_watch",
        "looks that name different nodes are taken to agree",
        " and laggard.node == before.node",
        "",
        LAGS,
    ),
    Mutant(
        "laggards-drained-unasked",
        "coordinatord.core.queries.arrivals",
        "a node is drained for its lateness, though its job does not want that",
        "    if not factor or watch.known is None",
        "    if watch.known is None",
        LAGS,
    ),
    Mutant(
        "laggards-below-the-least",
        "coordinatord.core.queries.arrivals",
        "a node is drained for its lateness, and too few are left for a round",
        "    return found if left >= run.spec.nodes_min else None",
        "    return found",
        LAGS,
    ),
    Mutant(
        "laggards-leave-together",
        "coordinatord.core.queries.arrivals",
        "a node is drained for its lateness while another one that leaves is still there",
        "    if found is None or len(staying) < len(run.members) or found.node not in run.members:\n",
        "    if found is None or found.node not in run.members:\n",
        "givers.late_giving_world",
    ),
    Mutant(
        "lateness-outlives-its-round",
        "coordinatord.core.state.run",
        "a node is drained for how late it was in the round before",
        "        self.lateness.clear()\n",
        "",
        LAGS,
    ),
    Mutant(
        "slow-collective-is-a-hang",
        VERDICT,
        "a collective of many bytes over a slow network is taken for a network that is cut",
        "    if any(moves_bytes(worker) for worker in waiting):\n        return None\n",
        "",
        CALM,
    ),
    Mutant(
        "only-writers-move-data",
        SEEN,
        "data that leaves the kernel's buffers, or comes from another worker, is not seen to move",
        "    return max(now.io_bytes - before.io_bytes, sent) >= BUSY_BYTES",
        "    return now.io_bytes - before.io_bytes >= BUSY_BYTES",
        CALM,
    ),
    Mutant(
        "flush-is-a-hang",
        LOOKS,
        "one long flush of a checkpoint, in which no counter moves, is taken for a hang",
        "    return now - watch.still_at < OUTSIDE_PATIENCE_S",
        "    return False",
        CALM,
    ),
    Mutant(
        "program-is-a-hang",
        SEEN,
        "a program that a worker has started and waits for is taken for a hang",
        '"a disk" if worker.state == WAITS_FOR_DISK else worker.waits_for',
        '"a disk" if worker.state == WAITS_FOR_DISK else ""',
        CALM,
    ),
    Mutant(
        "who-writes-stands",
        SEEN,
        "a checkpoint to a slow disk is taken for a hang",
        "    return moved or moves_bytes(worker)",
        "    return moved",
        CALM,
    ),
    Mutant(
        "who-gets-no-cpu-stands",
        SEEN,
        "an evaluation on a host that is busy is taken for a hang",
        '    if "running" in {now.state, "" if before is None else before.state}:',
        '    if "running" in {""}:',
        CALM,
    ),
)
