"""Elects the leader: the coordinator that creates the leader key in etcd, and leads until the key is gone.

The key expires with its *lease*, which the leader renews three times within the lease's length. Each of its
transactions demands that the key still has the revision of its creation, the *fence*. So a leader that was paused
cannot write after another one. Its own clock also limits how long it may act. `election` decides, and this module sends
the requests.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from coordinatord.protocol.http.api import SharedStatus
from coordinatord.runtime.boot import boot_clock
from coordinatord.runtime.logs import fields
from coordinatord.runtime.tasks import Tasks
from coordinatord.store.etcd.election import RETRY_S, Election
from coordinatord.store.etcd.gateway import Gateway
from coordinatord.store.etcd.keys import Keys
from coordinatord.store.etcd.refusals import EtcdRefusedError
from coordinatord.store.etcd.requests import created_at, delete, get, put, txn
from coordinatord.store.etcd.roster import Coordinatord, Roster
from coordinatord.store.interface import LEASE_OVER, LeadershipLostError, StoreError

log = logging.getLogger(__name__)

STANDBY_OVER = "the lease of this standby is over"
"""Why a standby gets a new lease before it tries to lead."""

EARLIER_TERM = "the lease of an earlier term of this coordinator has not expired"
"""Why nobody leads after a leader was killed and started again, or could not revoke its lease."""


async def _check_nothing() -> None:
    """Do nothing: the check before `EtcdStore` sets one."""


async def _retried(work: Callable[[], Awaitable[None]]) -> None:
    """Repeat `work` until etcd executes it without an error; other tasks report such errors."""
    while True:
        try:
            return await work()
        except StoreError:
            await asyncio.sleep(RETRY_S)


class Candidate:
    """This coordinator, which stands by, leads and resigns in a namespace.

    After `win`, `lead` runs beside the server, and `resign` comes at the end.
    """

    def __init__(
        self, gateway: Gateway, keys: Keys, me: Coordinatord, lease_s: float, clock: Callable[[], float] = boot_clock
    ) -> None:
        """Begin without a lease, and unknown to the others; `clock` returns seconds, and runs while the host sleeps."""
        self._gateway = gateway
        self._me = me
        self._lease_s = lease_s
        self._keys = keys
        self._clock = clock
        self._standby_key = b""
        self.election = Election(lease_s)
        self.leader: Coordinatord | None = None
        """The other coordinator that leads; None if none is known."""
        self.problem = ""
        """Why the leader is not known; empty if there is no error."""
        self.changed: Callable[[], None] = lambda: None
        """Called when `leader` or `problem` has changed."""
        self.check_commits: Callable[[], Awaitable[None]] = _check_nothing
        """Called while this coordinator leads; raises `LeadershipLostError` if etcd has lost a commit. `EtcdStore` sets
        it."""
        self.roster = Roster(gateway, keys)

    async def let_others_lead(self, longest_s: float) -> None:
        """Wait until another coordinator leads, at most `longest_s` seconds.

        A coordinator that has given up the lead calls it before `win`; otherwise it might win at once.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(longest_s):
                await _retried(self._await_other)

    async def win(self) -> None:
        """Stand by until this coordinator leads. Log errors of etcd, and retry."""
        logged = ""
        while True:
            try:
                await self._stand_by()
            except StoreError as error:
                self._set_leader(None, str(error))
                if logged != str(error):
                    logged = str(error)
                    log.warning("it is not known who leads: %s", error, extra=fields("leader_unknown"))
                await asyncio.sleep(RETRY_S)
            else:
                return

    async def win_at_once(self) -> None:
        """Lead if no other coordinator does. Raises `StoreError`."""
        await self._enroll()
        if not await self._try_to_lead():
            other = (self.leader or self._me).endpoint  # without another leader, it is an earlier term of ours
            await self.resign()
            raise StoreError(
                f"{self._keys.prefix}/: another coordinatord has it ({other}): end all that share it first"
            )

    async def _stand_by(self) -> None:
        """Stand by with a new lease until this coordinator leads. Raises `StoreError`."""
        await self._enroll()
        won = asyncio.get_running_loop().create_future()
        async with Tasks() as tasks:
            tasks.spawn(self._renew_as_standby(), name="lease of a standby")
            tasks.spawn(self._campaign(won), name="campaign")
            await tasks.guard(won)

    async def _campaign(self, won: asyncio.Future[None]) -> None:
        """Try to lead whenever nobody does; set `won` once this coordinator leads."""
        while not await self._try_to_lead():
            await self._await_end()
        won.set_result(None)

    async def _enroll(self) -> None:
        """Get a lease, and create this standby's key, which expires with the lease. Raises `StoreError`."""
        if self.election.lease:  # with two leases, this standby would be listed twice
            with suppress(EtcdRefusedError):  # the lease may have expired
                await self._revoke(self.election.lease)
        sent_at = self._clock()
        # With the id 0, etcd chooses one.
        answer = await self._gateway.call("/v3/lease/grant", {"TTL": str(max(1, round(self._lease_s))), "ID": "0"})
        self.election.record_lease(answer.id, float(answer.ttl), sent_at, self._clock())
        self._standby_key = self._keys.standbys + f"{answer.id:x}".encode()
        await self._gateway.call("/v3/kv/txn", txn([], [put(self._standby_key, self._me.packed(), answer.id)]))

    async def _try_to_lead(self) -> bool:
        """Create the leader key if there is none; return whether this coordinator leads. Raises `StoreError`."""
        if not self.may_act():  # the lease has expired, so the term would be over when it begins
            raise StoreError(STANDBY_OVER)
        lease = self.election.lease
        absent = created_at(self._keys.leader, 0)
        lead = [put(self._keys.leader, self._me.packed(), lease), delete(self._standby_key)]
        answer = await self._gateway.call("/v3/kv/txn", txn([absent], lead, [get(self._keys.leader)]))
        if answer.succeeded:
            return self.election.record_attempt(answer.header.revision, lease)
        [found] = answer.results[0].kvs
        leads = self.election.record_attempt(found.create_revision, found.lease)
        if not leads:
            leader = Coordinatord.unpack(found)
            if leader.endpoint == self._me.endpoint:
                self._set_leader(None, EARLIER_TERM)
                log.info("nobody leads yet: %s", EARLIER_TERM, extra=fields("leader_unknown"))
            else:
                self._set_leader(leader)
        return leads

    async def _await_end(self) -> None:
        """Wait until the last known leader key is gone. Raises `StoreError`."""
        async for found in self._gateway.watch(self._keys.leader):
            if self.election.leader_is_gone(None if found is None else found.create_revision):
                return

    async def _await_other(self) -> None:
        """Wait until a coordinator with another endpoint leads. Raises `StoreError`."""
        async for found in self._gateway.watch(self._keys.leader):
            # If the lease of our last term was not revoked, the key is still ours.
            if found is not None and Coordinatord.unpack(found).endpoint != self._me.endpoint:
                return

    async def _renew_as_standby(self) -> None:
        while True:
            await asyncio.sleep(self.election.renew_every_s)
            sent_at = self._clock()
            left_s = await self._gateway.renew(self.election.lease, self.election.try_within_s)
            if self.election.record_renewal(sent_at, self._clock(), left_s) is None:
                raise StoreError(STANDBY_OVER)

    async def lead(self) -> None:
        """Renew the lease and check the commits in etcd until cancelled. Raises `LeadershipLostError`."""
        never = asyncio.get_running_loop().create_future()
        async with Tasks() as tasks:
            tasks.spawn(self._renew(), name="renewals")
            tasks.spawn(self._watch_leader_key(), name="end of the term")
            tasks.spawn(self._check_commits(), name="check of commits")
            await tasks.guard(never)  # until a task fails, or a cancellation

    async def _watch_leader_key(self) -> None:
        """Watch the leader key, which `coordinatord --step-down` deletes. Raises `LeadershipLostError`."""
        await _retried(self._await_end)
        self.election.end()
        raise LeadershipLostError("the leader key is gone, so another coordinator may lead: this one stands by")

    async def _check_commits(self) -> None:
        """Check the commits in etcd as often as the lease is renewed. Raises `LeadershipLostError`."""
        while True:
            await asyncio.sleep(self.election.renew_every_s)
            with suppress(StoreError):
                await self.check_commits()

    async def _renew(self) -> None:
        pause_s: float | None = 0.0
        while pause_s is not None:
            await asyncio.sleep(pause_s)
            sent_at = self._clock()
            left_s: float | None = None
            try:
                async with asyncio.timeout(max(0.0, self.election.term_ends_at - sent_at)):
                    left_s = await self._gateway.renew(self.election.lease, self.election.try_within_s)
            except (StoreError, TimeoutError) as error:
                why = str(error) or "etcd has not answered before it was over"
                log.warning("the lease is not renewed: %s", why, extra=fields("lease_not_renewed"))
            pause_s = self.election.record_renewal(sent_at, self._clock(), left_s)
        raise LeadershipLostError("the lease is over, so another coordinator may lead: this one stands by")

    def may_act(self) -> bool:
        """Whether this coordinator may act as the leader now."""
        return self.election.may_act(self._clock())

    def remedy(self) -> str:
        """Return the advice if the lease has expired because etcd is too slow for it; empty if it has not."""
        return self.election.remedy(self._clock())

    def check_may_act(self) -> None:
        """Check that this coordinator may act as the leader now. Raises `LeadershipLostError`."""
        if not self.may_act():
            raise LeadershipLostError(LEASE_OVER)

    def status(self) -> SharedStatus:
        """Return this coordinator's status as the leader, with those of its standbys."""
        standbys = tuple(standby.status for standby in self.roster.standbys)
        left_s = round(max(0.0, self.election.term_ends_at - self._clock()), 3)
        return SharedStatus(leader=self._me.status, standbys=standbys, lease_s=left_s, problem=self.roster.problem)

    async def resign(self) -> None:
        """Revoke our lease, so that a standby can lead at once; if etcd does not answer, the lease expires."""
        lease = self.election.resign(self._clock())
        if lease:
            with suppress(StoreError):
                await self._revoke(lease)

    async def _revoke(self, lease: int) -> None:
        """Revoke a lease, which deletes its keys. Raises `StoreError`."""
        await self._gateway.call("/v3/lease/revoke", {"ID": str(lease)})

    def _set_leader(self, leader: Coordinatord | None, problem: str = "") -> None:
        self.leader, self.problem = leader, problem
        self.changed()
