"""Those ranks are named that have stopped, and no other ones, in training of any parallel layout.

The training is a small model of tensor, pipeline and data parallel groups, in which some ranks stop. Each host begins
operations ahead of its GPU, which carries them out in order; nothing waits for a `send` but itself. So it is as with
NCCL, and with a lead of one as with gloo.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, product
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from coordinatord.hints.hang_verdict import find_hang
from coordinatord.hints.seen_worker import SeenWorker
from coordinatord.protocol.stack_messages import StackOrigin, WorkerStacks
from nodeclient.diagnosis.stack_text import locate
from workerlib.contract.recorders import by_group, in_order

STEPS = 2

MICROBATCHES = 3

NEVER = 10**6
"""More operations than any program has."""


@dataclass(frozen=True)
class Layout:
    """How many ranks each group has."""

    tensor: int
    pipeline: int
    data: int

    @property
    def ranks(self) -> range:
        """All ranks; those of a tensor group are neighbours."""
        return range(self.tensor * self.pipeline * self.data)

    def rank(self, stage: int, replica: int, part: int) -> int:
        """Return the rank at this place."""
        return (stage * self.data + replica) * self.tensor + part


@dataclass
class Operation:
    """What a rank does with others."""

    group: str
    ranks: tuple[int, ...]
    name: str
    number: int
    peer: int | None = None
    is_over: bool = False


def program_of(layout: Layout, place: tuple[int, int, int]) -> list[Operation]:
    """Return what one rank does in some steps: forward and backward of some microbatches, then its gradients."""
    stage, replica, part = place
    tensor = tuple(layout.rank(stage, replica, other) for other in range(layout.tensor))
    pipeline = tuple(layout.rank(other, replica, part) for other in range(layout.pipeline))
    data = tuple(layout.rank(stage, other, part) for other in range(layout.data))
    found: list[Operation] = []
    counts: dict[tuple[str, bool], int] = defaultdict(int)

    def add(group: str, ranks: tuple[int, ...], name: str, peer: int | None = None) -> None:
        counts[group, peer is None] += 1
        if len(ranks) > 1:
            found.append(Operation(group, ranks, name, counts[group, peer is None], peer))

    def compute(source: int, target: int, operations: tuple[str, ...]) -> None:
        if 0 <= source < layout.pipeline:
            add(f"pp{replica}.{part}", pipeline, "recv", source)
        for operation in operations:
            add(f"tp{stage}.{replica}", tensor, operation)
        if 0 <= target < layout.pipeline:
            add(f"pp{replica}.{part}", pipeline, "send", target)

    for _ in range(STEPS):
        for _ in range(MICROBATCHES):
            compute(stage - 1, stage + 1, ("broadcast", "broadcast", "_all_gather_base", "_reduce_scatter_base"))
        for _ in range(MICROBATCHES):
            compute(stage + 1, stage - 1, ("all_to_all", "all_reduce"))
        add(f"dp{stage}.{part}", data, "all_reduce")
        add("all", tuple(layout.ranks), "all_reduce")
    return found


@dataclass(frozen=True)
class Stop:
    """How a rank stops. Each is a number of operations of its program."""

    begun: int = NEVER
    """So many its host begins."""
    done: int = NEVER
    """So many its GPU carries out."""
    recorded: int = NEVER
    """So many its recorder sees end at most."""


@dataclass
class Rank:
    """One rank."""

    program: list[Operation]
    lead: int
    """How many operations its host begins before the first of them is over."""
    stop: Stop
    begun: int = 0

    def begin(self) -> bool:
        """Begin what can be begun; return whether anything was."""
        awaited = (at for at, each in enumerate(self.program) if not each.is_over and each.name != "send")
        before, most = self.begun, next(awaited, NEVER) + self.lead
        self.begun = max(before, min(most, self.stop.begun, len(self.program)))
        return self.begun > before

    def present(self) -> Iterator[Operation]:
        """Yield what the GPU is at: the first operation that is not over, and what is sent before it."""
        for operation in self.program[: min(self.begun, self.stop.done)]:
            if not operation.is_over:
                yield operation
                if operation.name != "send":
                    return


class Training:
    """All ranks, when nothing moves any more."""

    def __init__(self, layout: Layout, leads: Sequence[int], stops: Mapping[int, Stop]) -> None:
        """Train until all is done, or nothing moves; ranks have these leads, and some of them stop."""
        places = product(range(layout.pipeline), range(layout.data), range(layout.tensor))
        self.ranks = [
            Rank(program_of(layout, place), leads[rank], stops.get(rank, Stop())) for rank, place in enumerate(places)
        ]
        self._broadcasts: set[tuple[object, ...]] = set()
        moves = True
        while moves:
            begun = [rank.begin() for rank in self.ranks]
            moves = self._meet() or any(begun)

    def _meet(self) -> bool:
        """Let those operations end for which all have come; return whether there were any."""
        present: dict[tuple[object, ...], list[Operation]] = defaultdict(list)
        for number, rank in enumerate(self.ranks):
            sent: set[int | None] = set()
            for operation in rank.present():
                if operation.name == "broadcast" and number == operation.ranks[0]:
                    self._broadcasts.add(_meeting(number, operation))  # the root waits for nobody
                if operation.name != "send" or operation.peer not in sent:
                    present[_meeting(number, operation)].append(operation)
                    sent.add(operation.peer)
        complete = [
            each
            for place, each in present.items()
            if place in self._broadcasts or len(each) == (len(each[0].ranks), 2)[each[0].peer is not None]
        ]
        for operation in chain(*complete):
            operation.is_over = True
        return bool(complete)

    def seen(self, silent: Collection[int]) -> list[SeenWorker]:
        """Return what a look shows, in which some ranks do not answer."""
        return [
            SeenWorker("node", number, None if number in silent else _look(number, rank))
            for number, rank in enumerate(self.ranks)
        ]


def _meeting(rank: int, operation: Operation) -> tuple[object, ...]:
    """Return what the operations of those have in common that meet."""
    if operation.peer is None:
        return operation.group, operation.number
    ends = rank, operation.ranks[operation.peer]
    return operation.group, *(ends if operation.name == "send" else ends[::-1])


def _look(number: int, rank: Rank) -> WorkerStacks:
    entries = [
        _entry(at, operation, is_over=operation.is_over and at < rank.stop.recorded)
        for at, operation in enumerate(rank.program[: rank.begun])
    ]
    ranks = {operation.group: operation.ranks for operation in rank.program}
    groups = ((group, _description(group), ranks[group]) for group in ranks)
    place = locate(in_order(by_group(entries, ranks.__getitem__, now_ns=0), groups, entries))
    return WorkerStacks(
        *(number, StackOrigin.WORKER, b"", "sleeping", "", 0.0, place.collective, ""),
        members=place.members,
        places=place.places,
    )


def _entry(at: int, operation: Operation, *, is_over: bool) -> dict[str, Any]:
    """Return the entry that torch's recorder has of an operation."""
    arrow = "" if operation.peer is None else f" 0{'->' if operation.name == 'send' else '<-'}{operation.peer}"
    return {
        "process_group": (operation.group, _description(operation.group)),
        "is_p2p": operation.peer is not None,
        "retired": is_over,
        "collective_seq_id": operation.number,
        "p2p_seq_id": operation.number,
        "profiling_name": f"nccl:{operation.name}{arrow}",
        "time_created_ns": at * 10**6,
        "input_sizes": [[8]],
        "input_dtypes": ["Float"],
    }


def _description(group: str) -> str:
    return "default_pg" if group == "all" else "group"


LAYOUTS = st.builds(Layout, st.integers(1, 4), st.integers(1, 4), st.integers(1, 4)).filter(
    lambda layout: 1 < len(layout.ranks) <= 16
)

OPERATIONS = 60
"""A rank of most layouts has about so many."""


def leads_of(data: st.DataObject, layout: Layout) -> list[int]:
    """Choose how far each host is ahead; with 1 it waits for each operation, as with gloo."""
    every = st.sampled_from((1, 2, 5, NEVER))
    return data.draw(st.lists(every, min_size=len(layout.ranks), max_size=len(layout.ranks)))


@settings(max_examples=20)
@given(LAYOUTS, st.data(), st.integers(0, OPERATIONS), st.booleans())
def test_a_host_that_stops_is_named_whatever_the_others_have_begun(
    layout: Layout, data: st.DataObject, begun: int, is_silent: bool
) -> None:
    guilty = data.draw(st.sampled_from(layout.ranks))
    training = Training(layout, leads_of(data, layout), {guilty: Stop(begun=begun)})
    found = find_hang(training.seen({guilty} if is_silent else ()))
    assume(found is not None)
    assert found is not None
    assert found.ranks == (guilty,)


@settings(max_examples=20)
@given(LAYOUTS, st.data(), st.integers(0, OPERATIONS), st.integers(0, OPERATIONS))
def test_a_gpu_that_fails_is_named_if_a_collective_is_over_for_others_alone(
    layout: Layout, data: st.DataObject, recorded: int, more: int
) -> None:
    guilty = data.draw(st.sampled_from(layout.ranks))
    training = Training(layout, leads_of(data, layout), {guilty: Stop(done=recorded + more, recorded=recorded)})
    missed = [each for each in training.ranks[guilty].program[recorded:] if each.is_over and each.peer is None]
    assume(any("all_to_all" != each.name != "broadcast" for each in missed))
    found = find_hang(training.seen(()))
    assume(found is not None)
    assert found is not None
    assert found.ranks == (guilty,)
