"""Counts how the workers of a round were started, from the fastest way to the slowest: in place, warm or cold.

A worker that begins the round *in place* is a process of the round before. A *warm* one was forked from an interpreter
that has imported the modules of `--preload`. A *cold* one is started as a process of its own. Users see the counts, and
why starts were not faster.
"""

from __future__ import annotations

from msgspec.structs import replace

from coordinatord.core.rounds.state.run import Run
from coordinatord.protocol.fields import MESSAGE_MAX
from coordinatord.protocol.messages import WorkerStarts
from coordinatord.protocol.text import clip


def count_starts(run: Run) -> WorkerStarts | None:
    """Return how the workers of the present round were started, and the first nodes' reasons for slower starts.

    None if no node reports it: then all workers are cold, and no faster start was possible. The workers of any node
    that reports nothing count as cold.
    """
    known = [
        (member.node, member.observed.begun)
        for member in run.roll.inside
        if member.observed.begun is not None and member.observed.round == run.durable.round
    ]
    if not known:
        return None
    workers = sum(member.offer.workers for member in run.roll.inside)
    # A node may report more starts than it has workers.
    in_place = min(sum(starts.in_place for _, starts in known), workers)
    warm = min(sum(starts.warm for _, starts in known), workers - in_place)
    why_not_in_place = next((f"node {node}: {starts.why_not}" for node, starts in known if starts.why_not), "")
    why_cold = next(
        (
            replace(starts.why_cold, text=clip(f"node {node}: {starts.why_cold.text}", MESSAGE_MAX))
            for node, starts in known
            if starts.why_cold is not None
        ),
        None,
    )
    return WorkerStarts(in_place, warm, workers - in_place - warm, clip(why_not_in_place, MESSAGE_MAX), why_cold)
