"""Plays healthy trainings that take long to the first step of a later round, after a hang or another end of a round.

Before that step, workers do all that they may do later: they load, evaluate, write to slow disks, and wait for each
other.
"""

from __future__ import annotations

from msgspec.structs import replace

from coordinatord.core.rounds.effects import Look
from coordinatord.core.rounds.events import AdminRequested, Looked, Reported
from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.values.admin_requests import RestartJob
from coordinatord.core.rounds.values.records import Record
from coordinatord.protocol.messages import Observed, Phase
from tests.sim.calm_runs import FORMED_WITHIN_S, Node
from tests.sim.calm_runs_without_steps import UnnamedRun, UnnamedTraining
from tests.sim.calm_training import Doing
from tests.support.builders import a_failure
from tests.support.looks import seen

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
