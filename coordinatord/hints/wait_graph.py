"""Finds the workers for which all others wait, directly or through a chain of other workers.

A worker may be in several process groups, and wait in one of them for a worker that waits in another one. So who waits
for whom is a graph, and the workers at which all chains end are looked for.

A worker's *level* in a process group is how far it is in the group's sequence of collectives. It waits for the members
of the group that are *behind* it, at a lower level. With NCCL it also waits for members that have begun its operation,
but still wait in an earlier one: a worker begins dozens of operations ahead, and its GPU executes them in order.

A worker that is behind is no culprit while it waits for others itself, unless it is *overtaken*. Some collectives
complete only once all members have begun them. If one of these has completed for one member, it should have completed
for all: a member that is still in it is overtaken, and counts as waiting for nobody.

In an exchange with one peer, a worker waits for that peer. If the peer is at the other end of the same exchange, then
neither waits for the other, since the exchange should complete.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, pairwise

from msgspec import Struct
from msgspec.structs import replace

from coordinatord.protocol.stack_messages import PAIRED, GroupPlace, GroupStage

Node = int | tuple[str, str, int]
"""A node of the graph: a worker, by its index, or a part of a group, by the part's name, the group and a level.

The part `at` has the members at that level, `below` those at lower levels, and `not yet at` those at that level that
still wait in an earlier operation. Edges lead from workers to parts and from parts to workers, so that their number
does not grow with the square of a group.
"""

BACKENDS_MAX = 4
"""The most backends of a group that are looked at; torch makes one for each kind of device."""

SILENT: Node = ("silent", "", 0)
"""The node of all workers without a known place, for which any worker may wait."""


class WorkerPlaces(Struct, frozen=True):
    """The progress of one worker in its process groups."""

    rank: int
    places: tuple[GroupPlace, ...]
    """The places at which it waits come first, in the order in which they began. A silent worker has none."""
    members: int = 0
    """The number of members of the group of its first place; 0 if not known."""

    @property
    def first(self) -> GroupPlace | None:
        """The first place at which it waits, if any."""
        return next((place for place in self.places if place.stage is not GroupStage.DONE), None)

    @property
    def collective(self) -> GroupPlace | None:
        """The first collective in which it waits, if any."""
        return next((place for place in self.heads if place.stage is not GroupStage.DONE), None)

    @property
    def heads(self) -> Iterable[GroupPlace]:
        """The first place in each group, without exchanges with one peer, which are no part of the sequence."""
        found: dict[str, GroupPlace] = {}
        for place in self.places:
            if place.stage not in PAIRED:
                found.setdefault(place.group, place)
        return found.values()


class Awaited(Struct, frozen=True):
    """The workers for which all others wait, by their indices."""

    ends: frozenset[int]
    """The ends of all chains of waiting: they wait for nobody, or only for each other."""
    behind: frozenset[int]
    """All workers that are behind a waiting member of a group, or that are overtaken."""


def find_awaited(workers: Sequence[WorkerPlaces]) -> Awaited:
    """Return the workers for which all others wait; of workers that wait for each other, those that are behind."""
    graph = _Graph(_with_backends(workers))
    waiting = [index for index, worker in enumerate(workers) if worker.first is not None]
    ends: set[int] = set()
    for component in _last_components(waiting, graph.successors):
        members = {node for node in component if isinstance(node, int)}
        ends |= members & graph.behind or members
    return Awaited(frozenset(ends), frozenset(graph.behind))


def _with_backends(workers: Sequence[WorkerPlaces]) -> list[WorkerPlaces]:
    """Replace each place without a backend by one for each backend that other workers use in the group.

    A worker has the place `41.` if it has begun no collective of group 41, and `41.nccl` once it has begun one there.
    """
    used: dict[str, set[str]] = defaultdict(set)
    for place in (place for worker in workers for place in worker.places):
        name, _, backend = place.group.rpartition(".")
        if backend and len(used[f"{name}."]) < BACKENDS_MAX:
            used[f"{name}."].add(place.group)

    def expanded(place: GroupPlace) -> Iterator[GroupPlace]:
        return (replace(place, group=group) for group in used.get(place.group, {place.group}))

    return [replace(worker, places=tuple(chain.from_iterable(map(expanded, worker.places)))) for worker in workers]


class _Graph:
    """The graph of who waits for whom; its size grows with the number of places."""

    def __init__(self, workers: Sequence[WorkerPlaces]) -> None:
        self._workers = workers
        self._index_of = {worker.rank: index for index, worker in enumerate(workers)}
        self._levels: dict[str, Counter[int]] = defaultdict(Counter)
        """The number of members of each group at each level."""
        for place in (place for worker in workers for place in worker.heads):
            self._levels[place.group][place.level] += 1
        self._lower: dict[Node, int] = {
            ("below", group, upper): lower
            for group, levels in self._levels.items()
            for lower, upper in pairwise(sorted(levels))
        }
        """The next lower level of the group, by the part `below` a level; the lowest level has no such part."""
        self._overtaken = self._find_overtaken()
        self.behind = self._overtaken | self._find_behind()
        """The workers of `Awaited.behind`."""
        self._members = self._find_members()

    def _find_overtaken(self) -> set[int]:
        """Return the workers whose collective should have completed, since it has for another worker."""
        highest = {group: max(levels) for group, levels in self._levels.items()}
        return {
            index
            for index, worker in enumerate(self._workers)
            for place in worker.places
            if place.stage is GroupStage.WAITS_FOR_ALL and highest[place.group] > place.level
        }

    def _find_behind(self) -> set[int]:
        """Return the workers at a lower level than a member of the same group that waits."""
        waited_at: dict[str, int] = defaultdict(int)
        for place in filter(None, (worker.collective for worker in self._workers)):
            waited_at[place.group] = max(waited_at[place.group], place.level)
        return {
            index
            for index, worker in enumerate(self._workers)
            if any(place.level < waited_at[place.group] for place in worker.heads)
        }

    def _find_members(self) -> dict[Node, list[int]]:
        """Return the workers of each part `at` or `not yet at` a level, and those of `SILENT`.

        An overtaken worker counts as not yet at its own place, so that the others there wait for it.
        """
        members: dict[Node, list[int]] = defaultdict(list)
        for index, worker in enumerate(self._workers):
            if not worker.places:
                members[SILENT].append(index)
            for place in worker.heads:
                members["at", place.group, place.level].append(index)
                waits_earlier = place != worker.first or index in self._overtaken
                if place.stage is not GroupStage.DONE and waits_earlier:
                    members["not yet at", place.group, place.level].append(index)
        return members

    def successors(self, node: Node) -> Iterable[Node]:
        """Return the nodes for which a worker waits, or the nodes that make up a part of a group."""
        if isinstance(node, int):
            return () if node in self._overtaken else self._awaited_by(self._workers[node])
        part, group, _ = node
        if part != "below":
            return self._members[node]
        lower = self._lower[node]
        return [*self._members["at", group, lower], *self._parts(("below", group, lower))]

    def _awaited_by(self, worker: WorkerPlaces) -> Iterator[Node]:
        """Yield the nodes for which a worker waits."""
        first = worker.first
        if first is None:
            return
        has_all_members = 0 < worker.members <= self._levels[first.group].total()
        if not has_all_members:  # a silent worker may be a member of the group
            yield from self._parts(SILENT)
        # Even if an exchange comes first, this worker has begun its first collective, and needs members that have not.
        if (collective := worker.collective) is not None:
            yield from self._parts(("below", collective.group, collective.level))
        # Members that are not yet at a place hold up this worker only at its first place: it has not come to later
        # ones itself.
        if first.stage not in PAIRED:
            yield from self._parts(("not yet at", first.group, first.level))
            return
        # In an exchange, the number of a place is the rank of the peer.
        peer, other_end = self._index_of.get(first.number), GroupPlace(first.group, PAIRED[first.stage], worker.rank)
        if peer is None:
            yield from self._parts(SILENT)
        elif peer in self._overtaken or self._workers[peer].first != other_end:
            yield peer  # an overtaken peer is the end of the chain, even if it is at the other end of this exchange

    def _parts(self, node: Node) -> Iterator[Node]:
        """Yield a part of a group, or `SILENT`, if it has workers."""
        if node in self._lower or node in self._members:
            yield node


def _last_components(begin: Iterable[Node], successors: Callable[[Node], Iterable[Node]]) -> Iterator[set[Node]]:
    """Yield the strongly connected components that no edge leaves, by Tarjan's algorithm.

    `number` has the order in which nodes were entered, and `low` the lowest number of an open node that a node is known
    to reach. The `stack` has all open nodes, whose components are not complete. The `path` has those of the present
    walk, each with its remaining successors. `closed` has the nodes of complete components, and `leads_on` those with
    an edge to such a node.
    """
    number: dict[Node, int] = {}
    low: dict[Node, int] = {}
    stack: list[Node] = []
    path: list[tuple[Node, list[Node]]] = []
    closed: set[Node] = set()
    leads_on: set[Node] = set()

    def enter(node: Node) -> None:
        number[node] = low[node] = len(number)
        stack.append(node)
        path.append((node, [*successors(node)]))

    for root in begin:
        if root not in number:
            enter(root)
        while path:
            node, following = path[-1]
            if not following:
                path.pop()
                if low[node] == number[node]:
                    component = _pop_through(stack, node)
                    closed |= component
                    if not component & leads_on:
                        yield component
            elif following[-1] not in number:
                enter(following[-1])  # it is popped below, once its own walk is over
            elif (passed := following.pop()) in closed:
                leads_on.add(node)
            else:
                low[node] = min(low[node], low[passed])


def _pop_through(stack: list[Node], last: Node) -> set[Node]:
    """Remove and return all nodes from the top of the stack through `last`."""
    popped: set[Node] = set()
    while last not in popped:
        popped.add(stack.pop())
    return popped
