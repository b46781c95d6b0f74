"""What the coordinator knows of the steps of a round: where it is, how many steps a second, and what that costs."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinatord.core.machine import Coordinator
from coordinatord.core.rounds.events import Connected, Disconnected, Reported
from coordinatord.core.rounds.state.run import Run
from coordinatord.core.rounds.values.training_progress import SPACING_S, WINDOW_S, TrainingProgress
from coordinatord.core.shown.job_view import job_view
from coordinatord.protocol.http.api import JobStatus
from coordinatord.protocol.messages import Phase
from tests.support.builders import a_coordinator, a_join, a_spec, an_observed, an_offer, let_pass


class Job:
    """Nodes n1, n2 ... of two workers each in one round, and its view of their steps."""

    def __init__(self, nodes: int = 2, nodes_min: int = 1) -> None:
        self.now = 0.0
        self.machine: Coordinator = a_coordinator()
        for number in range(1, nodes + 1):
            join = a_join(f"n{number}", spec=a_spec(nodes_min, nodes), offer=an_offer(f"n{number}", workers=2))
            self.machine.handle(Connected(number, join, f"10.0.0.{number}", "10.0.0.254"), self.now)
        self.nodes = range(1, nodes + 1)
        self.report(Phase.RUNNING)

    @property
    def run(self) -> Run:
        """Return the only run."""
        return self.machine.jobs["default"]

    @property
    def view(self) -> JobStatus:
        """Return the status."""
        return job_view(self.run, self.now, None)

    def progress(self) -> tuple[Any, Any]:
        """Return the step and the pace in the status."""
        shown = self.view.progress
        return shown.step, shown.steps_per_s

    def report(self, phase: Phase) -> None:
        """Have all nodes report this phase of the round."""
        for number in self.nodes:
            self.send(number, phase=phase)

    def send(self, number: int, *steps: int | None, age_s: float | None = 0.0, **values: Any) -> None:
        """Have a node report something, such as the steps of its workers."""
        said = {"run": self.run.id, "round": self.run.durable.round, "phase": Phase.RUNNING, "beat": True} | values
        step_age_s = age_s if steps else None
        observed = an_observed(steps=steps, step_age_s=step_age_s, port=40_000 + number, **said)
        self.machine.handle(Reported(number, observed), self.now)

    def train(self, seconds: int, per_s: float, begin: int = 0) -> int:
        """Let all workers do so many steps a second, which their nodes report each second; return the last."""
        step = begin
        for _ in range(seconds):
            self.now += 1.0
            let_pass(self.machine, self.now)
            step += int(per_s)
            for number in self.nodes:
                self.send(number, step, step)
        return step

    def stall(self, seconds: int, step: int) -> None:
        """Let all workers stay at the same step for so long, which their nodes report each second."""
        for age_s in range(1, seconds + 1):
            self.now += 1.0
            for number in self.nodes:
                self.send(number, step, step, age_s=float(age_s))


def test_a_job_is_where_the_last_of_its_workers_is_and_each_worker_is_shown() -> None:
    job = Job()
    job.now = 5.0
    job.send(1, 12, None, age_s=0.25)
    job.now = 6.0
    job.send(2, 11, 13, age_s=1.0)
    assert job.progress() == (11, None)
    shown = [(node.node, node.steps, node.step_age_s) for node in job.view.nodes]
    assert shown == [("n1", (12, None), 1.25), ("n2", (11, 13), 1.0)], "ages grow while nothing is heard"


def test_the_pace_is_that_of_the_first_node_that_reports() -> None:
    job = Job(3)
    for second in range(1, 6):
        job.now = float(second)
        job.send(3, 7 * second, None)
        job.send(2, 4 * second, 4 * second)
    assert job.progress() == (20, 4.0)
    for second in range(6, 9):
        job.now = float(second)
        job.send(1, None, 5 * second)
        job.send(2, 4 * second, 4 * second)
    assert job.progress() == (32, 5.0), "as soon as there is an earlier one, it goes by that"


def test_the_pace_goes_by_when_steps_were_done_and_not_by_when_they_were_heard_of() -> None:
    job = Job(1)
    for heard_at, age_s, step in ((1.0, 0.0, 1), (3.5, 1.5, 2), (5.5, 0.5, 5)):
        job.now = heard_at
        job.send(1, step, step, age_s=age_s)
    assert job.progress() == (5, 1.0)


def test_the_pace_of_slow_steps_stands_while_the_next_is_not_overdue() -> None:
    job = Job(1)
    for step in range(1, 4):
        job.now += 1.0
        job.send(1, step, step)
        job.stall(59, step)
    assert job.progress() == (3, pytest.approx(1 / 60, rel=1e-3))
    job.stall(60, 3)
    assert job.progress()[1] < 1 / 75


def test_the_pace_falls_while_a_job_is_stalled() -> None:
    job = Job()
    step = job.train(60, per_s=10)
    assert job.progress() == (600, 10.0)
    paces = [10.0]
    for _ in range(6):
        job.stall(5, step)
        pace = job.progress()[1]
        assert pace is not None
        paces.append(pace)
    assert paces == sorted(set(paces), reverse=True), "it falls each time"
    assert paces[3] == pytest.approx(5.0, rel=0.1), "after half of the window, to half"
    assert 0 < paces[-1] < 1


def test_the_pace_is_back_soon_after_a_stall() -> None:
    job = Job()
    step = job.train(60, per_s=10)
    job.stall(45, step)
    job.train(int(WINDOW_S) + 1, per_s=10, begin=step)
    assert job.progress() == (910, pytest.approx(10.0))


def test_two_words_that_come_together_after_a_delay_make_no_pace() -> None:
    job = Job(1)
    job.now = 3.0
    job.send(1, 10, 10, age_s=0.0)
    job.send(1, 20, 20, age_s=0.0)
    assert job.progress() == (20, None)
    job.now = 3.5
    job.send(1, 25, 25, age_s=1.5)
    assert job.progress() == (25, None), "and one that comes on time after one that did not is no step back"
    job.now = 5.0
    job.send(1, 40, 40, age_s=0.0)
    assert job.progress() == (40, 15.0)


def test_a_late_report_of_the_same_step_is_no_step_and_makes_nobody_wait_longer_for_the_next() -> None:
    job = Job()
    step = job.train(10, per_s=10)
    job.stall(8, step)
    job.now += 3.0
    for number in job.nodes:
        job.send(number, step, step, age_s=9.0)  # two seconds late
    progress = job.run.progress
    assert (progress.stepped_at, progress.patience_s) == (10.0, 10.0)


def test_a_step_of_the_same_number_is_a_step() -> None:
    job = Job()
    step = job.train(10, per_s=10)
    job.stall(8, step)
    job.now += 1.0
    job.send(1, step, step, age_s=0.0)
    assert job.run.progress.stepped_at == job.now


def test_a_script_that_counts_anew_begins_a_new_pace() -> None:
    job = Job()
    job.train(10, per_s=10)
    job.now += 1.0
    job.send(1, 1, 1)
    job.send(2, 1, 1)
    assert job.progress() == (1, None)
    job.train(5, per_s=2, begin=1)
    assert job.progress() == (11, 2.0)


def test_a_new_round_begins_without_steps_and_words_of_the_old_one_do_not_count() -> None:
    job = Job(2, nodes_min=1)
    job.train(10, per_s=10)
    job.machine.handle(Disconnected(2), job.now)
    job.nodes = range(1, 2)
    job.now += 2.0  # more than the grace, and less than the lease of the other
    let_pass(job.machine, job.now)
    job.send(1, 104, 103, phase=Phase.STOPPING)
    assert job.view.state == "stopping"
    assert job.progress() == (100, None), "where it stopped stays in sight, also of the node that was lost"
    job.send(1, 104, 104, phase=Phase.STOPPED, round=1)
    assert job.view.round == 2
    assert job.progress() == (None, None)
    job.send(1, 104, 104, phase=Phase.STOPPED, round=1)
    assert job.progress() == (None, None)
    job.send(1, 90, 90)
    assert job.progress() == (90, None)


def test_where_a_run_ended_is_known_after_its_nodes_have_gone() -> None:
    job = Job()
    job.train(3, per_s=10)
    job.send(1, 31, 31, phase=Phase.SUCCEEDED)
    job.send(2, 31, 32, phase=Phase.SUCCEEDED)
    for number in job.nodes:
        job.machine.handle(Disconnected(number), job.now)
    assert (job.view.state, job.view.nodes) == ("succeeded", ())
    assert job.progress() == (31, None)


def test_where_a_round_stopped_stays_known_when_its_last_node_is_lost() -> None:
    job = Job()
    job.train(3, per_s=10)
    job.send(2, 29, 31)
    job.machine.handle(Disconnected(2), job.now)
    job.machine.handle(Disconnected(1), job.now)
    let_pass(job.machine, job.now + 600.0)
    assert job.view.nodes == ()
    assert job.progress() == (29, None)


def test_another_node_that_reports_the_pace_makes_nobody_forget_who_is_gone() -> None:
    job = Job(3)
    job.send(2, 7, 8)
    job.send(3, 9, 9)
    job.machine.handle(Disconnected(2), job.now)
    let_pass(job.machine, 2.0)
    job.now = 2.0
    job.send(1, 9, 9, phase=Phase.STOPPING)
    assert [node.node for node in job.view.nodes] == ["n1", "n3"]
    assert job.progress() == (7, None)


def test_what_is_kept_does_not_grow_with_the_words_of_a_node() -> None:
    job = Job(1)
    for word in range(5_000):
        job.now += 0.01
        job.send(1, word, word)
    assert len(job.run.progress._samples) <= WINDOW_S / SPACING_S + 2
    assert job.progress() == (4_999, pytest.approx(100.0))


SPANS = st.floats(0.0, 86_400.0)


@given(st.lists(st.tuples(SPANS, SPANS, st.lists(st.none() | st.integers(0, 2**53 - 1), min_size=1, max_size=3))))
def test_whatever_a_node_says_the_pace_is_a_number_of_steps_a_second(
    said: list[tuple[float, float, list[int | None]]],
) -> None:
    progress, now, before = TrainingProgress(), 0.0, an_observed()
    for after_s, age_s, steps in said:
        now += after_s
        observed = an_observed(steps=tuple(steps), step_age_s=age_s)
        progress.record(0, observed, before, now)
        before = observed
        pace = progress.steps_per_s
        assert pace is None or 0 < pace <= 2**53 / SPACING_S
        assert pace is None or math.isfinite(pace)
