"""Judges which worker all others wait for, by where each of them stands.

A worker that waits in a collective waits for others, so the worker to name waits in no collective, or in another one of
the sequence. There is no verdict while a worker gets on, or while none is seen to wait.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from coordinatord.protocol.fields import MESSAGE_MAX
from coordinatord.protocol.frozen_class import frozen
from coordinatord.protocol.hang_kind import HangKind
from coordinatord.protocol.stack_messages import ELLIPSIS, Collective, CollectiveState, WorkerStacks, unpack_stacks
from coordinatord.protocol.text import clip

BUSY_CPUS = 0.1
"""The CPUs that a busy worker uses at least, over a fifth of a second: threads that only poll use less."""

BUSY_BYTES = 64 * 1024
"""The fewest bytes that a busy worker reads and writes between two looks, as one that saves to a slow disk does. One
that waits in a collective whose data still comes and goes does as well, since gloo writes to its sockets so."""

NAMED_MAX = 4
"""The most ranks that a sentence names; the rest is counted."""

_HALTED = frozenset({"stopped", "traced"})

_UNEVEN = ("gather", "scatter", "all_to_all")
_EVEN = ("all_gather", "allgather", "reduce_scatter")
"""Ranks may put tensors of different sizes into the former collectives, and not into the latter."""

_RUNNERS = ("<frozen", "runpy.py", "nodeclient/")
"""How the names of files begin that run a script, and are no part of it."""


@frozen
class SeenWorker:
    """Where one worker of a round stands."""

    node: str
    rank: int
    now: WorkerStacks | None
    """None if it could not be asked."""
    before: WorkerStacks | None = None
    """What an earlier look has shown, if there was one."""


@frozen
class HangVerdict:
    """Who holds up all others."""

    kind: HangKind
    ranks: tuple[int, ...]
    """The workers that are to blame; with `network` those that wait, which is all of them."""
    sentence: str
    waiting: int
    """How many workers wait."""

    @property
    def is_hang(self) -> bool:
        """Whether it will not pass by itself, as far as can be seen."""
        return self.kind is not HangKind.BUSY


def find_hang(seen_workers: Sequence[SeenWorker]) -> HangVerdict | None:
    """Return who holds up the workers of a round; None if one of them gets on, or none is seen to wait.

    A collective that is slow gets on as well: one of many bytes may take longer on a slow network than two looks do.
    """
    waiting = [worker for worker in seen_workers if _state(worker) is CollectiveState.WAITS]
    if not waiting or any(_state(worker) is CollectiveState.MOVES for worker in seen_workers):
        return None
    rest = [worker for worker in seen_workers if _state(worker) is not CollectiveState.WAITS]
    if rest:
        kind, blamed = _culprits(rest)
        who, does, wait = _name_workers(blamed), _describe_blamed(kind, blamed), _longest_wait(waiting)
        if kind is HangKind.ABSENT and all(worker.now is not None for worker in blamed):
            has = "has" if len(blamed) == 1 else "have"
            sentence = f"{who} {has} ended; {_describe_waiting(waiting)} for {wait}"
        else:
            sentence = f"{who} {does} for {wait}; {_describe_waiting(waiting)}"
        return _verdict(kind, blamed, waiting, sentence)
    by_collective = _by_collective(waiting)
    if len(by_collective) == 1:
        if any(_moves_bytes(worker) for worker in waiting):
            return None
        [(collective, everybody)] = by_collective.items()
        sentence = (
            f"all {len(waiting)} workers wait in {collective} for {_longest_wait(waiting)}, and it completes for none: "
            f"look at the network between {_name_nodes(everybody)}"
        )
        return _verdict(HangKind.NETWORK, everybody, waiting, sentence)
    (usual, most), *others = sorted(by_collective.items(), key=lambda group: (-len(group[1]), group[1][0].rank))
    collective, blamed = others[-1]
    who, wait = _name_workers(blamed), "waits" if len(blamed) == 1 else "wait"
    sentence = f"{who} {wait} in {collective}, where {_count_waiting(most)} in {usual}, for {_longest_wait(waiting)}"
    return _verdict(HangKind.MISMATCHED, blamed, waiting, sentence)


def notice_of(verdict: HangVerdict, seen_workers: Sequence[SeenWorker]) -> str:
    """Say whom the others wait for, and what that one does: `waiting for rank 0 on node a, which computes in ...`."""
    ranks = set(verdict.ranks)
    named = [worker for worker in seen_workers if worker.rank in ranks]
    return f"waiting for {_name_workers(named)}, which {_describe_blamed(verdict.kind, named)}"


def find_longest(seen_workers: Iterable[SeenWorker]) -> float:
    """Return how long the longest wait of a worker has lasted, in seconds; 0 if none waits."""
    return max(
        (_collective(worker).age_s for worker in seen_workers if _state(worker) is CollectiveState.WAITS), default=0.0
    )


def _verdict(
    kind: HangKind, blamed: Sequence[SeenWorker], waiting: Collection[SeenWorker], sentence: str
) -> HangVerdict:
    ranks = tuple(sorted(worker.rank for worker in blamed))
    return HangVerdict(kind, ranks, clip(sentence, MESSAGE_MAX), len(waiting))


def _state(worker: SeenWorker) -> CollectiveState | None:
    return None if worker.now is None or worker.now.collective is None else worker.now.collective.state


def _collective(worker: SeenWorker) -> Collective:
    assert worker.now is not None  # noqa: S101 - only of those that wait
    assert worker.now.collective is not None  # noqa: S101 - as above
    return worker.now.collective


def _culprits(rest: Sequence[SeenWorker]) -> tuple[HangKind, list[SeenWorker]]:
    """Return which of the workers that wait in no collective are to blame.

    The busy ones are, if there are any: the others may wait for these by other means.
    """
    busy = [worker for worker in rest if _is_busy(worker)]
    if busy:
        return HangKind.BUSY, busy
    known = [worker for worker in rest if worker.now is not None and worker.now.state not in {"", "ended"}]
    return (HangKind.STUCK, known) if known else (HangKind.ABSENT, list(rest))


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
    """Whether a worker has read or written since the look before."""
    now, before = worker.now, worker.before
    if now is None or before is None or before.pid != now.pid:
        return False
    return now.io_bytes - before.io_bytes >= BUSY_BYTES


def _main(worker: WorkerStacks) -> bytes:
    """Return the stack of the main thread."""
    return worker.stacks.partition(b"\n\n")[0]


# Sentences


def _describe_blamed(kind: HangKind, blamed: Sequence[SeenWorker]) -> str:
    """Describe what the workers do that are to blame, and where the first of them does it."""
    alone, first = len(blamed) == 1, blamed[0].now
    if first is None or kind is HangKind.ABSENT:
        return f"{'does' if alone else 'do'} not answer"
    place = _place(first)
    if first.state in _HALTED:
        return f"{'is' if alone else 'are'} {first.state}{f' in {place}' if place else ''}"
    where = place or (f"the kernel's {first.waits_in}" if first.waits_in else "")
    verb = "compute" if kind is HangKind.BUSY else "stand"
    suffix = ", waiting for IO," if first.state == "waiting for IO" else ""
    return f"{verb}{'s' if alone else ''}{f' in {where}' if where else ' still'}{suffix}"


def _place(worker: WorkerStacks) -> str:
    """Return where the script is: the function that it has called, and its own line."""
    threads = unpack_stacks(worker.stacks)
    frames = [_split(frame) for frame in threads[0][1]] if threads else []
    own = next((file for name, file, _ in reversed(frames) if name == "<module>" and not file.startswith(_RUNNERS)), "")
    folder = own.rpartition("/")[0]
    for at, (name, file, line) in enumerate(frames):
        if own and (file == own or (folder and file.startswith(f"{folder}/"))):
            known = (called for called, _, _ in reversed(frames[:at]) if called != ELLIPSIS)
            return f"{next(known, name)} ({file}:{line})"
    name, file, line = frames[0] if frames else ("", "", "")
    return f"{name} ({file}:{line})" if name else ""


def _split(frame: str) -> tuple[str, str, str]:
    """Split `function (file:line)`."""
    name, _, place = frame.partition(" (")
    file, _, line = place.removesuffix(")").rpartition(":")
    return name, file, line


def _by_collective(waiting: Sequence[SeenWorker]) -> dict[str, list[SeenWorker]]:
    """Group the waiting workers by collective. Its name has the group and the size only where these differ."""
    collectives = [_collective(worker) for worker in waiting]
    groups = len({collective.group for collective in collectives}) > 1
    names = [
        f"{_name(collective)} of {collective.group}" if groups else _name(collective) for collective in collectives
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


def _longest_wait(waiting: Sequence[SeenWorker]) -> str:
    return f"{find_longest(waiting):.0f} s"


def _describe_waiting(waiting: Sequence[SeenWorker]) -> str:
    """Describe where the other workers wait; where most of them do, if they wait at several places."""
    [(place, number)] = Counter(_name(_collective(worker)) for worker in waiting).most_common(1)
    if len(waiting) == 1:
        return f"rank {waiting[0].rank} waits in {place}"
    return f"{'the' if number == len(waiting) else f'{number} of the'} {len(waiting)} others wait in {place}"


def _count_waiting(seen_workers: Sequence[SeenWorker]) -> str:
    return f"rank {seen_workers[0].rank} waits" if len(seen_workers) == 1 else f"{len(seen_workers)} others wait"


def _name_workers(blamed: Sequence[SeenWorker]) -> str:
    """Name those who are to blame, and their nodes."""
    named = ", ".join(str(worker.rank) for worker in blamed[:NAMED_MAX])
    more = f" and {len(blamed) - NAMED_MAX} more" if len(blamed) > NAMED_MAX else ""
    return f"rank{'' if len(blamed) == 1 else 's'} {named}{more} on {_name_nodes(blamed)}"


def _name_nodes(seen_workers: Sequence[SeenWorker]) -> str:
    nodes = list(dict.fromkeys(worker.node for worker in seen_workers))
    more = f" and {len(nodes) - NAMED_MAX} more" if len(nodes) > NAMED_MAX else ""
    return f"node{'' if len(nodes) == 1 else 's'} {', '.join(nodes[:NAMED_MAX])}{more}"
