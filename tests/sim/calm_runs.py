"""Plays very many healthy trainings under the alarm for hangs: none of their rounds may be ended.

python -m tests.sim.calm_runs --runs 100000

The coordinator's machine is the real one. Of the cluster, only the input of the alarm is simulated: heartbeats with
steps and sections, and the result of looks. So a run takes milliseconds, a hundredth of one in the whole simulation.
Trainings do many things without a step. Besides, nodes reconnect, heartbeats are delayed, looks are late or lost, and
the coordinator is started again. Some scripts report no steps, and some rounds take long to the first one: before it,
workers do all that they may do later.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from coordinatord.core.machine import Coordinator
from coordinatord.core.rounds.effects import Batch, Look, Send
from coordinatord.core.rounds.events import (
    AdminRequested,
    Compared,
    Connected,
    Disconnected,
    Event,
    Looked,
    NodeArrivals,
    Reported,
    Tick,
)
from coordinatord.core.rounds.policy import Policy
from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.values.admin_requests import RestartJob
from coordinatord.core.rounds.values.records import BusyWorkerAwaited, Record, RoundEnded, RoundStopped, RunEnded
from coordinatord.core.watching.arrivals import ARRIVALS_MIN, EVERY_S, ask_at, can_be_compared
from coordinatord.core.watching.worker_sources import SourceStacks, seen_workers, worker_sources
from coordinatord.protocol.arrival_messages import GroupArrivals, WorkerArrivals, pack_ages
from coordinatord.protocol.messages import JobSpec, Observed, Phase, Section
from coordinatord.protocol.stack_messages import WorkerStacks
from tests.sim.calm_training import CalmTraining, Doing, Stretch, UnrecordedTraining
from tests.sim.event_queue import EventQueue
from tests.support.builders import EPOCH, a_failure, a_join, an_observed, an_offer
from tests.support.looks import seen

LOOK_WITHIN_S = 1.2
"""A node answers a look within this time."""

TRANSFER_S = 0.01
"""How long an answer is on its way, unless a message before it takes longer."""

FORMED_WITHIN_S = 30.0

LOST = 0.05
"""The share of looks that never come back."""

HEARTBEATS_S = (1.0, 2.0, 4.0)
"""The heartbeats of runs: that of most jobs, and longer ones, as with `--heartbeat` and in large clusters."""

DELAYED = (0.0, 0.0, 0.06)
"""The shares of late heartbeats, one of which a run has."""

NOTICED_WITHIN_S = 10.0
"""The greatest age of what a notice is about: two looks, and the pause between them."""

GARBAGE = 200_000
"""Objects between two collections: a run makes many that live for a moment."""

PRINTED_EVERY = 10_000
"""The runs between two lines of progress: a million runs take an hour, and may be interrupted."""

RUNS_AT_ONCE = 200
"""The runs that a process plays before it returns their findings."""


class FalseAlarmError(AssertionError):
    """A healthy training was ended, or a worker in a section was noticed."""


class Node:
    """A node whose workers train."""

    def __init__(self, name: str, workers: int, spec: JobSpec) -> None:
        self.name, self.workers = name, workers
        self.join = a_join(name, spec=spec, offer=an_offer(name, workers=workers))
        self.observed: Observed = an_observed(port=40_000)
        self.first_rank = 0
        self.session: int | None = None
        self.arrives_at = 0.0
        """When its last message arrives: messages do not overtake each other."""


class CalmRun:
    """One training, from its first node to some minutes later."""

    drawn = CalmTraining
    """How the training is drawn."""
    restarts = 3
    lasts_s = 30.0, 120.0
    """The least and the greatest length."""

    def __init__(self, seed: int) -> None:
        self._chance = chance = random.Random(seed)  # noqa: S311 - repeatable on purpose
        self._seed = seed
        nodes, workers = chance.choice([2, 2, 3]), chance.choice([1, 1, 2])
        spec = JobSpec(nodes, nodes, self.restarts)
        self._nodes = {name: Node(name, workers, spec) for name in (f"n{number + 1}" for number in range(nodes))}
        self._seconds = chance.uniform(*self.lasts_s)
        self._delayed = chance.choice(DELAYED)
        self._training = self.drawn(chance, nodes * workers, self._seconds + 60.0)
        self._queue = EventQueue()
        self._policy = Policy(heartbeat_s=chance.choice(HEARTBEATS_S))
        self._coordinator: Coordinator | None = Coordinator(self._policy, EPOCH)
        self._past: list[tuple[float, Record]] = []
        self._sessions = 0
        self._tick_at: float | None = None
        """When the coordinator wants its next tick."""
        self._begun_at, self._is_begun = 0.0, False
        """When all workers were started, and whether they are."""
        self.counts = Counter[str]()
        """Counts of events that must do no harm."""

    def play(self) -> None:
        """Play the run. Raises `FalseAlarmError`."""
        for node in self._nodes.values():
            self._connect(node)
        self._is_begun = self._queue.run(FORMED_WITHIN_S, self._is_running)
        assert self._is_begun, "no round is formed"
        self._begun_at = self._queue.now
        for node in self._nodes.values():
            self._queue.after(self._chance.random() * self._policy.heartbeat_s, self._beat, node)
        for _ in range(self._chance.choice([0, 0, 1, 2])):
            disturb = self._chance.choice([self._restart, self._reconnect, self._reconnect])
            self._queue.after(self._chance.uniform(5.0, self._seconds), disturb)
        self._queue.run(self._begun_at + self._seconds)

    def _is_running(self) -> bool:
        return all(node.observed.phase is Phase.RUNNING for node in self._nodes.values())

    def _tick(self, due: float) -> None:
        if self._tick_at == due and self._coordinator is not None:
            self._handle(Tick())

    # Messages of nodes

    def _connect(self, node: Node) -> None:
        if self._coordinator is None:
            self._queue.after(0.5, self._connect, node)
            return
        self._sessions += 1
        node.session = self._sessions
        join = replace(node.join, observed=self._report(node))
        self._handle(Connected(node.session, join, f"10.0.0.{node.name[1:]}", "10.0.0.254"))

    def _beat(self, node: Node) -> None:
        """Send a heartbeat, which is late now and then."""
        now = self._queue.now
        self._queue.after(self._policy.heartbeat_s, self._beat, node)
        if node.session is None:
            return
        if self._delayed and self._chance.random() < self._delayed:
            node.arrives_at = max(node.arrives_at, now + self._chance.uniform(0.0, 2.5))
        arrival = Reported(node.session, self._report(node, beat=True))
        if node.arrives_at > now:
            self._queue.after(node.arrives_at - now, self._arrive, node, arrival)
        else:
            self._arrive(node, arrival)

    def _arrive(self, node: Node, reported: Reported) -> None:
        if node.session == reported.session and self._coordinator is not None:
            self._handle(reported)

    def _report(self, node: Node, *, beat: bool = False) -> Observed:
        """Return the present report of a node."""
        known = node.observed
        if known.phase is not Phase.RUNNING:
            return replace(known, beat=beat)
        now = self._queue.now - self._begun_at
        step, at = self._training.stretch_at(now).stepped(now)
        if not step:
            return replace(known, beat=beat, steps=(None,) * node.workers)
        return Observed(  # it takes a tenth of the time of `replace`, and a run does this most of the time
            known.run,
            known.round,
            known.phase,
            known.port,
            leaving=False,
            failure=None,
            heard_s=0.0,
            beat=beat,
            steps=(step,) * node.workers,
            step_age_s=now - at,
            stepped_twice=step > 1,
            section=self._section(node),
        )

    def _section(self, node: Node) -> Section | None:
        """Return the section that a worker of a node is in now."""
        now = self._queue.now - self._begun_at
        stretch = self._training.stretch_at(now)
        if stretch.limit_s is None or not node.first_rank <= stretch.last < node.first_rank + node.workers:
            return None
        return Section("upload", stretch.limit_s, now - stretch.begin, stretch.last - node.first_rank)

    # Faults beside the training

    def _restart(self) -> None:
        """Kill the coordinator, and start it again."""
        self.counts["restarts"] += 1
        self._coordinator = None
        for node in self._nodes.values():
            node.session = None
        self._queue.after(self._chance.uniform(0.1, 3.0), self._start_again)

    def _start_again(self) -> None:
        if self._coordinator is None:
            self._coordinator = Coordinator(self._policy, EPOCH)
            self._coordinator.restore(self._past, self._queue.now)
            for node in self._nodes.values():
                self._queue.after(self._chance.uniform(0.0, 2.0), self._come_back, node)

    def _come_back(self, node: Node) -> None:
        if node.session is None:
            self._connect(node)

    def _reconnect(self) -> None:
        """Reset the connection of a node, which comes back at once."""
        node = self._chance.choice(list(self._nodes.values()))
        if node.session is None or self._coordinator is None:
            return
        session, node.session = node.session, None
        self._handle(Disconnected(session))
        self._queue.after(self._chance.uniform(0.0, 0.8), self._come_back, node)

    # The coordinator

    def _handle(self, event: Event) -> None:
        assert self._coordinator is not None
        batch = self._coordinator.handle(event, self._queue.now)
        for record in batch.records:
            self._past.append((self._queue.now, record))
            self._judge(record)
        for look in batch.looks:
            self._look(look)
        if not self._is_begun:
            self._obey(batch)
        due = self._coordinator.next_deadline()
        if due is not None and due != self._tick_at:
            self._queue.after(max(0.0, due - self._queue.now), self._tick, due)
        self._tick_at = due

    def _obey(self, batch: Batch) -> None:
        """Let nodes start the workers of the round, once it is formed."""
        for effect in batch.effects:
            part = effect.message.assignment if isinstance(effect, Send) else None
            node = next((node for node in self._nodes.values() if node.session == effect.session), None)
            if isinstance(effect, Send) and part and node is not None and node.observed.phase is not Phase.RUNNING:
                run, number, node.first_rank = effect.message.run, effect.message.round, part.first_rank
                node.observed = replace(node.observed, run=run, round=number, phase=Phase.RUNNING)
                self._queue.after(0.0, self._arrive, node, Reported(effect.session, node.observed))

    def _look(self, look: Look) -> None:
        """Ask all nodes, each of which answers at a time of its own."""
        self.counts["looks"] += 1
        if self._chance.random() < LOST:
            return
        answers: dict[str, list[WorkerStacks]] = {}
        most_s = self._chance.choice([0.02, LOOK_WITHIN_S])
        for source in look.sources:
            act = (look, answers, self._nodes[source.node], source.ranks, self._coordinator)
            self._queue.after(self._chance.uniform(0.0, most_s), self._sample, *act)

    def _sample(
        self,
        look: Look,
        answers: dict[str, list[WorkerStacks]],
        node: Node,
        ranks: Sequence[int],
        asked_by: Coordinator,
    ) -> None:
        """Look at the workers of a node. Its earlier messages arrive before its answer."""
        now = self._queue.now - self._begun_at
        answers[node.name] = [self._training.seen(rank, now) for rank in ranks]
        node.arrives_at = max(node.arrives_at, self._queue.now + TRANSFER_S)
        if len(answers) == len(look.sources):
            all_at = max(each.arrives_at for each in self._nodes.values())
            self._queue.after(all_at - self._queue.now, self._collect, look, answers, asked_by)

    def _collect(self, look: Look, answers: dict[str, list[WorkerStacks]], asked_by: Coordinator) -> None:
        if self._coordinator is asked_by:
            sampled = [SourceStacks(source, tuple(answers[source.node])) for source in look.sources]
            self._handle(Looked(look.run, look.round, look.number, seen_workers(sampled)))

    # Judgement

    def _judge(self, record: Record) -> None:
        self.counts[record.KIND] += 1
        if isinstance(record, RoundStopped | RoundEnded | RunEnded):
            raise FalseAlarmError(f"seed {self._seed}: a healthy round is ended: {record.reason}")
        if isinstance(record, BusyWorkerAwaited):
            now = self._queue.now - self._begun_at
            lately = {self._training.stretch_at(max(0.0, now - before_s)).doing for before_s in (0.0, NOTICED_WITHIN_S)}
            if lately == {Doing.RESTS} and self.drawn.names_rests:
                raise FalseAlarmError(f"seed {self._seed}: a worker in a section is noticed: {record.reason}")


class SilentTraining(CalmTraining):
    """A training that names no phase in which a worker waits for something else: it looks like a hang."""

    names_rests = False


class UnrecordedRun(CalmRun):
    """One training, of which only stacks show that workers wait."""

    drawn = UnrecordedTraining


class LastRun(CalmRun):
    """One training, of which no restart is left."""

    drawn, restarts = SilentTraining, 0


AT_ONCE_S = 1e-6


class UnnamedTraining(CalmTraining):
    """A training that reports no steps: its progress shows in the times at which workers came to collectives."""

    def arrivals(self, rank: int, now: float, most: int) -> GroupArrivals:
        """Return when a worker came to the last collectives."""
        stretch = self.stretch_at(now)
        ages_s = _ages_in(stretch, rank, now)
        begun = stretch.first + len(ages_s)
        while len(ages_s) < most and stretch.first > 1:
            stretch = self.stretch_at(stretch.begin - AT_ONCE_S)
            ages_s = _ages_in(stretch, rank, now) + ages_s
        return GroupArrivals("gloo default_pg", begun - len(ages_s[-most:]), pack_ages(ages_s[-most:]))


def _ages_in(stretch: Stretch, rank: int, now: float) -> list[float]:
    """Return how long ago a worker came to the collectives of a stretch."""
    came = (stretch.begin + done * stretch.each_s + stretch.arrive_s[rank] for done in range(stretch.times))
    return [now - at for at in came if at <= now]


class UnnamedRun(CalmRun):
    """One training, whose nodes report no steps."""

    drawn = UnnamedTraining

    def play(self) -> None:
        """Play the run. Raises `FalseAlarmError`."""
        self._queue.after(EVERY_S, self._compare)
        super().play()

    def _report(self, node: Node, *, beat: bool = False) -> Observed:
        return replace(node.observed, beat=beat, section=self._section(node) if self._is_begun else None)

    def _compare(self) -> None:
        """Read when the workers came to collectives, as `server/reads/arrival_reads.py` does."""
        run = None if self._coordinator is None else self._coordinator.jobs.get("default")
        if run is None or not can_be_compared(run):
            self._queue.after(EVERY_S, self._compare)
            return
        now, training = self._queue.now - self._begun_at, self._training
        assert isinstance(training, UnnamedTraining)
        self.counts["questions"] += 1
        arrivals = []
        for source in worker_sources(run):
            if source.session is None:
                continue
            workers = tuple(
                WorkerArrivals(rank, (training.arrivals(rank, now, ARRIVALS_MIN),)) for rank in source.ranks
            )
            arrivals.append(NodeArrivals(source.node, self._queue.now, 0.0, self._queue.now, workers))
        self._handle(Compared(run.id, run.durable.round, tuple(arrivals)))
        self._queue.after(ask_at(run, self._begun_at, self._queue.now) - self._queue.now, self._compare)


HUNG_WITHIN_S = 700.0
"""A hang is found after ten times the first step, which takes a minute at most."""


class SlowStart(UnnamedTraining):
    """A training that comes to its first step late."""

    def _start(self) -> None:
        start_s = self._chance.uniform(20.0, 300.0)
        draws = (
            *(self._loads, self._evaluates, self._counts, self._saves, self._flushes, self._rests),
            *(self._gathers, self._broadcasts, self._reduces_in_groups),
        )
        while not self._stretches or self._stretches[-1].end < start_s:
            self._chance.choice(draws)()
        self._trains()

    def _loads(self) -> None:
        doing = self._chance.choice([Doing.COMPUTES, Doing.STARVES, Doing.LOADS])
        self._add(self._chance.uniform(2.0, 90.0), 1, doing, sent=0.02)


class LateStart(UnnamedTraining):
    """A training that waits for a disk or a program for 10 to 20 minutes before its first step."""

    def _start(self) -> None:
        self._add(self._chance.uniform(600.0, 1_190.0), 1, self._chance.choice([Doing.FLUSHES, Doing.CALLS]), sent=0.01)
        self._trains()


class ResumedRun(UnnamedRun):
    """One training, in the second round of its run. The first round came to a step sooner, and then hung."""

    drawn: type[UnnamedTraining] = SlowStart
    lasts_s = 120.0, 360.0

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._is_resumed = False

    def play(self) -> None:
        """Play all rounds. Raises `FalseAlarmError`."""
        for node in self._nodes.values():
            self._connect(node)
        self._begin_round()
        self._pass(self._chance.choice([0.5, 5.0, 30.0, 60.0]))
        self._report_all(steps=(1,), step_age_s=0.0)
        self._end_rounds()
        self._begin_round()
        self._is_resumed = True
        super().play()

    def _end_rounds(self) -> None:
        """Let the first round hang, until it is stopped."""
        assert self._coordinator is not None
        begun, run = self._queue.now, self._coordinator.jobs["default"]
        while run.durable.state is not State.STOPPING:
            self._pass(1.0)
            assert self._queue.now < begun + HUNG_WITHIN_S, "the hang is not found"
            self._report_all(step_age_s=self._queue.now - begun)
        self._stop_all()

    def _begin_round(self) -> None:
        assert self._queue.run(self._queue.now + FORMED_WITHIN_S, self._is_running), "no round is formed"

    def _pass(self, seconds: float) -> None:
        self._queue.run(self._queue.now + seconds)

    def _stop_all(self) -> None:
        self._report_all(phase=Phase.STOPPED, steps=(), step_age_s=None, stepped_twice=False, failure=None)

    def _report_all(self, **changes: object) -> None:
        for node in self._nodes.values():
            self._report_of(node, **changes)

    def _report_of(self, node: Node, **changes: object) -> None:
        node.observed = replace(node.observed, **changes)
        assert node.session is not None
        self._handle(Reported(node.session, node.observed))

    def _look(self, look: Look) -> None:
        if self._is_resumed:
            super()._look(look)
            return
        ranks = [(source.node, rank) for source in look.sources for rank in source.ranks]
        workers = tuple(seen(node, rank, "waits" if rank else "stands") for node, rank in ranks)
        self._queue.after(0.1, self._handle, Looked(look.run, look.round, look.number, workers))

    def _report(self, node: Node, *, beat: bool = False) -> Observed:
        observed = super()._report(node, beat=beat)
        if not self._is_begun:
            return observed
        now = self._queue.now - self._begun_at
        step, at = self._training.stretch_at(now).stepped(now)
        if not step:
            return replace(observed, steps=(None,) * node.workers)
        return replace(observed, steps=(step,) * node.workers, step_age_s=now - at, stepped_twice=step > 1)

    def _judge(self, record: Record) -> None:
        if self._is_resumed:
            super()._judge(record)


class LateRun(ResumedRun):
    """One training, in a later round of its run. Rounds before it came to no step, and failed or were restarted."""

    drawn = LateStart
    lasts_s = 1_210.0, 1_260.0

    def _end_rounds(self) -> None:
        self._end_round()
        for _ in range(self._chance.choice([0, 1, 2])):
            self._begin_round()
            self._report_all(steps=(None,))
            self._pass(self._chance.choice([0.5, 5.0, 60.0]))
            self._end_round()

    def _end_round(self) -> None:
        if self._chance.random() < 0.5:
            self._handle(AdminRequested(-1, RestartJob("default", "alice", "")))
        else:
            node = next(iter(self._nodes.values()))
            self._report_of(node, phase=Phase.FAILED, failure=a_failure(message=str(self._queue.now)))
        self._stop_all()


def calm_run(seed: int, kind: type[CalmRun] = CalmRun) -> CalmRun:
    """Play the run of one seed. Raises `FalseAlarmError`."""
    run = kind(seed)
    run.play()
    return run


def last_calm_run(seed: int) -> CalmRun:
    """Play the run of one seed without a restart. Raises `FalseAlarmError`."""
    return calm_run(seed, LastRun)


@dataclass
class Findings:
    """The results of a number of runs."""

    runs: int = 0
    cpu_s: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    false_alarms: list[str] = field(default_factory=list)

    def add(self, other: Findings) -> None:
        """Take in the findings of another process."""
        self.runs += other.runs
        self.cpu_s += other.cpu_s
        self.counts.update(other.counts)
        self.false_alarms += other.false_alarms


def explore(seeds: range, kind: type[CalmRun] = CalmRun) -> Findings:
    """Play the runs of some seeds, of one kind."""
    gc.set_threshold(GARBAGE)
    found, began = Findings(), time.process_time()
    for seed in seeds:
        found.runs += 1
        try:
            found.counts.update(calm_run(seed, kind).counts)
        except FalseAlarmError as error:
            found.false_alarms.append(str(error))
    found.cpu_s = time.process_time() - began
    return found


def main() -> int:
    """Play many runs, and print their results. Return 1 if there was a false alarm."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim.calm_runs", description="Healthy runs under the alarm.")
    parser.add_argument("--runs", type=int, default=10_000, help="how many to play (default: 10000)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="default: one on each CPU")
    options = parser.parse_args()
    end = options.first + options.runs
    parts = [range(first, min(first + RUNS_AT_ONCE, end)) for first in range(options.first, end, RUNS_AT_ONCE)]
    found = Findings()
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        for part in pool.imap_unordered(explore, parts):
            found.add(part)
            if found.runs % PRINTED_EVERY == 0 or part.false_alarms:
                _print_lines(*part.false_alarms, f"{found.runs:,} runs, {len(found.false_alarms):,} false alarms")
    counted = ", ".join(f"{name} {number:,}" for name, number in sorted(found.counts.items()))
    _print_lines(
        f"{found.runs:,} healthy runs, {len(found.false_alarms):,} false alarms; {counted}",
        f"{found.runs / max(found.cpu_s, 1e-9):,.0f} runs in a second of one CPU",
    )
    return 1 if found.false_alarms else 0


def _print_lines(*lines: str) -> None:
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
