"""Judges which worker all others wait for, by where each of them stands.

A worker in a collective waits for others. So the culprit waits in no collective, or in another one than the others.
There is no verdict while a worker gets on, or while none is seen to wait.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from coordinatord.protocol.fields import MESSAGE_MAX
from coordinatord.protocol.frozen_class import frozen
from coordinatord.protocol.hang_kind import HangKind
from coordinatord.protocol.stack_messages import Collective, CollectiveState, WorkerStacks, unpack_stacks
from coordinatord.protocol.stack_place import find_place
from coordinatord.protocol.text import clip

BUSY_CPUS = 0.1
"""The CPUs that a busy worker uses at least, over a fifth of a second: threads that only poll use less."""

BUSY_BYTES = 64 * 1024
"""The fewest bytes between two looks that show that a worker gets on: it reads and writes them when it saves to a slow
disk, and its connections count them when the data of its collective still comes and goes."""

NAMED_MAX = 4
"""The most ranks that a sentence names; the others are counted."""

WAITS_FOR_DISK = "waiting for IO"
"""The state of a process that waits for a disk, or for a file system of the network."""

_HALTED = frozenset({"stopped", "traced"})

_UNEVEN = ("gather", "scatter", "all_to_all")
_EVEN = ("all_gather", "allgather", "reduce_scatter")
"""Ranks may put tensors of different sizes into the former collectives, and not into the latter."""

_ROOTED = frozenset({"broadcast", "gather", "reduce", "scatter"})
"""Operations from one rank to all, or from all to one: each rank is done with its part at its own time."""

DEFAULT_GROUP = "default_pg"
"""The group that has all workers of a job."""


@frozen
class SeenWorker:
    """Where one worker of a round stands."""

    node: str
    rank: int
    now: WorkerStacks | None
    """None if it could not be asked."""
    before: WorkerStacks | None = None
    """Where it stood in an earlier look; None if there was none."""


@frozen
class HangVerdict:
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


def find_hang(seen_workers: Sequence[SeenWorker]) -> HangVerdict | None:
    """Return which workers hold up a round; None if a worker gets on, or none is seen to wait.

    A slow collective gets on as long as its data moves: on a slow network, one of many bytes may take longer than two
    looks. Its workers need not all be in it: a broadcast ends for each of them at its own time, and groups differ.
    """
    waiting = [worker for worker in seen_workers if _state(worker) is CollectiveState.WAITS]
    if not waiting or any(_state(worker) is CollectiveState.MOVES for worker in seen_workers):
        return None
    others = [worker for worker in seen_workers if _state(worker) is not CollectiveState.WAITS]
    if others:
        kind, culprits = _culprits(others)
        subject, lasted = _name_workers(culprits), _longest_wait(waiting)
        if kind is HangKind.ABSENT and all(worker.now is not None for worker in culprits):
            has = "has" if len(culprits) == 1 else "have"
            sentence = f"{subject} {has} ended; {_describe_waiting(waiting)} for {lasted}"
        else:
            sentence = f"{subject} {_describe_culprits(kind, culprits)} for {lasted}; {_describe_waiting(waiting)}"
        return _verdict(kind, culprits, waiting, sentence)
    if any(_moves_bytes(worker) for worker in waiting):
        return None
    return _judge_waiting(waiting)


def notice_of(verdict: HangVerdict, seen_workers: Sequence[SeenWorker]) -> str:
    """Describe the worker that the others wait for: `waiting for rank 0 on node a, which computes in ...`."""
    ranks = set(verdict.ranks)
    named = [worker for worker in seen_workers if worker.rank in ranks]
    return f"waiting for {_name_workers(named)}, which {_describe_culprits(verdict.kind, named)}"


def longest_wait_s(seen_workers: Iterable[SeenWorker]) -> float:
    """Return how long the longest wait of a worker has lasted, in seconds; 0 if none waits."""
    return max(
        (_collective(worker).age_s for worker in seen_workers if _state(worker) is CollectiveState.WAITS), default=0.0
    )


def _verdict(
    kind: HangKind, culprits: Sequence[SeenWorker], waiting: Collection[SeenWorker], sentence: str
) -> HangVerdict:
    ranks = tuple(sorted(worker.rank for worker in culprits))
    return HangVerdict(kind, ranks, clip(sentence, MESSAGE_MAX), len(waiting))


def _state(worker: SeenWorker) -> CollectiveState | None:
    return None if worker.now is None or worker.now.collective is None else worker.now.collective.state


def _collective(worker: SeenWorker) -> Collective:
    assert worker.now is not None  # noqa: S101 - the worker waits in one
    assert worker.now.collective is not None  # noqa: S101 - as above
    return worker.now.collective


def _judge_waiting(waiting: Sequence[SeenWorker]) -> HangVerdict:
    """Return what is wrong where all workers wait: each group is judged by itself, as its members wait for each other.

    If members of one group wait at different places, they are the culprits. If each group waits at one place, the
    groups that are whole ought to complete, and all other workers wait for the members of these. If no group is whole,
    the workers wait for each other in a circle.
    """
    groups: dict[tuple[str, str], list[SeenWorker]] = {}
    for worker in waiting:
        collective = _collective(worker)
        groups.setdefault((collective.group, _backend(collective)), []).append(worker)
    several = len(groups) > 1
    for members in groups.values():
        places = _by_place(members, with_group=several)
        if len(places) > 1:
            behind = min(places.values(), key=lambda workers: _collective(workers[0]).number)
            if _ends_for_each(behind, members):
                return _left_behind(places, behind, members, waiting)
            return _mismatched(places, waiting)
    whole = [members for members in groups.values() if _is_whole(members, len(waiting), alone=not several)]
    if whole:
        return _incomplete(whole, waiting, with_group=several)
    return _mismatched(_by_place(waiting, with_group=True), waiting)


def _is_whole(members: Sequence[SeenWorker], workers: int, *, alone: bool) -> bool:
    """Whether all members of a group wait in it; if their number is not known, whether that is likely."""
    first = members[0].now
    assert first is not None  # noqa: S101 - it waits
    if _collective(members[0]).group == DEFAULT_GROUP:
        return len(members) == workers
    return len(members) >= first.members if first.members else alone or len(members) > 1


def _ends_for_each(behind: Sequence[SeenWorker], members: Sequence[SeenWorker]) -> bool:
    """Whether a collective has ended for all members of a group but these, as it may for each at its own time."""
    first = _collective(behind[0])
    operation = _operation(first).lstrip("_").removesuffix("_oop")
    ahead = sum(_collective(worker).number > first.number for worker in members)
    return operation in _ROOTED and ahead == len(members) - len(behind)


def _left_behind(
    places: dict[str, list[SeenWorker]],
    behind: Sequence[SeenWorker],
    members: Sequence[SeenWorker],
    waiting: Sequence[SeenWorker],
) -> HangVerdict:
    """Return the verdict on a broadcast, or its like, that is over for some members of a group and not for these."""
    place = next(place for place, workers in places.items() if workers is behind)
    others = len(members) - len(behind)
    over = f"rank {next(w.rank for w in members if w not in behind)}" if others == 1 else f"{others} others"
    sentence = (
        f"{_name_workers(behind)} {_wait(behind)} in {place} for {_longest_wait(waiting)}, which is over for {over}: "
        f"look at the network {_between(members)}"
    )
    return _verdict(HangKind.NETWORK, behind, waiting, sentence)


def _incomplete(
    whole: Sequence[Sequence[SeenWorker]], waiting: Sequence[SeenWorker], *, with_group: bool
) -> HangVerdict:
    """Return the verdict on groups in which all members wait at one place."""
    stuck = sorted((worker for members in whole for worker in members), key=lambda worker: worker.rank)
    subject = f"all {len(waiting)} workers" if len(stuck) == len(waiting) else _name_workers(stuck)
    [place, *_] = _by_place(whole[0], with_group=with_group)
    several = f" in collectives of {len(whole)} groups, such as {place}," if len(whole) > 1 else f" in {place}"
    none = "none of them completes" if len(whole) > 1 else "it completes for none"
    lasted = _longest_wait(waiting)
    sentence = f"{subject} wait{several} for {lasted}, and {none}: look at the network {_between(stuck)}"
    return _verdict(HangKind.NETWORK, stuck, waiting, sentence)


def _mismatched(places: dict[str, list[SeenWorker]], waiting: Sequence[SeenWorker]) -> HangVerdict:
    """Return the verdict on workers that wait at different places.

    Where most of them wait at one place, the others are the culprits. Otherwise that cannot be known: all are named.
    """
    sides = sorted(places.items(), key=lambda side: (-len(side[1]), side[1][0].rank))
    (usual, most), *others = sides
    where = f", where {_count_waiting(most)} in {usual}"
    if 2 * len(most) <= sum(len(workers) for _, workers in sides):
        others, where = sides, ""
    others.sort(key=lambda side: side[1][0].rank)
    (place, first), *more = others[:NAMED_MAX]
    named = f"{_name_workers(first)} {_wait(first)} in {place}"
    named += "".join(f" and {_name_workers(workers)} in {place}" for place, workers in more)
    culprits = [worker for _, workers in others for worker in workers]
    return _verdict(HangKind.MISMATCHED, culprits, waiting, f"{named}{where}, for {_longest_wait(waiting)}")


def _culprits(workers: Sequence[SeenWorker]) -> tuple[HangKind, list[SeenWorker]]:
    """Return which of the workers that wait in no collective are the culprits.

    The busy ones are, if there are any: the others may wait for these by other means.
    """
    busy = [worker for worker in workers if _is_busy(worker)]
    if busy:
        return HangKind.BUSY, busy
    known = [worker for worker in workers if worker.now is not None and worker.now.state not in {"", "ended"}]
    return (HangKind.STUCK, known) if known else (HangKind.ABSENT, list(workers))


def _is_busy(worker: SeenWorker) -> bool:
    now, before = worker.now, worker.before
    if now is None or now.state in _HALTED:
        return False
    if max(now.cpus, 0.0 if before is None else before.cpus) >= BUSY_CPUS:
        return True
    if "running" in {now.state, "" if before is None else before.state}:
        return True  # on a busy host it may hardly get a CPU
    if before is None or before.pid != now.pid:
        return False
    moved = before.origin is now.origin and _main(before) != _main(now)
    return moved or _moves_bytes(worker)


def _moves_bytes(worker: SeenWorker) -> bool:
    """Whether a worker has read or written since the look before, or data has come or gone on its connections."""
    now, before = worker.now, worker.before
    if now is None or before is None or before.pid != now.pid:
        return False
    is_counted = bool(before.network_bytes and now.network_bytes)
    sent = now.network_bytes - before.network_bytes if is_counted else 0
    return max(now.io_bytes - before.io_bytes, sent) >= BUSY_BYTES


def _main(worker: WorkerStacks) -> bytes:
    """Return the stack of the main thread."""
    return worker.stacks.partition(b"\n\n")[0]


# Sentences


def _describe_culprits(kind: HangKind, culprits: Sequence[SeenWorker]) -> str:
    """Describe what the culprits do, and where the first of them does it."""
    alone, first = len(culprits) == 1, culprits[0].now
    if first is None or kind is HangKind.ABSENT:
        return f"{'does' if alone else 'do'} not answer"
    place = _place(first)
    if first.state in _HALTED:
        return f"{'is' if alone else 'are'} {first.state}{f' in {place}' if place else ''}"
    where = place or (f"the kernel's {first.waits_in}" if first.waits_in else "")
    verb = "compute" if kind is HangKind.BUSY else "stand"
    if kind is HangKind.STUCK and first.state == WAITS_FOR_DISK:
        return f"wait{'s' if alone else ''} for a disk{f' in {where}' if where else ''}"
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
    collectives = [_collective(worker) for worker in waiting]
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


def _backend(collective: Collective) -> str:
    """Return the backend that carries a collective out: each backend of a group counts its own collectives."""
    return collective.operation.partition(":")[0]


def _operation(collective: Collective) -> str:
    return collective.operation.rpartition(":")[2]


def _name(collective: Collective) -> str:
    return f"{_operation(collective)} {collective.number:,}"


def _longest_wait(waiting: Sequence[SeenWorker]) -> str:
    return f"{longest_wait_s(waiting):.0f} s"


def _describe_waiting(waiting: Sequence[SeenWorker]) -> str:
    """Describe where the other workers wait; where most of them do, if they wait at several places."""
    [(place, number)] = Counter(_name(_collective(worker)) for worker in waiting).most_common(1)
    if len(waiting) == 1:
        return f"rank {waiting[0].rank} waits in {place}"
    return f"{'the' if number == len(waiting) else f'{number} of the'} {len(waiting)} others wait in {place}"


def _wait(waiting: Sequence[SeenWorker]) -> str:
    return "waits" if len(waiting) == 1 else "wait"


def _between(seen_workers: Sequence[SeenWorker]) -> str:
    """Name the nodes whose network these workers need: `between nodes a, b`."""
    nodes = len({worker.node for worker in seen_workers})
    return f"{'on' if nodes == 1 else 'between'} {_name_nodes(seen_workers)}"


def _count_waiting(seen_workers: Sequence[SeenWorker]) -> str:
    return f"rank {seen_workers[0].rank} waits" if len(seen_workers) == 1 else f"{len(seen_workers)} others wait"


def _name_workers(culprits: Sequence[SeenWorker]) -> str:
    """Name workers and their nodes; the first few ranks, and how many there are more."""
    named = ", ".join(str(worker.rank) for worker in culprits[:NAMED_MAX])
    more = f" and {len(culprits) - NAMED_MAX} more" if len(culprits) > NAMED_MAX else ""
    return f"rank{'' if len(culprits) == 1 else 's'} {named}{more} on {_name_nodes(culprits)}"


def _name_nodes(seen_workers: Sequence[SeenWorker]) -> str:
    nodes = list(dict.fromkeys(worker.node for worker in seen_workers))
    more = f" and {len(nodes) - NAMED_MAX} more" if len(nodes) > NAMED_MAX else ""
    return f"node{'' if len(nodes) == 1 else 's'} {', '.join(nodes[:NAMED_MAX])}{more}"
