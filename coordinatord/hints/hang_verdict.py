"""Judges which worker all others wait for, by where each of them stands.

A worker in a collective waits for others. So the culprit waits in no collective, or in another one than the others;
`wait_graph` finds it. There is no verdict while a worker gets on, or while none is seen to wait.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import Struct

from coordinatord.hints.seen_worker import (
    HALTED,
    TRACED,
    SeenWorker,
    collective_of,
    is_busy,
    moves_bytes,
    outside_of,
    state_of,
)
from coordinatord.hints.wait_graph import WorkerPlaces, find_awaited
from coordinatord.protocol.fields import MESSAGE_MAX
from coordinatord.protocol.messages import HangKind
from coordinatord.protocol.stack_messages import (
    PAIRED,
    Collective,
    CollectiveState,
    WorkerStacks,
    find_place,
    place_of,
    unpack_places,
    unpack_stacks,
)
from coordinatord.protocol.text import clip

NAMED_MAX = 4
"""The most ranks that a sentence names; the others are counted."""

_UNEVEN = ("gather", "scatter", "all_to_all")
_EVEN = ("all_gather", "allgather", "reduce_scatter")
"""Ranks may put tensors of different sizes into the former collectives, and not into the latter."""

_ROOTED = frozenset({"broadcast", "gather", "reduce", "scatter"})
"""Operations from one rank to all, or from all to one: each rank is done with its part at its own time."""

DEFAULT_GROUP = "default_pg"
"""The group that has all workers of a job."""


class HangVerdict(Struct, frozen=True):
    """The workers that hold up all others."""

    kind: HangKind
    ranks: tuple[int, ...]
    """The culprits; with `network`, the workers that wait in a collective that ought to complete."""
    sentence: str
    waiting: int
    """How many workers wait."""

    @property
    def is_hang(self) -> bool:
        """Whether it will not pass by itself, as far as can be seen."""
        return self.kind is not HangKind.BUSY

    @property
    def rests_on_pace(self) -> bool:
        """Whether all that shows it is that a worker or its data does not move."""
        return self.kind in {HangKind.STUCK, HangKind.NETWORK}


def find_hang(seen_workers: Sequence[SeenWorker]) -> HangVerdict | None:
    """Return which workers hold up a round; None if a worker gets on, or none is seen to wait.

    A slow collective gets on as long as its data moves: on a slow network, one of many bytes may take longer than two
    looks. Its workers need not all be in it: a broadcast ends for each of them at its own time, and groups differ.
    """
    waiting = [worker for worker in seen_workers if state_of(worker) is CollectiveState.WAITS]
    if not waiting or any(state_of(worker) is CollectiveState.MOVES for worker in seen_workers):
        return None
    awaited = find_awaited([_places_of(worker, len(seen_workers)) for worker in seen_workers])
    last = [worker for index, worker in enumerate(seen_workers) if index in awaited.last]
    behind = [worker for index, worker in enumerate(seen_workers) if index in awaited.last & awaited.behind]
    others = [worker for worker in seen_workers if state_of(worker) is not CollectiveState.WAITS]
    still = [worker for worker in last if state_of(worker) is not CollectiveState.WAITS]
    # Others may wait for a busy worker by other means, such as a file.
    named = [worker for worker in others if is_busy(worker)] or still or ([] if behind else others)
    if named:
        return _judge_others(named, waiting)
    if any(moves_bytes(worker) for worker in waiting):
        return None
    return _judge_behind(behind, waiting) if behind else _judge_waiting(last, waiting)


def notice_of(verdict: HangVerdict, seen_workers: Sequence[SeenWorker]) -> str:
    """Describe the worker that the others wait for: `waiting for rank 0 on node a, which computes in ...`.

    Where no worker is to blame, it is the sentence of the verdict.
    """
    if verdict.kind is HangKind.NETWORK:
        return verdict.sentence
    ranks = set(verdict.ranks)
    named = [worker for worker in seen_workers if worker.rank in ranks]
    return f"waiting for {_name_workers(named)}, which {_describe_culprits(verdict.kind, named)}"


def longest_wait_s(seen_workers: Iterable[SeenWorker]) -> float:
    """Return how long the longest wait of a worker has lasted, in seconds; 0 if none waits."""
    return max(
        (collective_of(worker).age_s for worker in seen_workers if state_of(worker) is CollectiveState.WAITS),
        default=0.0,
    )


def _verdict(
    kind: HangKind, culprits: Sequence[SeenWorker], waiting: Collection[SeenWorker], sentence: str
) -> HangVerdict:
    ranks = tuple(sorted(worker.rank for worker in culprits))
    return HangVerdict(kind, ranks, clip(sentence, MESSAGE_MAX), len(waiting))


def _places_of(worker: SeenWorker, workers: int) -> WorkerPlaces:
    """Return how far a worker is in its groups, for `find_awaited`."""
    if worker.now is None or worker.now.collective is None:
        return WorkerPlaces(worker.rank, ())
    first = place_of(worker.now.collective)
    places = *([] if first is None else [first]), *unpack_places(worker.now.places)
    return WorkerPlaces(worker.rank, places, _members(worker, workers))


def _members(worker: SeenWorker, workers: int) -> int:
    """Return how many members the group has in which a worker waits; 0 if that is not known."""
    return 0 if worker.now is None else workers if collective_of(worker).group == DEFAULT_GROUP else worker.now.members


def _judge_others(culprits: Sequence[SeenWorker], waiting: Sequence[SeenWorker]) -> HangVerdict:
    """Return the verdict on workers that wait in no collective, some of which others wait for."""
    kind, culprits = _culprits(culprits)
    subject, lasted = _name_workers(culprits), _lasting(waiting)
    if kind is HangKind.ABSENT and all(worker.now is not None for worker in culprits):
        has = "has" if len(culprits) == 1 else "have"
        sentence = f"{subject} {has} ended; {_describe_waiting(waiting)}{lasted}"
    else:
        sentence = f"{subject} {_describe_culprits(kind, culprits)}{lasted}; {_describe_waiting(waiting)}"
    return _verdict(kind, culprits, waiting, sentence)


def _judge_behind(behind: Sequence[SeenWorker], waiting: Sequence[SeenWorker]) -> HangVerdict:
    """Return the verdict on workers that others have left behind, and that wait for nobody.

    Where most members of a group are behind by one, the others have begun one collective more than they should.
    """
    ranks, groups = {worker.rank for worker in behind}, {_group_of(worker) for worker in behind}
    ahead = [worker for worker in waiting if worker.rank not in ranks]
    peers = [worker for worker in ahead if _group_of(worker) in groups]
    places = _by_place(behind, with_group=len({_group_of(worker) for worker in waiting}) > 1)
    if peers and len(places) == 1 and _operation(collective_of(behind[0])).removesuffix("_oop").lstrip("_") in _ROOTED:
        over = f"rank {peers[0].rank}" if len(peers) == 1 else f"{len(peers)} others"
        sentence = f"{_name_places(places)}{_lasting(waiting)}, which is over for {over}: {_network(waiting)}"
        return _verdict(HangKind.NETWORK, behind, waiting, sentence)
    where = ""
    if peers:
        numbers = [collective_of(worker).number for worker in (*behind, *peers)]
        if len(peers) < len(behind) and len(groups) == 1 and max(numbers) - min(numbers) == 1:
            return _mismatched(_by_place([*behind, *peers], with_group=False), waiting)
        usual, most = max(_by_place(peers, with_group=len(groups) > 1).items(), key=lambda side: len(side[1]))
        where = f", where {_count_waiting(most)} in {usual},"
    elif ahead:
        where = f", behind {'the other one' if len(ahead) == 1 else f'the {len(ahead)} others'},"
    sentence = f"{_name_places(places)}{where}{_lasting(waiting)}".rstrip(",")
    return _verdict(HangKind.MISMATCHED, behind, waiting, sentence)


def _judge_waiting(last: Sequence[SeenWorker], waiting: Sequence[SeenWorker]) -> HangVerdict:
    """Return what is wrong where all workers wait, and these wait for nobody, or for each other.

    Each group is judged by itself, as its members wait for each other. If members of one group wait at different
    places, they are the culprits. If each group waits at one place, the groups that are whole ought to complete. If no
    group is whole, the workers wait for each other in a circle.
    """
    groups: dict[str, list[SeenWorker]] = {}
    for worker in last:
        groups.setdefault(_group_of(worker), []).append(worker)
    several = len({_group_of(worker) for worker in waiting}) > 1
    for members in groups.values():
        places = _by_place(members, with_group=several)
        if len(places) > 1 and not _is_pair(members[0]):
            return _mismatched(places, waiting)
    whole = [members for members in groups.values() if _is_whole(members, len(waiting), alone=not several)]
    if whole:
        return _incomplete(whole, waiting, with_group=several)
    return _mismatched(_by_place(last, with_group=True), waiting)


def _is_whole(members: Sequence[SeenWorker], workers: int, *, alone: bool) -> bool:
    """Whether all members of a group wait in it; if their number is not known, whether that is likely."""
    expected = 2 if _is_pair(members[0]) else _members(members[0], workers)
    return len(members) >= expected if expected else alone or len(members) > 1


def _is_pair(worker: SeenWorker) -> bool:
    place = place_of(collective_of(worker))
    return place is not None and place.stage in PAIRED


def _group_of(worker: SeenWorker) -> str:
    """Return the group in which a worker waits, or the pair. Each backend of a group counts its own collectives."""
    place = place_of(collective_of(worker))
    if place is None:
        return collective_of(worker).group
    pair = sorted((worker.rank, place.number)) if place.stage in PAIRED else []
    return " ".join([place.group, *map(str, pair)])


def _incomplete(
    whole: Sequence[Sequence[SeenWorker]], waiting: Sequence[SeenWorker], *, with_group: bool
) -> HangVerdict:
    """Return the verdict on groups in which all members wait at one place."""
    stuck = sorted((worker for members in whole for worker in members), key=lambda worker: worker.rank)
    subject = f"all {len(waiting)} workers" if len(stuck) == len(waiting) else _name_workers(stuck)
    [place, *_] = _by_place(whole[0], with_group=with_group)
    several = f" in collectives of {len(whole)} groups, such as {place}," if len(whole) > 1 else f" in {place}"
    none = "none of them completes" if len(whole) > 1 else "it completes for none"
    sentence = f"{subject} wait{several}{_lasting(waiting)}, and {none}: {_network(stuck)}"
    return _verdict(HangKind.NETWORK, stuck, waiting, sentence)


def _mismatched(places: dict[str, list[SeenWorker]], waiting: Sequence[SeenWorker]) -> HangVerdict:
    """Return the verdict on workers that wait at different places.

    Where most of them wait at one place, the others are the culprits. Otherwise that cannot be known: all are named.
    """
    sides = sorted(places.items(), key=lambda side: (-len(side[1]), side[1][0].rank))
    (usual, most), *others = sides
    where = f", where {_count_waiting(most)} in {usual}"
    if not others or 2 * len(most) <= sum(len(workers) for _, workers in sides):
        others, where = sides, ""
    others.sort(key=lambda side: side[1][0].rank)
    culprits = [worker for _, workers in others for worker in workers]
    sentence = f"{_name_places(dict(others))}{where},{_lasting(waiting)}".rstrip(",")
    return _verdict(HangKind.MISMATCHED, culprits, waiting, sentence)


def _culprits(workers: Sequence[SeenWorker]) -> tuple[HangKind, list[SeenWorker]]:
    """Return which of the workers that wait in no collective are the culprits.

    The busy ones are, if there are any: the others may wait for these by other means.
    """
    busy = [worker for worker in workers if is_busy(worker)]
    if busy:
        return HangKind.BUSY, busy
    known = [worker for worker in workers if worker.now is not None and worker.now.state not in {"", "ended"}]
    return (HangKind.STUCK, known) if known else (HangKind.ABSENT, list(workers))


# Sentences


def _describe_culprits(kind: HangKind, culprits: Sequence[SeenWorker]) -> str:
    """Describe what the culprits do, and where the first of them does it."""
    alone, first = len(culprits) == 1, culprits[0].now
    if first is None or kind is HangKind.ABSENT:
        return f"{'does' if alone else 'do'} not answer"
    place = _place(first)
    if first.state in HALTED:
        state = "held by a debugger" if first.state == TRACED else first.state
        return f"{'is' if alone else 'are'} {state}{f' in {place}' if place else ''}"
    where = place or (f"the kernel's {first.waits_in}" if first.waits_in else "")
    verb = "compute" if kind is HangKind.BUSY else "stand"
    if kind is HangKind.STUCK and (awaited := outside_of(first)):
        return f"wait{'s' if alone else ''} for {awaited}{f' in {where}' if where else ''}"
    return f"{verb}{'s' if alone else ''}{f' in {where}' if where else ' still'}"


def _place(worker: WorkerStacks) -> str:
    """Return where the script is: the function that it has called, and its own line; empty if it is not known."""
    if worker.stands_at:
        return worker.stands_at
    threads = unpack_stacks(worker.stacks)
    place = find_place([_split(frame) for frame in threads[0][1]]) if threads else None
    return f"{place[0]} ({place[1]}:{place[2]})" if place is not None and place[0] else ""


def _split(frame: str) -> tuple[str, str, str]:
    """Split `function (file:line)`."""
    name, _, place = frame.partition(" (")
    file, _, line = place.removesuffix(")").rpartition(":")
    return name, file, line


def _by_place(waiting: Sequence[SeenWorker], *, with_group: bool) -> dict[str, list[SeenWorker]]:
    """Group waiting workers by the name of their collective, which has the size only where that alone differs."""
    collectives = [collective_of(worker) for worker in waiting]
    names = [
        f"{_name(collective)} of {collective.group}" if with_group else _name(collective) for collective in collectives
    ]
    if len(set(names)) == 1 and _is_even(collectives[0]) and len({collective.shape for collective in collectives}) > 1:
        names = [f"{_name(collective)} with {collective.shape or 'nothing'}" for collective in collectives]
    found: dict[str, list[SeenWorker]] = {}
    for name, worker in zip(names, waiting, strict=True):
        found.setdefault(name, []).append(worker)
    return found


def _is_even(collective: Collective) -> bool:
    """Whether all ranks must put in tensors of one size."""
    operation = _operation(collective)
    return operation.lstrip("_").startswith(_EVEN) or not any(word in operation for word in _UNEVEN)


def _operation(collective: Collective) -> str:
    return collective.operation.rpartition(":")[2]


def _name(collective: Collective) -> str:
    return f"{_operation(collective)} {collective.number:,}"


def _name_places(places: Mapping[str, Sequence[SeenWorker]]) -> str:
    """Say which workers wait where: `rank 5 on node a waits in barrier 7 and rank 9 on node b in all_reduce 3`."""
    (place, first), *more = [*places.items()][:NAMED_MAX]
    named = f"{_name_workers(first)} {'waits' if len(first) == 1 else 'wait'} in {place}"
    return named + "".join(f" and {_name_workers(workers)} in {place}" for place, workers in more)


def _lasting(waiting: Sequence[SeenWorker]) -> str:
    """Say for how long workers have waited; nothing if that is not known."""
    longest_s = longest_wait_s(waiting)
    return f" for {longest_s:.0f} s" if longest_s else ""


def _describe_waiting(waiting: Sequence[SeenWorker]) -> str:
    """Describe where the other workers wait; where most of them do, if they wait at several places."""
    [(place, number)] = Counter(_name(collective_of(worker)) for worker in waiting).most_common(1)
    if len(waiting) == 1:
        return f"rank {waiting[0].rank} waits in {place}"
    return f"{'the' if number == len(waiting) else f'{number} of the'} {len(waiting)} others wait in {place}"


def _network(seen_workers: Sequence[SeenWorker]) -> str:
    """Name the nodes whose network these workers need: `look at the network between nodes a, b`."""
    nodes = len({worker.node for worker in seen_workers})
    return f"look at the network{_on_nodes(seen_workers, 'on' if nodes == 1 else 'between')}"


def _count_waiting(seen_workers: Sequence[SeenWorker]) -> str:
    return f"rank {seen_workers[0].rank} waits" if len(seen_workers) == 1 else f"{len(seen_workers)} others wait"


def _name_workers(culprits: Sequence[SeenWorker]) -> str:
    """Name workers and their nodes; the first few ranks, and how many there are more."""
    named = ", ".join(str(worker.rank) for worker in culprits[:NAMED_MAX])
    more = f" and {len(culprits) - NAMED_MAX} more" if len(culprits) > NAMED_MAX else ""
    return f"rank{'' if len(culprits) == 1 else 's'} {named}{more}{_on_nodes(culprits)}"


def _on_nodes(seen_workers: Sequence[SeenWorker], preposition: str = "on") -> str:
    """Name the nodes of workers; nothing if they are not known."""
    nodes = list(dict.fromkeys(worker.node for worker in seen_workers if worker.node))
    more = f" and {len(nodes) - NAMED_MAX} more" if len(nodes) > NAMED_MAX else ""
    return f" {preposition} node{'' if len(nodes) == 1 else 's'} {', '.join(nodes[:NAMED_MAX])}{more}" if nodes else ""
