"""Replays records of runs without a daemon, for the subcommands that read a store.

The state of a run is what its records say, applied in order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from coordinatord.core.rounds.state.durable import DurableCluster, DurableRun
from coordinatord.core.rounds.transitions.apply import HistoryError, apply
from coordinatord.protocol.http.api import RestartsStatus
from coordinatord.store.error_texts import REMEDY
from coordinatord.store.interface import Entry, UnreadableStoreError


def replay_run(entries: Sequence[Entry]) -> Iterator[tuple[Entry, DurableRun]]:
    """Apply the records of one run; yield each of them with the run after it.

    All yield the same object, which the next record changes. Raises `UnreadableStoreError`.
    """
    cluster = DurableCluster()
    for number, entry in enumerate(entries, 1):
        try:
            apply(cluster, entry.record, entry.at)
        except HistoryError as error:
            raise UnreadableStoreError(
                f"record {number} of the run does not follow from those before it: {error}; {REMEDY}"
            ) from error
        run = cluster.jobs.get(entry.record.job)
        if run is None:
            raise UnreadableStoreError(f"record {number} of the run forgets it, and records follow; {REMEDY}")
        yield entry, run


def final_state(entries: Sequence[Entry]) -> DurableRun:
    """Return a run after all its records, of which there is at least one. Raises `UnreadableStoreError`."""
    *_, (_, run) = replay_run(entries)
    return run


def replay_drains(entries: Sequence[Entry]) -> DurableCluster:
    """Return a cluster with the drains of these records. They belong to no job, so `apply` rejects none of them."""
    cluster = DurableCluster()
    for entry in entries:
        apply(cluster, entry.record, entry.at)
    return cluster


def restarts_of(run: DurableRun) -> RestartsStatus:
    """Return the used restarts of a run, and its budget."""
    return RestartsStatus(used=run.restarts_used, max=run.spec.max_restarts)
