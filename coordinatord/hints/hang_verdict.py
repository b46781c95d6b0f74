"""Finds the worker that blocks a round, from samples of all workers at one moment (see `seen_worker`).

A worker in a collective waits for the others. So the *culprit*, for which all wait, is in no collective, or in another
one than they are. `wait_graph` follows the waiting from worker to worker, and `hang_sentences` puts the verdict into
words. There is no verdict while a collective makes progress.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from coordinatord.hints import hang_sentences as say
from coordinatord.hints.seen_worker import (
    GONE,
    HALTED,
    TRACED,
    SeenWorker,
    WaitPlace,
    collective_of,
    is_busy,
    is_free,
    moves_bytes,
    state_of,
    wait_place,
    waits_unrecorded,
)
from coordinatord.hints.wait_graph import WorkerPlaces, find_awaited
from coordinatord.protocol.fields import SENTENCE_MAX
from coordinatord.protocol.messages import HangKind
from coordinatord.protocol.stack_messages import PAIRED, CollectiveState, place_of, unpack_places
from coordinatord.protocol.text import clip

_UNEVEN = ("gather", "scatter", "all_to_all")
"""Collectives with such a word in their names allow ranks to have tensors of different sizes."""

_EVEN = ("all_gather", "allgather", "reduce_scatter")
"""The exceptions, by the beginning of their names: here all tensors have one size."""

_ROOTED = frozenset({"broadcast", "gather", "reduce", "scatter"})
"""Operations from one rank to all, or from all to one, which complete at different times on different ranks. Those that
write to another tensor end in `_oop`."""

DEFAULT_GROUP = "default_pg"
"""The group of all workers of a job."""


class HangVerdict(Struct, frozen=True):
    """The workers that block all others."""

    kind: HangKind
    ranks: tuple[int, ...]
    """The culprits; with the kind `NETWORK`, which has none, the workers in a collective that should complete."""
    sentence: str
    waiting: int
    """How many workers wait."""

    @property
    def is_hang(self) -> bool:
        """Whether it will probably not pass by itself."""
        return self.kind is not HangKind.BUSY

    @property
    def rests_on_pace(self) -> bool:
        """Whether its only evidence is that a worker or its data does not move: it may only be slow."""
        return self.kind in {HangKind.STUCK, HangKind.NETWORK}


def find_hang(seen_workers: Sequence[SeenWorker]) -> HangVerdict | None:
    """Return which workers block a round; None if a collective makes progress, or no worker waits and none is halted.

    The first of these that are found are judged:

    1. Busy workers outside of collectives, even if no chain of waiting ends at them: others may wait for their files.
    2. Other workers outside of collectives at which chains end.
    3. Waiting workers at which chains end, and that are behind others.
    4. All workers outside of collectives, though no chain ends at them. They are more likely the cause than those in 5,
       since they should have come to a collective.
    5. All ends of chains: each waits for nobody, since its collective should complete, or they wait for each other.

    A worker whose stack shows an unrecorded wait waits for others itself, so it is named only if no worker is free
    (`is_free`). Where no recorder shows a wait at all, `_judge_stacks` decides.

    In cases 3 and 5 there is no verdict while any waiting worker moves data: on a slow network, a large collective may
    outlast two samples, and it may be over for some workers already.
    """
    waiting = [worker for worker in seen_workers if state_of(worker) is CollectiveState.WAITS]
    if any(state_of(worker) is CollectiveState.MOVES for worker in seen_workers):
        return None
    if not waiting:
        return _judge_halted(seen_workers) or _judge_stacks(seen_workers)
    awaited = find_awaited([_places_of(worker, len(seen_workers)) for worker in seen_workers])
    ends = [worker for index, worker in enumerate(seen_workers) if index in awaited.ends]
    behind = [worker for index, worker in enumerate(seen_workers) if index in awaited.ends & awaited.behind]
    free = [worker for worker in seen_workers if is_free(worker)]
    outside = free or [worker for worker in seen_workers if state_of(worker) is not CollectiveState.WAITS]
    busy = [worker for worker in outside if is_busy(worker)]
    outside_ends = [worker for worker in ends if state_of(worker) is not CollectiveState.WAITS]
    if free and any(worker.now is not None and waits_unrecorded(worker.now) for worker in outside_ends):
        outside_ends = free
    idle = outside_ends or ([] if behind else outside)  # cases 2 and 4, with 3 between them
    if busy or idle:
        return _judge_outside(busy, idle, waiting)
    if any(moves_bytes(worker) for worker in waiting):
        return None
    return _judge_behind(behind, waiting) if behind else _judge_ends(ends, waiting)


def notice_of(verdict: HangVerdict, seen_workers: Sequence[SeenWorker]) -> str:
    """Describe the worker that the others wait for: `waiting for rank 0 on node a, which computes in ...`.

    Without a culprit, or if nobody waits, return the sentence of the verdict.
    """
    if verdict.kind is HangKind.NETWORK or not verdict.waiting:
        return verdict.sentence
    ranks = set(verdict.ranks)
    named = [worker for worker in seen_workers if worker.rank in ranks]
    return say.awaited(verdict.kind, named)


def _verdict(
    kind: HangKind, culprits: Sequence[SeenWorker], waiting: Collection[SeenWorker], sentence: str
) -> HangVerdict:
    ranks = tuple(sorted(worker.rank for worker in culprits))
    return HangVerdict(kind, ranks, clip(sentence, SENTENCE_MAX), len(waiting))


def _places_of(worker: SeenWorker, workers: int) -> WorkerPlaces:
    """Return a worker's places in its groups, for `find_awaited`."""
    if worker.now is None or worker.now.collective is None:
        return WorkerPlaces(worker.rank, ())
    first = place_of(worker.now.collective)
    places = *([] if first is None else [first]), *unpack_places(worker.now.places)
    return WorkerPlaces(worker.rank, places, _members(worker, workers))


def _members(worker: SeenWorker, workers: int) -> int:
    """Return the number of members of the group in which a worker waits; 0 if not known."""
    if worker.now is None:
        return 0
    return workers if collective_of(worker).group == DEFAULT_GROUP else worker.now.members


def _judge_outside(
    busy: Sequence[SeenWorker], idle: Sequence[SeenWorker], waiting: Sequence[SeenWorker]
) -> HangVerdict:
    """Return the verdict on workers outside of collectives for which others wait.

    The culprits are the busy ones, or else those that live, or else all. Workers that do not answer are named as well,
    since one of them may be the cause.
    """
    alive = [worker for worker in idle if worker.now is not None and worker.now.state not in GONE]
    kind = HangKind.BUSY if busy else HangKind.STUCK if alive else HangKind.ABSENT
    culprits = busy or alive or idle
    silent = [] if culprits is idle else [worker for worker in idle if worker.now is None]
    return _verdict(kind, culprits, waiting, say.others_wait(kind, culprits, waiting, silent))


def _judge_halted(seen_workers: Sequence[SeenWorker]) -> HangVerdict | None:
    """Return the verdict on workers that somebody has stopped, though no worker is seen to wait.

    torch's flight recorder does not show `send` and `recv` of gloo, so others may wait for them unseen. None if no
    worker is stopped, all are, or another one is at work.
    """
    halted = [worker for worker in seen_workers if worker.now is not None and worker.now.state in HALTED]
    others = [worker for worker in seen_workers if worker not in halted]
    if not halted or not others or any(map(is_busy, others)):
        return None
    return _verdict(HangKind.STUCK, halted, (), say.others_rest(HangKind.STUCK, halted, others))


def _judge_stacks(seen_workers: Sequence[SeenWorker]) -> HangVerdict | None:
    """Return the verdict on the free workers, if only stacks show that the others wait. None if none wait or are free.

    For whom a worker waits is not known, so all that are free are named. One that has ended is not: the others may have
    gone on without it.
    """
    waiting = [worker for worker in seen_workers if worker.now is not None and waits_unrecorded(worker.now)]
    free = [worker for worker in seen_workers if is_free(worker)]
    if not waiting or not free:
        return None
    return _judge_outside([worker for worker in free if is_busy(worker)], free, waiting)


def judge_unended(seen_workers: Sequence[SeenWorker]) -> HangVerdict | None:
    """Return the verdict on workers that take too long to end, though all others have ended.

    None if one of these workers is in a collective, is held by a debugger, or is on a node that does not answer.
    """
    ended = [worker for worker in seen_workers if worker.now is not None and worker.now.state in GONE]
    unended = [worker for worker in seen_workers if worker.now is None or worker.now.state not in GONE]
    if not ended or not unended or any(worker.now is None or worker.now.state == TRACED for worker in unended):
        return None
    if any(state_of(worker) in {CollectiveState.WAITS, CollectiveState.MOVES} for worker in unended):
        return None
    kind = HangKind.BUSY if any(map(is_busy, unended)) else HangKind.STUCK
    return _verdict(kind, unended, (), say.others_rest(kind, unended, ended))


def _judge_behind(behind: Sequence[SeenWorker], waiting: Sequence[SeenWorker]) -> HangVerdict:
    """Return the verdict on waiting workers at which chains end, and that are behind others.

    * If no other worker waits in a group of theirs, they are the culprits: the others have left them behind.
    * If all are in one operation from or to a root, the network has lost data, since it is over for others.
    * If all are in one group, are its majority, and are one collective behind, the others have begun one too many.
    * Otherwise they are the culprits, and are compared with the place at which most of the others are.
    """
    ranks, groups = {worker.rank for worker in behind}, {_group_of(worker) for worker in behind}
    ahead = [worker for worker in waiting if worker.rank not in ranks]
    peers = [worker for worker in ahead if _group_of(worker) in groups]
    places = _by_place(behind, with_group=len({_group_of(worker) for worker in waiting}) > 1)
    if not peers:
        return _verdict(HangKind.MISMATCHED, behind, waiting, say.left_behind(places, len(ahead), waiting))
    if len(places) == 1 and next(iter(places)).operation.removesuffix("_oop").lstrip("_") in _ROOTED:
        return _verdict(HangKind.NETWORK, behind, waiting, say.over_for_others(places, peers, waiting))
    numbers = [collective_of(worker).number for worker in (*behind, *peers)]
    have_begun_one_too_many = len(peers) < len(behind) and len(groups) == 1 and max(numbers) - min(numbers) == 1
    if have_begun_one_too_many:
        return _mismatched(_by_place([*behind, *peers], with_group=False), waiting)
    most = max(_by_place(peers, with_group=len(groups) > 1).items(), key=lambda side: len(side[1]))
    return _verdict(HangKind.MISMATCHED, behind, waiting, say.apart(places, dict([most]), waiting))


def _judge_ends(ends: Sequence[SeenWorker], waiting: Sequence[SeenWorker]) -> HangVerdict:
    """Return the verdict if all workers wait, none is behind, and the `ends` wait for nobody or for each other.

    Each group is judged by itself, because its members wait for each other. Members of one group that wait at different
    places are the culprits. If each group waits at one place, the complete groups should complete their collective. If
    no group is complete, the workers wait for each other in a circle.
    """
    groups: dict[tuple[str, tuple[int, ...]], list[SeenWorker]] = {}
    for worker in ends:
        groups.setdefault(_group_of(worker), []).append(worker)
    several = len({_group_of(worker) for worker in waiting}) > 1
    for members in groups.values():
        places = _by_place(members, with_group=several)
        # The places of the two in an exchange always differ: the number of each is the rank of the other.
        if len(places) > 1 and not _is_pair(members[0]):
            return _mismatched(places, waiting)
    whole = [members for members in groups.values() if _is_whole(members, len(waiting), alone=not several)]
    if not whole:
        return _mismatched(_by_place(ends, with_group=True), waiting)
    stuck = sorted((worker for members in whole for worker in members), key=lambda worker: worker.rank)
    [place, *_] = _by_place(whole[0], with_group=several)
    return _verdict(HangKind.NETWORK, stuck, waiting, say.never_completes(place, len(whole), stuck, waiting))


def _is_whole(members: Sequence[SeenWorker], workers: int, *, alone: bool) -> bool:
    """Whether all members of a group wait in it.

    If its size is not known, they probably do if several wait, or if workers wait in no other group (`alone`).
    """
    expected = 2 if _is_pair(members[0]) else _members(members[0], workers)
    if expected:
        return len(members) >= expected
    return alone or len(members) > 1


def _is_pair(worker: SeenWorker) -> bool:
    """Whether a worker waits in an exchange with one peer."""
    place = place_of(collective_of(worker))
    return place is not None and place.stage in PAIRED


def _group_of(worker: SeenWorker) -> tuple[str, tuple[int, ...]]:
    """Return the group, with its backend, in which a worker waits; and both ranks, if it waits for one peer only."""
    place = place_of(collective_of(worker))
    if place is None:
        return collective_of(worker).group, ()
    # The number of an exchange is the rank of the peer.
    return place.group, tuple(sorted((worker.rank, place.number))) if place.stage in PAIRED else ()


def _mismatched(places: Mapping[WaitPlace, Sequence[SeenWorker]], waiting: Sequence[SeenWorker]) -> HangVerdict:
    """Return the verdict on workers that wait at different places.

    If most of them wait at one place, the others are the culprits. Otherwise all are.
    """
    sides = sorted(places.items(), key=lambda side: (-len(side[1]), side[1][0].rank))
    most, *others = sides
    has_most = bool(others) and 2 * len(most[1]) > sum(len(workers) for _, workers in sides)
    named = dict(sorted(others if has_most else sides, key=lambda side: side[1][0].rank))
    culprits = [worker for workers in named.values() for worker in workers]
    return _verdict(HangKind.MISMATCHED, culprits, waiting, say.apart(named, dict([most] if has_most else []), waiting))


def _by_place(waiting: Sequence[SeenWorker], *, with_group: bool) -> dict[WaitPlace, list[SeenWorker]]:
    """Group waiting workers by their collectives; in one collective, by their inputs if these must not differ."""
    collectives = [collective_of(worker) for worker in waiting]
    places = [replace(wait_place(each), group=each.group if with_group else "") for each in collectives]
    if len(set(places)) == 1 and _is_even(places[0].operation) and len({each.shape for each in collectives}) > 1:
        places = [replace(wait_place(each), shape=each.shape) for each in collectives]
    found: dict[WaitPlace, list[SeenWorker]] = {}
    for place, worker in zip(places, waiting, strict=True):
        found.setdefault(place, []).append(worker)
    return found


def _is_even(operation: str) -> bool:
    """Whether all ranks must have inputs of one size."""
    return operation.lstrip("_").startswith(_EVEN) or not any(word in operation for word in _UNEVEN)
