"""Puts the verdict of `hang_verdict` into words: which workers the others wait for, and where.

There is one public function for each form of a verdict. A worker that the others wait for is a *culprit*. A *place* is
the collective of a process group in which a worker waits, and a *position* is a line of the script. The argument
`waiting` always has all workers that wait in a collective; `peers`, `stuck` and `places` have some of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from coordinatord.hints.seen_worker import (
    GONE,
    HALTED,
    TRACED,
    SeenWorker,
    WaitPlace,
    collective_of,
    longest_wait_s,
    moves_bytes,
    outside_wait,
    sleeps,
    state_of,
    uses_cpu,
    wait_place,
)
from coordinatord.protocol.messages import HangKind
from coordinatord.protocol.stack_messages import CollectiveState, WorkerStacks, find_position, unpack_stacks
from coordinatord.protocol.text import name_some

Places = Mapping[WaitPlace, Sequence[SeenWorker]]
"""The workers that wait at each place, by place."""

NAMED_MAX = 4
"""The most ranks and places that a sentence names; other ranks are counted."""


def awaited(kind: HangKind, culprits: Sequence[SeenWorker]) -> str:
    """Name the awaited workers: `waiting for rank 0 on node a, which computes in ...`."""
    return f"waiting for {_name_workers(culprits)}, which {_describe_culprits(kind, culprits)}"


def others_wait(
    kind: HangKind, culprits: Sequence[SeenWorker], waiting: Sequence[SeenWorker], silent: Sequence[SeenWorker]
) -> str:
    """Say what culprits outside of collectives do, where the others wait, and which workers are `silent`."""
    does, lasted = f"{_name_workers(culprits)} {_describe_culprits(kind, culprits)}", _lasting(waiting)
    others = _describe_waiting(waiting)
    if silent:
        others += f"; {_name_workers(silent)} {_describe_culprits(HangKind.ABSENT, silent)}"
    # The duration is that of the wait: after "has ended" it would seem to be the time since the end.
    return f"{does}; {others}{lasted}" if _have_ended(kind, culprits) else f"{does}{lasted}; {others}"


def others_rest(kind: HangKind, culprits: Sequence[SeenWorker], others: Sequence[SeenWorker]) -> str:
    """Say what the culprits do, and that all `others`, which wait in no collective, are idle or have ended."""
    ended = [worker.now is not None and worker.now.state in GONE for worker in others]
    if len(others) == 1:
        rest = f"rank {others[0].rank} {'has ended' if any(ended) else 'is idle'}"
    else:
        does = "have ended" if all(ended) else "are idle or have ended" if any(ended) else "are idle"
        rest = f"the {len(others)} others {does}"
    return f"{_name_workers(culprits)} {_describe_culprits(kind, culprits)}; {rest}"


def over_for_others(places: Places, peers: Sequence[SeenWorker], waiting: Sequence[SeenWorker]) -> str:
    """Say that workers wait in a collective that is over for their peers."""
    over = f"rank {peers[0].rank}" if len(peers) == 1 else f"{len(peers)} others"
    return f"{_name_places(places)}{_lasting(waiting)}, which is over for {over}: {_network(waiting)}"


def left_behind(places: Places, ahead: int, waiting: Sequence[SeenWorker]) -> str:
    """Say where workers wait that are behind all others; `ahead` is the number of the others, which wait too.

    For example `rank 5 on node a waits in barrier 7, behind the 3 others, for 12 s`.
    """
    lasted = _lasting(waiting)
    where = f", behind {'the other one' if ahead == 1 else f'the {ahead} others'}" if ahead else ""
    return f"{_name_places(places)}{where}{',' if where and lasted else ''}{lasted}"


def apart(places: Places, most: Places, waiting: Sequence[SeenWorker]) -> str:
    """Say at which `places` workers wait, and at which place most others wait: the one in `most`, if there is one.

    For example `rank 2 on node b waits in barrier 4, where 2 others wait in all_reduce 4, for 12 s`.
    """
    where, lasted = "", _lasting(waiting)
    if most:
        [(place, others)] = most.items()
        wait = f"rank {others[0].rank} waits" if len(others) == 1 else f"{len(others)} others wait"
        where = f", where {wait} in {_name(place)}"
    return f"{_name_places(places)}{where}{',' if lasted else ''}{lasted}"


def never_completes(place: WaitPlace, groups: int, stuck: Sequence[SeenWorker], waiting: Sequence[SeenWorker]) -> str:
    """Say that all members of each of `groups` groups wait at one place; `stuck` has the members of all these groups.

    `place` is that of the first group.
    """
    subject = f"all {len(waiting)} workers" if len(stuck) == len(waiting) else _name_workers(stuck)
    several = f" in collectives of {groups} groups, such as {_name(place)}," if groups > 1 else f" in {_name(place)}"
    none = "none of them completes" if groups > 1 else "it completes for none"
    return f"{subject} wait{several}{_lasting(waiting)}, and {none}: {_network(stuck)}"


def _have_ended(kind: HangKind, culprits: Sequence[SeenWorker]) -> bool:
    """Whether culprits are absent because they have ended, and not because their nodes have not answered."""
    return kind is HangKind.ABSENT and all(worker.now is not None for worker in culprits)


def _describe_culprits(kind: HangKind, culprits: Sequence[SeenWorker]) -> str:
    """Say what the culprits do: of several, what the first one does."""
    alone, first = len(culprits) == 1, culprits[0].now
    if _have_ended(kind, culprits):
        return f"{'has' if alone else 'have'} ended"
    if first is None or kind is HangKind.ABSENT:
        return f"{'does' if alone else 'do'} not answer"
    position = script_position(first)
    if first.state in HALTED:
        is_held = "is held by a debugger" if alone else "are held by a debugger"
        is_stopped = "has been stopped by a signal" if alone else "have been stopped by a signal"
        return f"{is_held if first.state == TRACED else is_stopped}{f' in {position}' if position else ''}"
    where = position or (f"the kernel's {first.waits_in}" if first.waits_in else "")
    does = _activity(kind, culprits[0], first, alone=alone)
    return f"{does} in {where}" if where else f"{does}{' still' if does.startswith('stand') else ''}"


def _activity(kind: HangKind, worker: SeenWorker, now: WorkerStacks, *, alone: bool) -> str:
    """Say what a worker outside of collectives does; `now` is its last sample, and `alone` asks for the singular."""
    is_busy, thing, s = kind is HangKind.BUSY, outside_wait(now), "s" if alone else ""
    activities = (
        (is_busy and sleeps(worker), f"sleep{s}"),  # a thread of a library, or a child, may compute meanwhile
        (is_busy and uses_cpu(worker), f"compute{s}"),
        (is_busy and moves_bytes(worker), f"read{s} or write{s}"),
        (thing != "", f"wait{s} for {thing}"),
        (is_busy, "is busy" if alone else "are busy"),  # only its stack has changed
        (True, f"stand{s}"),
    )
    return next(words for holds, words in activities if holds)


def script_position(worker: WorkerStacks) -> str:
    """Return where the script stands: the function that it called, and its own line; empty if it is not known."""
    if worker.stands_at:
        return worker.stands_at
    threads = unpack_stacks(worker.stacks)
    found = find_position([_split(frame) for frame in threads[0][1]]) if threads else None
    return f"{found[0]} ({found[1]}:{found[2]})" if found is not None and found[0] else ""


def _split(frame: str) -> tuple[str, str, str]:
    """Split `function (file:line)`."""
    name, _, position = frame.partition(" (")
    file, _, line = position.removesuffix(")").rpartition(":")
    return name, file, line


def _name(place: WaitPlace) -> str:
    """Name a collective: `all_reduce 1,204`, `barrier 7 of tp 2`, `all_reduce 7 with 1024x3 Float`."""
    shape = "" if place.shape is None else f" with {place.shape or 'nothing'}"
    return f"{place.operation} {place.number:,}{f' of {place.group}' if place.group else ''}{shape}"


def _name_places(places: Places) -> str:
    """Say which workers wait where: `rank 5 on node a waits in barrier 7 and rank 9 on node b in all_reduce 3`."""
    (place, first), *more = places.items()
    named = f"{_name_workers(first)} {'waits' if len(first) == 1 else 'wait'} in {_name(place)}"
    named += "".join(f" and {_name_workers(workers)} in {_name(place)}" for place, workers in more[: NAMED_MAX - 1])
    elsewhere = sum(len(workers) for _, workers in more[NAMED_MAX - 1 :])
    return f"{named} and {elsewhere} more in other collectives" if elsewhere else named


def _lasting(waiting: Sequence[SeenWorker]) -> str:
    """Say for how long workers have waited; nothing if that is not known."""
    longest_s = longest_wait_s(waiting)
    return f" for {longest_s:.0f} s" if longest_s else ""


def _describe_waiting(waiting: Sequence[SeenWorker]) -> str:
    [(where, number)] = Counter(map(_waits_at, waiting)).most_common(1)
    if len(waiting) == 1:
        return f"rank {waiting[0].rank} waits in {where}"
    return f"{'the' if number == len(waiting) else f'{number} of the'} {len(waiting)} others wait in {where}"


def _waits_at(worker: SeenWorker) -> str:
    """Name the collective in which a worker waits; without one in a recorder, the position of its script."""
    if state_of(worker) is CollectiveState.WAITS:
        return _name(wait_place(collective_of(worker)))
    return "" if worker.now is None else script_position(worker.now)


def _network(seen_workers: Sequence[SeenWorker]) -> str:
    """Name the nodes whose network these workers need: `look at the network between nodes a, b`."""
    nodes = len({worker.node for worker in seen_workers})
    return f"look at the network{_on_nodes(seen_workers, 'on' if nodes == 1 else 'between')}"


def _name_workers(seen_workers: Sequence[SeenWorker]) -> str:
    """Name the first few workers and their nodes, and count the others."""
    named = name_some((str(worker.rank) for worker in seen_workers), len(seen_workers), "rank", NAMED_MAX)
    return named + _on_nodes(seen_workers)


def _on_nodes(seen_workers: Sequence[SeenWorker], preposition: str = "on") -> str:
    """Name the nodes of workers; nothing if they are not known."""
    nodes = list(dict.fromkeys(worker.node for worker in seen_workers if worker.node))
    return f" {preposition} {name_some(nodes, len(nodes), most=NAMED_MAX)}" if nodes else ""
