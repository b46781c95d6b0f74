"""Plays healthy trainings whose second round takes long to its first step: the alarm knows how long the first one took.

Before that step, workers do all that they may do later: they load, evaluate, write to slow disks, and wait for each
other.
"""

from __future__ import annotations

from msgspec.structs import replace

from coordinatord.core.rounds.events import AdminRequested, Reported
from coordinatord.core.rounds.values.admin_requests import RestartJob
from coordinatord.core.rounds.values.records import Record
from coordinatord.protocol.messages import Observed, Phase
from tests.sim.calm_runs import FORMED_WITHIN_S, Node
from tests.sim.calm_runs_without_steps import UnnamedRun, UnnamedTraining
from tests.sim.calm_training import Doing


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


class ResumedRun(UnnamedRun):
    """One training, in the second round of its run. The first round came to a step sooner, and was restarted."""

    drawn = SlowStart
    lasts_s = 120.0, 360.0

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._is_resumed = False

    def play(self) -> None:
        """Play both rounds. Raises `FalseAlarmError`."""
        for node in self._nodes.values():
            self._connect(node)
        assert self._queue.run(FORMED_WITHIN_S, self._is_running), "no round is formed"
        self._queue.run(self._queue.now + self._chance.choice([0.5, 5.0, 30.0, 60.0]))
        self._report_all(steps=(1,), step_age_s=0.0)
        self._handle(AdminRequested(-1, RestartJob("default", "alice", "")))
        self._report_all(phase=Phase.STOPPED, steps=(), step_age_s=None)
        self._is_resumed = True
        super().play()

    def _report_all(self, **changes: object) -> None:
        for node in self._nodes.values():
            node.observed = replace(node.observed, **changes)
            assert node.session is not None
            self._handle(Reported(node.session, node.observed))

    def _report(self, node: Node, *, beat: bool = False) -> Observed:
        observed = super()._report(node, beat=beat)
        if not self._is_begun:
            return observed
        now = self._queue.now - self._begun_at
        step, at = self._training.stretch_at(now).stepped(now)
        if not step:
            return replace(observed, steps=(None,) * node.workers)
        return replace(observed, steps=(step,) * node.workers, step_age_s=now - at)

    def _judge(self, record: Record) -> None:
        if self._is_resumed:
            super()._judge(record)
