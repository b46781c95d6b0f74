"""Selects log files of rounds: those that a request may read, and those that are to be deleted.

A request names a run, a round and a rank, and never a path. The file is looked up in the list of rounds that the nodes
of this host have written, so no request can reach any other file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Annotated

from msgspec import Meta

from coordinatord.protocol.errors import OperationalError
from coordinatord.protocol.fields import Count, Counter, Name
from coordinatord.protocol.log_messages import ReadLog
from coordinatord.protocol.schema import Strict

AT_MAX = 1e11
"""The limit of a time in seconds since 1970, later than any real one."""


class LoggedRound(Strict, frozen=True):
    """The log files of one node's workers in one round."""

    host: Name
    job: Name
    node: Name
    run: Name
    round: Counter
    first_rank: Count
    workers: Count
    begun_at: Annotated[float, Meta(ge=0, le=AT_MAX)]
    """The time in seconds since 1970 by the clock of the host."""
    failed: bool = False
    """Whether the round has failed, or the node was killed during it."""

    @property
    def ranks(self) -> range:
        """The global ranks of its workers."""
        return range(self.first_rank, self.first_rank + self.workers)


class NotLoggedError(OperationalError):
    """The node has no such log; the text says why."""


def find(wanted: ReadLog, rounds: Iterable[LoggedRound]) -> LoggedRound:
    """Return the round with the wanted log, of any node of this host. Raises `NotLoggedError`."""
    known = [kept for kept in rounds if (kept.run, kept.round) == (wanted.run, wanted.round)]
    found = next((kept for kept in known if wanted.rank in kept.ranks), None)
    if found is not None:
        return found
    if known:
        raise NotLoggedError(f"rank {wanted.rank} of round {wanted.round} was not on this host")
    raise NotLoggedError(f"there are no log files of round {wanted.round}: they were deleted, or none was written")


def is_in_future(wanted: ReadLog, rounds: Iterable[LoggedRound]) -> bool:
    """Whether a request to follow a log is for a round that is not begun here: the node may sweep or probe."""
    return wanted.follow and all(kept.run != wanted.run or kept.round < wanted.round for kept in rounds)


def rounds_to_delete(rounds: Collection[LoggedRound], keep: int, present: LoggedRound | None) -> list[LoggedRound]:
    """Return the rounds to delete: all but the newest `keep`, the last one that failed, and the present one.

    A round counts once, however many nodes of the host were in it. Rounds of a run are ordered by their numbers. Runs
    are ordered by time with the present one as the newest, because the clock may have been set back.
    """
    begun_at: dict[str, float] = {}
    for round_ in rounds:
        begun_at[round_.run] = max(begun_at.get(round_.run, 0.0), round_.begun_at)
    if present is not None:
        begun_at[present.run] = AT_MAX
    keys = {(round_.run, round_.round) for round_ in rounds}
    newest = sorted(keys, key=lambda key: (begun_at[key[0]], *key), reverse=True)
    failed = {(round_.run, round_.round) for round_ in rounds if round_.failed}
    kept = {*newest[:keep], *[key for key in newest if key in failed][:1]}
    if present is not None:
        kept.add((present.run, present.round))
    return [round_ for round_ in rounds if (round_.run, round_.round) not in kept]
