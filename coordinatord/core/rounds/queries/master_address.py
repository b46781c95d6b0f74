"""Chooses MASTER_ADDR, the address at which the other nodes reach the node of group rank 0.

If its user advertises none, it is one that was seen to work, if there is such a one.
"""

from __future__ import annotations

from collections.abc import Iterable

from coordinatord.core.rounds.state.member import Member
from coordinatord.protocol.ip_addresses import is_loopback

LOOPBACK = "127.0.0.1"


def master_address(master: Member, members: Iterable[Member]) -> str:
    """Return MASTER_ADDR for a round of `members`, of which `master` has group rank 0.

    The address that the user advertises comes first, unless it is a loopback address and the round spans hosts. On
    Debian, a host's own name resolves to 127.0.1.1, so each host would look for the master on itself.
    """
    offer = master.offer
    others = [member for member in members if member.offer.host_id != offer.host_id]
    if offer.advertise_address and not (others and is_loopback(offer.advertise_address)):
        return offer.advertise_address
    if not others:
        return LOOPBACK
    if not is_loopback(master.session.peer_address):
        # Where nodes of several hosts come from one address, it is that of a proxy or a gateway between them and here.
        is_shared = any(other.session.peer_address == master.session.peer_address for other in others)
        return (offer.routable_address if is_shared else "") or master.session.peer_address
    # The master's node shares the coordinator's host: the others reach the master where they reach the coordinator.
    reached = (other.session.local_address for other in others if not is_loopback(other.session.local_address))
    return next(reached, None) or offer.routable_address or master.session.peer_address
