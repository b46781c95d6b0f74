"""The common part of the subcommands that read a state directory: the replay of runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from coordinatord.core.policy import Policy
from coordinatord.core.state.cluster import Cluster
from coordinatord.core.state.run import Run
from coordinatord.core.transitions import apply
from coordinatord.core.transitions.apply import HistoryError
from coordinatord.protocol.api import RestartsStatus
from coordinatord.store.error_texts import REMEDY
from coordinatord.store.interface import Entry, UnreadableStoreError


def replayed(entries: Sequence[Entry]) -> Iterator[tuple[Entry, Run]]:
    """Go through the history of one run; yield each record and the run as it is then, one object throughout.

    Raises `UnreadableStoreError`.
    """
    cluster = Cluster()
    for number, entry in enumerate(entries, 1):
        try:
            apply.apply(cluster, entry.record, entry.at, Policy())
        except HistoryError as error:
            raise UnreadableStoreError(f"record {number} of the run cannot be: {error}; {REMEDY}") from error
        run = cluster.jobs.get(entry.record.job)
        if run is None:
            raise UnreadableStoreError(f"record {number} of the run forgets it, and records follow; {REMEDY}")
        yield entry, run


def last_of(entries: Sequence[Entry]) -> tuple[Entry, Run]:
    """Return the last record of a history, which must not be empty, and the run that it led to."""
    *_, last = replayed(entries)
    return last


def drains_of(entries: Sequence[Entry]) -> Cluster:
    """Return the drains that the records of no job led to."""
    cluster = Cluster()
    for entry in entries:
        apply.apply(cluster, entry.record, entry.at, Policy())
    return cluster


def restarts_of(run: Run) -> RestartsStatus:
    """Return how much of the budget of restarts a run has used."""
    return RestartsStatus(used=run.restarts_used, max=run.spec.max_restarts)


def counted(number: int, thing: str) -> str:
    """Write '1 node' or '2 nodes'."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"
