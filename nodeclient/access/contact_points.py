"""Chooses which coordinator to try next: several in turn, each address of a name, and the leader that a standby names.

Of several coordinators one leads, and the others are standbys: they serve nobody, and answer who leads. When the leader
dies, one of them leads in its place some seconds later. So a node may be sent to a leader that is dead, and must not
lose its time there.

`ContactPoints` chooses for a node, and is pure. The operators' commands use only the other functions.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from http import HTTPStatus
from urllib.parse import urlsplit

from msgspec import Struct

from coordinatord.protocol.fields import DEFAULT_PORT
from coordinatord.protocol.ip_addresses import Endpoint, is_address, parse_endpoint

STANDBY_STATUS = HTTPStatus.TEMPORARY_REDIRECT
"""The status of a standby's answer; the leader's address is in `Location` (RFC 9110, 15.4.8)."""

ADDRESSES_MAX = 16
"""The most addresses of one name to try: three or five coordinators have one or two each."""

SUSPECT_S = 4.0
"""How long a coordinator that fell silent is a suspect, and gets less time to answer. A node detects a silent leader
after 4 s. The leader's lease of 5 s expires at most 1.5 s later, and then the standby that named it leads. The other
2.5 s are a margin, which costs little: a coordinator that serves again is no suspect."""


class ContactPoint(Struct, frozen=True):
    """A coordinator by its name, or at one of the addresses of the name."""

    coordinator: Endpoint
    address: str | None = None
    """None for the first address of the name that answers."""

    def __str__(self) -> str:
        return str(self.coordinator) if self.address is None else f"{self.coordinator} ({self.address})"


class ContactPoints:
    """The coordinators of a node, in the order of trying."""

    def __init__(self, coordinators: Sequence[Endpoint]) -> None:
        self._coordinators = [ContactPoint(coordinator) for coordinator in coordinators]
        self._index = 0
        """The index of the coordinator that is tried now."""
        self._addresses: list[ContactPoint] = []
        """The addresses of that coordinator's name that are still to be tried one by one."""
        self._leader: ContactPoint | None = None
        """The leader that the coordinator at `_index`, a standby, has named; None unless it is tried now."""
        self._served = False
        """Whether the current contact point has served this node before."""
        self._silent_at: dict[Endpoint, float] = {}
        """When each suspect fell silent. A suspect is dropped when it serves, or at an attempt `SUSPECT_S` later."""

    @property
    def current(self) -> ContactPoint:
        """The contact point to try now."""
        if self._leader is not None:
            return self._leader
        return self._addresses[0] if self._addresses else self._coordinators[self._index]

    @property
    def is_only_one(self) -> bool:
        """Whether there is no other contact point to try."""
        return len(self._coordinators) == 1 and not self._addresses and self._leader is None

    @property
    def is_suspect(self) -> bool:
        """Whether the current coordinator fell silent just now, so that another one may lead in its place."""
        return not self.is_only_one and self.current.coordinator in self._silent_at

    def record_attempt(
        self,
        now: float,
        *,
        served: bool,
        silent: bool = False,
        leader: Endpoint | None = None,
        addresses: Sequence[str] = (),
    ) -> bool:
        """Record how the attempt at `current` ended; return whether to make the next one at once.

        `served`: the coordinator served this node. `silent`: it did not answer, or fell silent later. `leader`: the
        leader that it named as a standby. `addresses`: those of its host name. `now` is in monotonic seconds.

        If the named leader is a standby as well, its leader is not tried: both soon learn which one leads. A named
        leader that fell silent just now is tried, because it may still lead. If it does not answer soon, the standby
        that named it is tried again.
        """
        self._record_silence(now, served=served, silent=silent)
        if leader is not None and self._leader is None:
            self._leader, self._served = ContactPoint(leader), False
            return True
        self._served = self._served or served
        if not served or silent:
            self._advance(addresses)
            self._served = False
        return False

    def _record_silence(self, now: float, *, served: bool, silent: bool) -> None:
        """Update the coordinators that fell silent just now."""
        self._silent_at = {other: at for other, at in self._silent_at.items() if now < at + SUSPECT_S}
        if silent:
            self._silent_at[self.current.coordinator] = now
        elif served:
            self._silent_at.pop(self.current.coordinator, None)

    def _advance(self, addresses: Sequence[str]) -> None:
        """Go on to the next contact point after a failure of the current one, whose name has these addresses.

        If a named leader failed, and had served this node or fell silent, the next one is the standby that named it.
        Otherwise it is the next address of the name that is being tried, if one is left, or else the next coordinator.
        """
        failed, self._leader = self._leader, None
        if failed is not None and (self._served or failed.coordinator in self._silent_at):
            return  # the standby that named the failed leader is the most likely to lead now
        if self._addresses:
            del self._addresses[0]
        elif failed is None and len(addresses) > 1:
            name = self._coordinators[self._index].coordinator
            self._addresses = [ContactPoint(name, address) for address in addresses[:ADDRESSES_MAX]]
        if not self._addresses:
            self._index = (self._index + 1) % len(self._coordinators)
            if self._coordinators[self._index] == failed:
                # The failed leader is not retried at once; of two coordinators, the standby that named it is next.
                self._index = (self._index + 1) % len(self._coordinators)


def addresses_of(coordinator: Endpoint) -> tuple[str, ...]:
    """Return the addresses of a coordinator's name, each once; none for an address, or for an unknown name.

    This may wait for a name server, so an event loop calls it in a thread.
    """
    if is_address(coordinator.host):
        return ()
    try:
        found = socket.getaddrinfo(coordinator.host, coordinator.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return ()
    return tuple(dict.fromkeys(str(address[0]) for *_, address in found))


def leader_in(location: str) -> Endpoint | None:
    """Return the coordinator that a `Location` names, if any."""
    try:
        return parse_endpoint(urlsplit(location).netloc, DEFAULT_PORT)
    except ValueError:
        return None
