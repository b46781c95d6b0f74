"""Elects the leader: the coordinator that creates the leader key, whose revision then fences every commit.

It leads until the key is gone, and renews the lease of the key three times within its length. The leader's own clock
only limits how long it may act. etcd checks within each transaction that it may change something. `election` decides,
and this module sends the requests.
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
from coordinatord.store.etcd.requests import (
    created_at,
    delete,
    get,
    key_values,
    number,
    put,
    responses,
    revision_of,
    txn,
)
from coordinatord.store.etcd.roster import Coordinatord, Roster
from coordinatord.store.interface import LEASE_OVER, LeadershipLostError, StoreError

log = logging.getLogger(__name__)


async def _verify_nothing() -> None:
    """Verify nothing: no history is read yet."""


class Candidate:
    """A coordinator of a namespace, which stands by, leads and resigns."""

    def __init__(
        self,
        gateway: Gateway,
        keys: Keys,
        me: Coordinatord,
        lease_s: float,
        clock: Callable[[], float] = boot_clock,
    ) -> None:
        """Begin without a lease, and not announced; `clock` returns seconds, sleep of the host included."""
        self._gateway = gateway
        self._me = me
        self._lease_s = lease_s
        self._keys = keys
        self._clock = clock
        self._standby_key = b""
        self.election = Election(lease_s)
        self.leader: Coordinatord | None = None
        """The other coordinator that leads, if known."""
        self.why = ""
        """Why the leader is not known; empty if it is."""
        self.changed: Callable[[], None] = lambda: None
        """Called when `leader` has changed."""
        self.verify: Callable[[], Awaitable[None]] = _verify_nothing
        """Raises `LeadershipLostError` if etcd has lost a commit; called while this coordinator leads."""
        self.roster = Roster(gateway, keys)

    @property
    def fence(self) -> int:
        """The revision of this coordinator's leader key; 0 while it does not lead."""
        return self.election.fence

    async def let_others_lead(self, longest_s: float) -> None:
        """Wait until another coordinator leads, at most `longest_s` seconds. Call it before `win`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(longest_s):
                while True:
                    with suppress(StoreError):
                        await self._await_other()
                        return
                    await asyncio.sleep(RETRY_S)

    async def win(self) -> None:
        """Stand by until this coordinator leads. Log errors of etcd, and retry."""
        logged = ""
        while True:
            try:
                await self._stand()
            except StoreError as error:
                self._see(None, str(error))
                if logged != str(error):
                    logged = str(error)
                    log.warning("it is not known who leads: %s", error, extra=fields("leader_unknown"))
                await asyncio.sleep(RETRY_S)
            else:
                return

    async def win_at_once(self) -> None:
        """Lead, if nobody does. Raises `StoreError`."""
        await self._enroll()
        if not await self._try():
            other = "" if self.leader is None else self.leader.endpoint
            await self.resign()
            raise StoreError(
                f"{self._keys.prefix}/: another coordinatord has it ({other}): end all that share it first"
            )

    async def _stand(self) -> None:
        """Stand by with a new lease until this coordinator leads. Raises `StoreError`."""
        await self._enroll()
        tasks, won = Tasks(), asyncio.get_running_loop().create_future()
        tasks.spawn(self._renew_as_standby(), name="lease of a standby")
        tasks.spawn(self._campaign(won), name="campaign")
        try:
            await tasks.guard(won)
        finally:
            await tasks.cancel()

    async def _campaign(self, won: asyncio.Future[None]) -> None:
        while not await self._try():
            await self._await_end()
        won.set_result(None)

    async def _enroll(self) -> None:
        """Get a lease, and announce this standby by a key that expires with it. Raises `StoreError`."""
        if self.election.lease:  # an earlier one would list this standby twice
            with suppress(EtcdRefusedError):  # it may have expired
                await self._revoke(self.election.lease)
        sent_at = self._clock()
        answer = await self._gateway.call("/v3/lease/grant", {"TTL": str(max(1, round(self._lease_s))), "ID": "0"})
        lease = number(answer, "ID")
        self.election.enrolled(lease, float(number(answer, "TTL")), sent_at, self._clock())
        self._standby_key = self._keys.standbys + f"{lease:x}".encode()
        await self._gateway.call("/v3/kv/txn", txn([], [put(self._standby_key, self._me.packed(), lease)]))

    async def _try(self) -> bool:
        """Create the leader key if there is none; return whether this coordinator leads. Raises `StoreError`."""
        lease = self.election.lease
        absent = created_at(self._keys.leader, 0)
        lead = [put(self._keys.leader, self._me.packed(), lease), delete(self._standby_key)]
        answer = await self._gateway.call("/v3/kv/txn", txn([absent], lead, [get(self._keys.leader)]))
        if answer.get("succeeded"):
            return self.election.tried(revision_of(answer), lease)
        [found] = key_values(responses(answer)[0])
        leads = self.election.tried(found.create_revision, found.lease)
        if not leads:
            self._see(Coordinatord.unpack(found))
        return leads

    async def _await_end(self) -> None:
        """Wait until the last known leader key is gone. Raises `StoreError`."""
        async for found in self._gateway.watch(self._keys.leader):
            if self.election.is_end(None if found is None else found.create_revision):
                return

    async def _await_other(self) -> None:
        """Wait until another coordinator leads. Raises `StoreError`."""
        async for found in self._gateway.watch(self._keys.leader):
            # If the lease of our last term was not revoked, the key is still ours.
            if found is not None and Coordinatord.unpack(found).endpoint != self._me.endpoint:
                return

    async def _renew_as_standby(self) -> None:
        while True:
            await asyncio.sleep(self.election.renew_every_s)
            sent_at = self._clock()
            left_s = await self._gateway.renew(self.election.lease, self.election.try_within_s)
            if self.election.renewed(sent_at, self._clock(), left_s) is None:
                raise StoreError("the lease of this standby is over")

    async def keep(self) -> None:
        """Renew the lease, and verify the commits in etcd, while leading. Raises `LeadershipLostError`."""
        tasks, over = Tasks(), asyncio.get_running_loop().create_future()
        tasks.spawn(self._renew(), name="renewals")
        tasks.spawn(self._notice_end(), name="end of the term")
        tasks.spawn(self._verify(), name="what etcd holds")
        try:
            await tasks.guard(over)
        finally:
            await tasks.cancel()

    async def _notice_end(self) -> None:
        """Watch the leader key, which `coordinatord --step-down` deletes."""
        while True:
            try:
                await self._await_end()
            except StoreError:
                await asyncio.sleep(RETRY_S)  # where etcd is away, the renewals report it
            else:
                self.election.end()
                raise LeadershipLostError("the leader key is gone, so another coordinator may lead: this one stands by")

    async def _verify(self) -> None:
        """Verify the commits in etcd as often as the lease is renewed."""
        while True:
            await asyncio.sleep(self.election.renew_every_s)
            with suppress(StoreError):
                await self.verify()

    async def _renew(self) -> None:
        pause_s: float | None = 0.0
        while pause_s is not None:
            await asyncio.sleep(pause_s)
            sent_at = self._clock()
            left_s: float | None = None
            try:
                async with asyncio.timeout(max(0.0, self.election.term.until - sent_at)):
                    left_s = await self._gateway.renew(self.election.lease, self.election.try_within_s)
            except (StoreError, TimeoutError) as error:
                why = str(error) or "etcd has not answered before it was over"
                log.warning("the lease is not renewed: %s", why, extra=fields("lease_not_renewed"))
            pause_s = self.election.renewed(sent_at, self._clock(), left_s)
        raise LeadershipLostError("the lease is over, so another coordinator may lead: this one stands by")

    def holds(self) -> bool:
        """Whether this coordinator may act as the leader now."""
        return self.election.may_act(self._clock())

    def demand(self) -> None:
        """Raise `LeadershipLostError` if this coordinator may not act as the leader now."""
        if not self.holds():
            raise LeadershipLostError(LEASE_OVER)

    def status(self) -> SharedStatus:
        """Return this coordinator as the leader, with its standbys."""
        standbys = tuple(standby.status for standby in self.roster.standbys)
        left_s = round(max(0.0, self.election.term.until - self._clock()), 3)
        return SharedStatus(leader=self._me.status, standbys=standbys, lease_s=left_s, problem=self.roster.problem)

    async def resign(self) -> None:
        """Revoke our lease, so that a standby leads at once. If that fails, the lease expires."""
        lease = self.election.resign(self._clock())
        if lease:
            with suppress(StoreError):
                await self._revoke(lease)

    async def _revoke(self, lease: int) -> None:
        """Revoke a lease, which deletes its keys. Raises `StoreError`."""
        await self._gateway.call("/v3/lease/revoke", {"ID": str(lease)})

    def _see(self, leader: Coordinatord | None, why: str = "") -> None:
        self.leader, self.why = leader, why
        self.changed()
