"""How far a worker is in each of its process groups, in a few bytes a group. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum

from msgspec import Struct

from coordinatord.protocol.stack_messages import PLACES_BYTES_MAX, Collective, CollectiveState

_PLACE = re.compile(r"([\w.@-]{1,32})([=?!<>])(\d{1,16});", re.ASCII)

_PEER = re.compile(r"(send to|recv from) (\d{1,16})")

_FOR_ALL = re.compile(r"_?(all_?reduce|all_?gather|reduce_scatter|barrier)")
"""Operations that are over for no rank before all have begun them. All others may be over for some of them before:
a broadcast for its root, and an `all_to_all` for ranks that have nothing for each other."""


class GroupStage(StrEnum):
    """How far a worker is at a place."""

    DONE = "="
    """The collective is the last one that the worker has begun, and it is over."""
    WAITS = "?"
    """The worker has begun the collective, which is not over."""
    WAITS_FOR_ALL = "!"
    """The same, and it is over for no worker before all of the group have begun it."""
    SENDS = ">"
    """The worker sends to a peer, which has not received it."""
    RECEIVES = "<"
    """The worker receives from a peer, which has not sent."""


PAIRED = {GroupStage.SENDS: GroupStage.RECEIVES, GroupStage.RECEIVES: GroupStage.SENDS}
"""What a peer does at the other end."""


class GroupPlace(Struct, frozen=True):
    """Where a worker is in one process group, with one of its backends."""

    group: str
    """The group and the backend, such as `41.nccl`: each backend counts its own collectives. No backend is given of a
    group in which the worker has begun none."""
    stage: GroupStage
    number: int
    """The number of the collective; or else the rank of the peer."""

    @property
    def level(self) -> int:
        """A number that grows when the worker begins a collective of the group, and when one is over."""
        return 2 * self.number - (self.stage is not GroupStage.DONE)


def place_of(collective: Collective) -> GroupPlace | None:
    """Return where a worker is that is at this collective; None if its peer is not known, or if it gets on."""
    if collective.state is CollectiveState.MOVES:
        return None
    backend, _, operation = collective.operation.rpartition(":")
    group = f"{collective.group.rpartition(' ')[2]}.{backend}"
    if operation.startswith(("send", "recv")):
        peer = _PEER.fullmatch(operation)
        stage = GroupStage.SENDS if operation.startswith("send") else GroupStage.RECEIVES
        return None if peer is None else GroupPlace(group, stage, int(peer[2]))
    if collective.state is CollectiveState.DONE:
        return GroupPlace(group, GroupStage.DONE, collective.number)
    return GroupPlace(
        group, GroupStage.WAITS_FOR_ALL if _FOR_ALL.match(operation) else GroupStage.WAITS, collective.number
    )


def pack_places(collectives: Sequence[Collective]) -> bytes:
    """Write where a worker is at these collectives, less the first one, which a message has by itself.

    Of each group there is the first collective, the first one that waits for all, and the first exchange with a peer.
    What does not fit is left out.
    """
    packed = b""
    told: set[tuple[str, str]] = set()
    for at, collective in enumerate(collectives):
        place = place_of(collective)
        if place is None:
            continue
        kinds = {(place.group, "pair" if place.stage in PAIRED else "any")}
        if place.stage is GroupStage.WAITS_FOR_ALL:
            kinds.add((place.group, "for all"))
        text = f"{place.group}{place.stage}{place.number};"
        fits = _PLACE.fullmatch(text) and len(packed) + len(text) <= PLACES_BYTES_MAX
        if at and fits and not kinds <= told:
            packed += text.encode()
        told |= kinds
    return packed


def unpack_places(packed: bytes) -> tuple[GroupPlace, ...]:
    """Read where a worker is; what no worker writes is left out."""
    return tuple(
        GroupPlace(group, GroupStage(stage), int(number))
        for group, stage, number in _PLACE.findall(packed.decode(errors="replace"))
    )
