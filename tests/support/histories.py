"""Histories of runs: any legal record for hypothesis, and long random histories that could have happened."""

import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from msgspec import structs

from coordinatord.core.rounds.state.durable import DurableCluster, DurableRun
from coordinatord.core.rounds.transitions.apply import apply
from coordinatord.core.rounds.values.ranks import Seat, assign
from coordinatord.core.rounds.values.records import (
    KINDS,
    JobForgotten,
    NodeJoined,
    NodeLeftBehind,
    NodeLost,
    NodeReleased,
    NodeSucceeded,
    Record,
    RoundEnded,
    RoundFormed,
    RoundStarted,
    RoundStopped,
    RunEnded,
    RunOpened,
    TrainingBegan,
)
from coordinatord.core.rounds.values.time_ledger import Spent
from coordinatord.protocol.messages import Outcome, Result
from coordinatord.store.database_store import Store
from coordinatord.store.interface import Entry
from coordinatord.store.row_codec import decode
from tests.support.builders import a_spec, an_offer
from tests.support.field_hints import field_hints
from tests.support.messages import values

JOB, RUN = "job", "e-1"

RELEASED = Outcome(Result.LEFT, 143, "left the job, as asked")


def records() -> st.SearchStrategy[Any]:
    """Draw any legal record, of any kind."""
    return st.one_of(*(_record(KINDS[name]) for name in sorted(KINDS)))


def _record(kind: type[Record]) -> st.SearchStrategy[Any]:
    hints = field_hints(kind)
    return st.builds(kind, **{name: values(hints[name]) for name in kind.__struct_fields__})


def an_opening(job: str = JOB, run: str = RUN, **spec: int) -> RunOpened:
    """Build the first record of a run."""
    return RunOpened(job, run, "opened by node n1", "n1", a_spec(**spec))


def a_join_of(node: str, job: str = JOB, run: str = RUN, *, incarnation: int = 1, remembered: int = 0) -> NodeJoined:
    """Build the record of a node that became a member."""
    offer = an_offer(node)
    return NodeJoined(job, run, f"host {offer.host}", node, incarnation, offer, "10.0.0.1", "10.0.0.9", remembered)


def a_loss_of(node: str, job: str = JOB, *, incarnation: int = 1) -> NodeLost:
    """Build the record of a node that was lost."""
    return NodeLost(job, RUN, "silent for its whole lease", node, incarnation, 5.0, leaving=False)


def a_round_of(*nodes: str, number: int = 1, job: str = JOB, run: str = RUN) -> RoundFormed:
    """Build the record of a round that got its nodes."""
    ranks = assign([Seat(node, f"host-{node}", "", 1, "default", None) for node in nodes])
    return RoundFormed(job, run, f"formed of {len(nodes)}", number, tuple(ranks), "10.0.0.1", 40_001, Spent())


def a_start_of(number: int = 1, *, steps_awaited: bool = False) -> RoundStarted:
    """Build the record of a round whose workers are all started."""
    return RoundStarted(JOB, RUN, "all workers are started", number, steps_awaited, Spent())


def a_stop_of(number: int = 1, *, planned: bool = False, reason: str = "something failed") -> RoundStopped:
    """Build the record of a round that is to end."""
    return RoundStopped(JOB, RUN, reason, number, planned, None, Spent(), "worker_failed")


def an_end_of(number: int = 1, *, charged: bool = False, used: int = 0, reason: str = "judged") -> RoundEnded:
    """Build the record of a round that is over."""
    return RoundEnded(JOB, RUN, reason, number, charged, used, None, Spent(), 0)


def a_forgetting(job: str = JOB) -> JobForgotten:
    """Build the record of a job that made room for another."""
    return JobForgotten(job, RUN, "it had ended, and another job needed its place")


def made_at(at: float, *records: Record) -> list[Entry]:
    """Return records that were all made at one time, in seconds since 1970."""
    return [Entry(at, record) for record in records]


async def records_in(store: Store) -> list[Record]:
    """Return all records of a store, oldest first, with those that are being written."""
    return [decode(row).record for row in await store._in_writer_thread(store._database.rows)]


def set_clock_since(state: Path, by_s: float) -> None:
    """Change a state directory as if the host's clock had been set ahead since its last record was made."""
    owner, clock = (state / "lock").read_text().split("\n")
    boot, began_at = clock.split()
    (state / "lock").write_text(f"{owner}\n{boot} {float(began_at) - by_s}")


def replay(entries: Iterable[Entry]) -> dict[str, DurableRun]:
    """Return the jobs that a history leads to."""
    cluster = DurableCluster()
    for entry in entries:
        apply(cluster, entry.record, entry.at)
    return cluster.jobs


class Life:
    """One run that lives through `rounds` rounds of chance, and its records as they come."""

    def __init__(self, seed: int, rounds: int) -> None:
        self._random = random.Random(seed)  # noqa: S311 - the same for the same seed
        self._rounds = rounds
        self._cluster = DurableCluster()
        self._names = 0
        self._at = 0.0

    def __iter__(self) -> Iterator[Entry]:
        yield self._made(an_opening(max_restarts=self._rounds))
        for _ in range(3):
            yield from self._arrival()
        for number in range(1, self._rounds + 1):
            yield from self._wait()
            yield from self._round(number)

    @property
    def _run(self) -> DurableRun:
        return self._cluster.jobs[JOB]

    def _made(self, record: Record) -> Entry:
        self._at += self._random.random()
        activity = self._run.ledger.activity if JOB in self._cluster.jobs else None
        if isinstance(record, RoundFormed | RoundStarted | TrainingBegan | RoundStopped | RoundEnded):
            record = structs.replace(record, spent=self._run.ledger.divide(self._at, (activity, self._at)))
        apply(self._cluster, record, self._at)
        return Entry(self._at, record)

    def _arrival(self, remembered: int = 0) -> Iterator[Entry]:
        self._names += 1
        yield self._made(a_join_of(f"n{self._names}", incarnation=self._names, remembered=remembered))

    def _departure(self) -> Iterator[Entry]:
        staying = [member for member in self._run.members.values() if member.outcome is None]
        if len(staying) < 3:
            return
        member = self._random.choice(staying)
        if member.in_round or self._random.random() < 0.7:
            yield self._made(a_loss_of(member.node, incarnation=member.incarnation))
        else:
            yield self._made(NodeReleased(JOB, RUN, "left", member.node, member.incarnation, RELEASED))

    def _wait(self) -> Iterator[Entry]:
        for _ in range(self._random.choice((0, 0, 1, 2, 5))):
            yield from self._arrival(remembered=self._random.choice((0, 0, 3)))
            yield from self._departure()

    def _round(self, number: int) -> Iterator[Entry]:
        able = [member.node for member in self._run.members.values() if member.outcome is None]
        formed = max(number, self._run.round + 1)
        yield self._made(a_round_of(*able[:8], number=formed))
        if self._random.random() < 0.8:
            yield self._made(a_start_of(formed, steps_awaited=self._run.reports_steps))
            if number % 3 == 0:
                yield self._made(TrainingBegan(JOB, RUN, "a worker has reported step 0", formed, Spent()))
        yield from self._wait()
        if self._random.random() < 0.3:
            yield from self._success(formed)
        yield self._made(a_stop_of(formed, planned=self._random.random() < 0.5))
        if self._random.random() < 0.3:
            yield from self._left_behind(formed)
        yield from self._departure()
        charged = self._random.random() < 0.5
        yield self._made(an_end_of(formed, charged=charged, used=self._run.restarts_used + charged))

    def _success(self, number: int) -> Iterator[Entry]:
        for member in list(self._run.inside)[:1]:
            yield self._made(NodeSucceeded(JOB, RUN, "succeeded", member.node, member.incarnation, number))

    def _left_behind(self, number: int) -> Iterator[Entry]:
        for member in list(self._run.inside)[-1:]:
            yield self._made(NodeLeftBehind(JOB, RUN, "too slow", member.node, member.incarnation, number, 1.0))


def an_end() -> RunEnded:
    """Build the record of a run that is over."""
    return RunEnded(
        JOB,
        RUN,
        "all workers succeeded",
        Outcome(Result.SUCCEEDED, 0, "all workers succeeded"),
        None,
        Spent(),
        "all_succeeded",
    )
