"""What one coordinator concludes about who leads, from what etcd has answered: pure, with the clock as an argument.

`leadership` sends the requests. Times are in seconds by one clock of this host that never stops.
"""

from __future__ import annotations

RENEWALS = 3
"""How often a lease is renewed in its length: two may fail."""

TRY_SHARE = 0.4
"""The part of a lease that one member of etcd has to renew it: two tries fit into it."""

RETRY_S = 0.5
"""The pause before etcd is asked again that did not answer."""


class Term:
    """The time in which a leader may speak."""

    def __init__(self, length_s: float, begun_at: float) -> None:
        """Begin when the request for the lease was sent: etcd's own time began later."""
        self._length_s = length_s
        self._until = begun_at + length_s

    def renew(self, sent_at: float) -> None:
        """Note a renewal by a request that was sent then; etcd has answered it."""
        self._until = max(self._until, sent_at + self._length_s)

    def is_over(self, now: float) -> bool:
        """Whether another coordinator may lead by now."""
        return now >= self._until

    @property
    def until(self) -> float:
        """When it is over, unless it is renewed."""
        return self._until


class Election:
    """What one coordinator knows of the leader key and of its own lease."""

    def __init__(self, lease_s: float) -> None:
        """Know nothing; the lease will be asked for so many seconds."""
        self.renew_every_s = lease_s / RENEWALS
        """The pause between two renewals that are answered."""
        self.try_within_s = lease_s * TRY_SHARE
        """How long one member of etcd has for a renewal."""
        self.lease = 0
        """The own lease; 0 for none."""
        self.fence = 0
        """The revision at which this one's leader key came to be; 0 while it does not lead."""
        self.term = Term(0.0, 0.0)
        self._seen = 0
        """The revision at which the leader key came to be that was read last."""

    def enrolled(self, lease: int, length_s: float, sent_at: float) -> None:
        """Note a lease of one's own, which was asked for then."""
        self.lease, self.term = lease, Term(length_s, sent_at)

    def tried(self, created_at: int, lease: int) -> bool:
        """Note the leader key as it is after a try to make it; return whether this coordinator leads by it.

        `created_at` is the revision at which the key came to be, `lease` the one that it goes with. The own lease also
        says so where the answer to an earlier try was lost.
        """
        self._seen = created_at
        if lease == self.lease:
            self.fence = created_at
        return lease == self.lease

    def is_end(self, created_at: int | None) -> bool:
        """Whether the term of the leader that was seen last is over; None: there is no leader key now."""
        return created_at != self._seen

    def renewed(self, sent_at: float, now: float, left_s: float | None) -> float | None:
        """Note the answer to a renewal; return the pause before the next one, None if this one leads no more.

        etcd says for how many seconds it has renewed the lease, 0 if that is over; None: it has not answered.
        """
        if left_s is not None and left_s <= 0:
            return None
        if left_s is not None:
            self.term.renew(sent_at)
        if self.term.is_over(now):
            return None
        pause_s = RETRY_S if left_s is None else self.renew_every_s
        return min(pause_s, self.term.until - now)

    def may_act(self, now: float) -> bool:
        """Whether this one, if it led, still leads as far as it can know."""
        return not self.term.is_over(now)

    def end(self) -> None:
        """Note that another coordinator may lead from now on."""
        self.term = Term(0.0, 0.0)

    def resign(self, now: float) -> int:
        """Give up the own lease, and with it the lead; return the lease to revoke, 0 if it is over by itself."""
        lease = 0 if self.term.is_over(now) else self.lease
        self.lease = self.fence = 0
        self.end()
        return lease
