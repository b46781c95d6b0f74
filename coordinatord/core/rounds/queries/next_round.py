"""Says which nodes a round formed now would take, where they meet, and how long it waits because of an error.

All functions see the nodes as they are now. A host that is not quarantined is *good*. Nodes on other hosts are taken
only if too few are there on good ones. Then as many as are needed are enlisted (`Readiness.enlisted`), and so become
ready.
"""

from __future__ import annotations

from collections.abc import Iterable

from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.state.member import Member, MemberState
from coordinatord.core.rounds.state.run import Run
from coordinatord.core.rounds.values.ranks import order
from coordinatord.protocol.ip_addresses import is_loopback


def reserves(run: Run) -> list[Member]:
    """Return the quarantined members to enlist, because the next round needs them, by arrival.

    There are none if the round has enough other nodes, or if even all quarantined ones would be too few. The others are
    those that are ready, may reconnect, or prepare on good hosts. Those that prepare on other hosts become quarantined.
    """
    others = run.roll.count(MemberState.READY, MemberState.DISCONNECTED)
    lacking = run.spec.nodes_min - others - run.roll.count_good(MemberState.PREPARING)
    if not 0 < lacking <= run.roll.count(MemberState.QUARANTINED):
        return []
    quarantined = run.roll.in_state(MemberState.QUARANTINED)
    return sorted(quarantined, key=lambda member: member.readiness.arrived_at)[:lacking]


def next_size(run: Run) -> int:
    """Return the number of nodes of a round formed now.

    Ready members on good hosts are taken first. Enlisted members, which are ready as well, are taken only as far as the
    minimum lacks nodes on good hosts that are ready or prepare. `settled` also waits for nodes that may reconnect.
    """
    good = run.roll.count_good(MemberState.READY)
    enlisted = run.roll.count(MemberState.READY) - good
    lacking = max(0, run.spec.nodes_min - good - run.roll.count_good(MemberState.PREPARING))
    return min(good + min(enlisted, lacking), run.spec.nodes_max)


def candidates(run: Run) -> list[Member]:
    """Return the members to form a round of now, by group rank.

    Nodes on good hosts are chosen first, then nodes of the last round, then the earliest. The rest are spares.
    """
    before = run.durable.order
    ready = sorted(
        run.roll.in_state(MemberState.READY),
        key=lambda member: (
            bool(member.readiness.quarantined),
            member.node not in before,
            member.readiness.arrived_at,
        ),
    )
    chosen = {member.node: member for member in ready[: next_size(run)]}
    previous = {node: ranks.workers for node, ranks in before.items()}
    return [chosen[seat.node] for seat in order([member.seat for member in chosen.values()], previous)]


def can_spare(run: Run, node: str) -> bool:
    """Whether a node is quarantined, and the round after the present one can do without it."""
    member = run.members.get(node)
    return member is not None and bool(member.readiness.quarantined) and can_do_without(run, member.offer.host)


def can_do_without(run: Run, host: str) -> bool:
    """Whether the round after the present one has enough nodes on other hosts that neither leave nor are quarantined.

    Nodes of the present round count, since this is asked when that round ends.
    """
    others = (member for member in run.members.values() if member.offer.host != host and member.is_connected)
    return sum(not (each.leaves or each.readiness.quarantined) for each in others) >= run.spec.nodes_min


def pause_s(run: Run) -> float:
    """Return for how many seconds after its last round a run forms no other, because of a recurring error.

    It does not wait if a new node has arrived, since something has changed then, or if an operator wants a restart.
    """
    if run.durable.state is not State.FORMING or run.gathering.has_newcomer or run.restart_asked:
        return 0.0
    return run.policy.pause_after(run.durable.repeats)


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
        return "127.0.0.1"
    if not is_loopback(master.session.peer_address):
        # Where nodes of several hosts come from one address, it is that of a proxy or a gateway between them and here.
        is_shared = any(other.session.peer_address == master.session.peer_address for other in others)
        return (offer.routable_address if is_shared else "") or master.session.peer_address
    # The master's node shares the coordinator's host: the others reach the master where they reach the coordinator.
    reached = (other.session.local_address for other in others if not is_loopback(other.session.local_address))
    return next(reached, None) or offer.routable_address or master.session.peer_address
