"""Decides from etcd's answers whether this coordinator leads, and for how long. Pure: the clock is an argument.

The coordinator that creates the *leader key* leads. The key expires with the *lease* of its coordinator, which must be
renewed. The *term* is how long this coordinator may act as the leader: it ends no later than the lease by etcd's clock.

`leadership` sends the requests. Times are in seconds by a clock of this host that also runs while the host sleeps.
"""

from __future__ import annotations

import math

RENEWALS = 3
"""How often a lease is renewed within its length, so that two renewals may fail."""

TRY_SHARE = 0.4
"""The part of a lease that one member of etcd gets for a renewal: two members can be tried within a lease."""

SLOW_SHARE = 0.1
"""etcd is too slow for a lease if an answer takes more than this part of it."""

RETRY_S = 0.5
"""The pause before an unanswered request is retried."""


class Election:
    """One coordinator's view of the leader key and of its own lease."""

    def __init__(self, lease_s: float) -> None:
        """Begin without a lease; the next one will last `lease_s` seconds."""
        self.renew_every_s = lease_s / RENEWALS
        """The pause between two successful renewals."""
        self.try_within_s = lease_s * TRY_SHARE
        """How long one member of etcd may take for a renewal."""
        self._lease_s = lease_s
        self._slowest_s = 0.0
        """The longest time that etcd took to grant or renew a lease."""
        self.lease = 0
        """The id of this coordinator's lease; 0 for none."""
        self.fence = 0
        """The revision of etcd at which this coordinator created the leader key; 0 if it does not lead."""
        self._granted_s = 0.0
        """The length of this lease, as granted by etcd; 0 after the end of the term."""
        self.term_ends_at = 0.0
        """When this coordinator must no longer act as the leader, unless the lease is renewed."""
        self._last_created_at = 0
        """The revision at which the last known leader key was created."""

    def record_lease(self, lease: int, length_s: float, sent_at: float, now: float) -> None:
        """Record this coordinator's lease, which was requested at `sent_at` and granted at `now`."""
        self._slowest_s = max(self._slowest_s, now - sent_at)
        self.lease, self._granted_s = lease, length_s
        self.term_ends_at = sent_at + length_s  # etcd granted it after `sent_at`, and ends it no earlier

    def record_attempt(self, created_at: int, lease: int) -> bool:
        """Record the leader key after an attempt to create it; return whether this coordinator leads.

        `created_at` is the revision at which the key was created, and `lease` is its lease. If the lease is our own,
        this or an earlier attempt has created the key; the answer to the earlier one was lost.
        """
        self._last_created_at = created_at
        if lease == self.lease:
            self.fence = created_at
        return lease == self.lease

    def leader_is_gone(self, created_at: int | None) -> bool:
        """Whether the last known leader leads no more.

        `created_at` is the revision at which the present leader key was created; None if there is no such key.
        """
        return created_at != self._last_created_at

    def record_renewal(self, sent_at: float, now: float, left_s: float | None) -> float | None:
        """Record the result of a renewal; return the seconds until the next one, None if the term is over.

        `left_s` is how long the lease lasts now: 0 if it has expired, and None if etcd has not answered.
        """
        if left_s is not None and left_s <= 0:
            return None
        if left_s is not None:
            self._slowest_s = max(self._slowest_s, now - sent_at)
            # A renewal gives the lease its whole length again.
            self.term_ends_at = max(self.term_ends_at, sent_at + self._granted_s)
        if now >= self.term_ends_at:
            return None
        pause_s = RETRY_S if left_s is None else self.renew_every_s
        return min(pause_s, self.term_ends_at - now)

    def remedy(self, now: float) -> str:
        """Return the advice if the lease has expired because etcd is too slow for it; empty if it has not."""
        has_expired = self._granted_s > 0 and not self.may_act(now)
        if not has_expired or self._slowest_s <= self._lease_s * SLOW_SHARE:
            return ""
        enough_s = 10 * math.ceil(self._slowest_s / SLOW_SHARE / 10)
        took = f"etcd took {self._slowest_s:.1f} s"
        return f"{took}; with --lease {self._lease_s:g} this goes on: raise --lease to {enough_s}"

    def may_act(self, now: float) -> bool:
        """Whether the lease lasts at `now`, so that this coordinator may act as the leader, or try to become it."""
        return now < self.term_ends_at

    def end(self) -> None:
        """End the term: another coordinator may lead from now on."""
        self.term_ends_at = self._granted_s = 0.0  # a renewal that is on its way grants nothing

    def resign(self, now: float) -> int:
        """Resign as the leader; return the lease to revoke, 0 if it has expired."""
        lease = self.lease if now < self.term_ends_at else 0
        self.lease = self.fence = 0
        self.end()
        return lease
