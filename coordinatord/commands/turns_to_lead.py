"""Lets a coordinator with a shared store stand by until it leads, and stand by again after it has lost the lead.

A *turn* is both: to stand by, where clients are redirected to the leader, and then to lead.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from coordinatord.commands.delayed_end import set_done
from coordinatord.commands.shared_access import SharedAccess
from coordinatord.config.serve_flags import ServeConfig
from coordinatord.config.store_flags import SharedStore
from coordinatord.core.own_end import is_cut_off
from coordinatord.runtime.logs import fields
from coordinatord.runtime.systemd import SystemdNotifier, status_of
from coordinatord.runtime.tasks import Tasks
from coordinatord.security.setup import Security
from coordinatord.server.driver import Driver
from coordinatord.server.standby import serve_standby
from coordinatord.store.database_store import Store
from coordinatord.store.directory import StateDirectory
from coordinatord.store.etcd.gateway import REQUEST_WITHIN_S, WATCH_SILENT_S_MAX, Gateway
from coordinatord.store.etcd.keys import Keys
from coordinatord.store.etcd.leadership import Candidate
from coordinatord.store.etcd.roster import Coordinatord, Roster
from coordinatord.store.etcd_store import EtcdStore
from coordinatord.store.interface import LeadershipLostError, StoreError, UnreadableStoreError

log = logging.getLogger(__name__)

POLL_EVERY_S = 0.5
"""How often the leader checks that it hears a node: nodes that cannot reach it try others after 4 s."""

LET_LEAD_S = WATCH_SILENT_S_MAX + 2 * REQUEST_WITHIN_S
"""How long a leader that was cut off from its nodes lets others lead first; otherwise it would win again. It is enough
for a standby to lead: at worst its watch of the leader key times out, then it reads the key, and creates its own."""

RETRY_PAUSE_S = 2.0
"""How long a coordinator that failed to lead, or has lost the lead, lets others lead before it retries. Otherwise a
leader that was told to step down might win again before a standby notices."""

CUT_OFF = "no node is heard any more, and this host's network may have failed"
"""Why a leader that was cut off stands by."""


class CutOffError(LeadershipLostError):
    """This coordinator hears none of its nodes, and another one may hear them."""


Lead = Callable[[Store, Sequence[socket.socket], Candidate, SharedAccess], Awaitable[None]]
"""Serves with a store at these sockets until the program ends, and closes the store. Raises `LeadershipLostError`."""


async def watch_for_cut_off(driver: Driver, roster: Roster) -> None:
    """Raise `CutOffError` once no node is heard, if etcd answers and another coordinator stands by.

    Giving up the lead costs nothing then. Leaders do not take turns without end, because the next one counts as cut off
    only after nodes have reached it.
    """
    while not (is_cut_off(driver.machine.cluster) and roster.standbys and not roster.problem):  # noqa: ASYNC110 - silence is no event
        await asyncio.sleep(POLL_EVERY_S)
    raise CutOffError(f"{CUT_OFF}: this coordinator gives up the lead to one that nodes may reach")


@dataclass(slots=True)
class TurnsToLead:
    """Lets this coordinator stand by and lead, in turn with the others."""

    _settings: ServeConfig
    _shared: SharedStore
    _systemd: SystemdNotifier
    _security: Security | None
    _ended: asyncio.Future[None]
    """Done once the program ends."""
    _lead: Lead
    """Called at each turn."""
    _failure: str = ""
    """Why the last turn failed or was given up for others; empty otherwise."""
    _let_others_lead_s: float = 0.0
    """How long it lets others lead before its next turn; 0 before the first one."""

    async def run(self, listeners: Sequence[socket.socket]) -> None:
        """Stand by and lead in turn, at these sockets.

        Raises `StoreError` if the store is unreadable, and `OtherKeyError` if the others have another key.
        """
        folder = self._settings.state_dir
        directory = None if folder is None else StateDirectory.claim(folder)
        gateway, keys = Gateway(self._shared.location), Keys(self._shared.location.prefix)
        access = SharedAccess(gateway, keys, self._security)
        try:
            while not self._ended.done():
                await self._take_turn(gateway, keys, access, listeners)
        finally:
            await gateway.close()
            for listener in listeners:
                listener.close()
            if directory is not None:
                directory.close()

    async def _take_turn(
        self, gateway: Gateway, keys: Keys, access: SharedAccess, listeners: Sequence[socket.socket]
    ) -> None:
        """Stand by until this coordinator leads, and lead until it loses the lead or the program ends."""
        candidate = Candidate(gateway, keys, self._roster_entry(listeners[0]), self._shared.lease_s)
        try:
            # A server closes its sockets at its end, so each one gets duplicates.
            await self._stand_by(candidate, access, [listener.dup() for listener in listeners])
            if self._ended.done():
                self._systemd.notify("STOPPING=1")
                log.info("stopping", extra=fields("stopping"))
            else:
                store = await self._open(gateway, keys, candidate, access)
                log.info("this coordinator leads", extra=fields("leading"))
                await self._lead(store, [listener.dup() for listener in listeners], candidate, access)
        except LeadershipLostError as error:
            remedy = candidate.remedy()
            log.warning("%s%s", error, f"; {remedy}" if remedy else "", extra=fields("leadership_lost"))
            self._failure, self._let_others_lead_s = "", RETRY_PAUSE_S
            if isinstance(error, CutOffError):
                self._failure, self._let_others_lead_s = CUT_OFF, LET_LEAD_S
        except UnreadableStoreError:
            raise
        except StoreError as error:  # etcd does not answer, or the disk of this host is full
            log.warning(
                "this coordinator cannot lead now, although it is its turn: %s", error, extra=fields("leading_failed")
            )
            self._failure, self._let_others_lead_s = str(error), RETRY_PAUSE_S
        finally:
            await candidate.resign()

    async def _open(self, gateway: Gateway, keys: Keys, candidate: Candidate, access: SharedAccess) -> EtcdStore:
        """Open the store while the lease is renewed. Raises `LeadershipLostError`, `OtherKeyError` and `StoreError`."""
        async with Tasks() as tasks:
            tasks.spawn(candidate.lead(), name="lease")
            tasks.spawn(self._systemd.keep_alive(), name="watchdog")
            await access.publish_key(candidate.election.fence)
            return await EtcdStore.open(gateway, keys, candidate, self._settings.state_dir)

    async def _stand_by(self, candidate: Candidate, access: SharedAccess, listeners: Sequence[socket.socket]) -> None:
        """Redirect clients to the leader, until this coordinator leads or the program ends."""
        candidate.changed = lambda: self._report_leader(candidate)
        security = self._security
        gatekeeper, tls = (None, None) if security is None else (security.gatekeeper, lambda: security.context)
        # Set once this coordinator leads, or the program ends.
        finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ended.add_done_callback(lambda _: set_done(finished))
        standby = serve_standby(listeners, lambda: candidate.leader, gatekeeper, tls, why=lambda: self._why(candidate))
        async with standby, Tasks() as tasks:
            self._systemd.notify("READY=1", status_of("stands by"))
            tasks.spawn(self._win(candidate, finished), name="candidate")
            tasks.spawn(access.watch(), name="access")
            tasks.spawn(self._systemd.keep_alive(), name="watchdog")
            await tasks.guard(finished)

    async def _win(self, candidate: Candidate, won: asyncio.Future[None]) -> None:
        """Set `won` once this coordinator leads; after an earlier turn, let others lead first."""
        if self._failure:
            self._systemd.notify(status_of(f"cannot lead: {self._failure}"))
        if self._let_others_lead_s:
            await candidate.let_others_lead(self._let_others_lead_s)
        await candidate.win()
        set_done(won)

    def _report_leader(self, candidate: Candidate) -> None:
        leader = candidate.leader
        if leader is None:
            text = f"stands by, and it is not known who leads: {self._why(candidate)}"
        else:
            text = f"stands by: {leader.endpoint} leads"
            log.info("this coordinator %s", text, extra=fields("standby", leader=leader.endpoint))
        self._systemd.notify(status_of(text))

    def _why(self, candidate: Candidate) -> str:
        """Return why no coordinator leads; empty if that is not known."""
        return candidate.problem or (self._failure and f"this coordinator cannot lead: {self._failure}")

    def _roster_entry(self, listener: socket.socket) -> Coordinatord:
        """Return the entry by which other coordinators and nodes find this one."""
        endpoint = self._shared.endpoint(listener.getsockname()[1])
        return Coordinatord(socket.gethostname(), endpoint, self._security is not None, datetime.now(UTC).timestamp())
