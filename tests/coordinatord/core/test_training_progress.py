"""What the coordinator knows of the steps of a round: where it is, how many steps a second, and what that costs."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinatord.core.rounds.values.training_progress import SPACING_S, WINDOW_S, TrainingProgress
from tests.support.builders import an_observed
from tests.support.running_job import running_job
from tests.support.script import Stage


class Job(Stage):
    """Nodes n1, n2 ... of two workers each in one round, and its view of their steps."""

    def __init__(self, nodes: int = 2) -> None:
        super().__init__()
        self.nodes = " ".join(f"n{number}" for number in range(1, nodes + 1))
        self.play(f"join {self.nodes} min=1 max={nodes} workers=2", f"running {self.nodes}")

    def progress(self) -> tuple[Any, Any]:
        """Return the step and the pace in the status."""
        progress = self.view().progress
        return progress.step, progress.steps_per_s

    def train(self, seconds: int, per_s: int, begin: int = 0) -> int:
        """Let all workers do so many steps a second, which their nodes report each second; return the last."""
        for second in range(1, seconds + 1):
            step = begin + per_s * second
            self.play("advance 1s", f"step {self.nodes} {step} {step}")
        return begin + per_s * seconds


def test_a_job_is_where_the_last_of_its_workers_is_and_each_worker_is_shown() -> None:
    job = Job()
    job.play("advance 5s", "step n1 12 - age=0.25s", "advance 1s", "step n2 11 13 age=1s")
    assert job.progress() == (11, None)
    steps = [(node.node, node.steps, node.step_age_s) for node in job.view().nodes]
    assert steps == [("n1", (12, None), 1.25), ("n2", (11, 13), 1.0)], "ages grow while nothing is heard"


def test_the_pace_is_that_of_the_first_node_that_reports() -> None:
    job = Job(3)
    for second in range(1, 6):
        job.play("advance 1s", f"step n3 {7 * second} -", f"step n2 {4 * second} {4 * second}")
    assert job.progress() == (20, 4.0)
    for second in range(6, 9):
        job.play("advance 1s", f"step n1 - {5 * second}", f"step n2 {4 * second} {4 * second}")
    assert job.progress() == (32, 5.0), "as soon as there is an earlier one, it goes by that"


def test_the_pace_goes_by_when_steps_were_done_and_not_by_when_they_were_heard_of() -> None:
    job = Job(1)
    for after_s, age_s, step in ((1.0, 0.0, 1), (2.5, 1.5, 2), (2.0, 0.5, 5)):
        job.play(f"advance {after_s}s", f"step n1 {step} {step} age={age_s}s")
    assert job.progress() == (5, 1.0)


def test_the_pace_of_slow_steps_stands_while_the_next_is_not_overdue() -> None:
    job = Job(1)
    for step in range(1, 4):
        job.play("advance 1s", f"step n1 {step} {step}", "advance 59s")
    assert job.progress() == (3, pytest.approx(1 / 60, rel=1e-3))
    job.play("advance 60s")
    assert job.progress()[1] < 1 / 75


def test_the_pace_falls_while_a_job_is_stalled() -> None:
    job = Job()
    job.train(60, per_s=10)
    assert job.progress() == (600, 10.0)
    paces = [10.0]
    for _ in range(6):
        job.play("advance 5s")
        pace = job.run.progress.pace.steps_per_s
        assert pace is not None
        paces.append(pace)
    assert paces == sorted(set(paces), reverse=True), "it falls each time"
    assert paces[3] == pytest.approx(5.0, rel=0.1), "after half of the window, to half"
    assert 0 < paces[-1] < 1


def test_a_worker_that_others_leave_behind_is_named() -> None:
    job = Job()
    job.train(5, 2)
    for step in range(11, 26):
        job.play("advance 1s", f"step n2 {step} {step}")
    says = (
        "; rank 0 on node n1 has done no step for 15 s, and is 15 behind: others may skip collectives that it waits for"
    )
    assert says in job.view().reason
    job.play("section n2 eval limit=60s")
    assert "behind" not in job.view().reason


def test_the_pace_is_back_soon_after_a_stall() -> None:
    job = Job()
    step = job.train(60, per_s=10)
    job.play("advance 45s")
    job.train(int(WINDOW_S) + 1, per_s=10, begin=step)
    assert job.progress() == (910, pytest.approx(10.0))


def test_two_words_that_come_together_after_a_delay_make_no_pace() -> None:
    job = Job(1)
    job.play("advance 3s", "step n1 10 10", "step n1 20 20")
    assert job.progress() == (20, None)
    job.play("advance 0.5s", "step n1 25 25 age=1.5s")
    assert job.progress() == (25, None), "and one that comes on time after one that did not is no step back"
    job.play("advance 1.5s", "step n1 40 40")
    assert job.progress() == (40, 15.0)


def test_a_late_report_of_the_same_step_is_no_step_and_makes_nobody_wait_longer_for_the_next() -> None:
    job = Job()
    step = job.train(10, per_s=10)
    job.play("advance 8s", "silence n1 n2", "advance 3s")
    job.play(f"step n1 n2 {step} {step} age=9s")  # two seconds late
    progress = job.run.progress
    assert (progress.stepped_at, progress.patience_s) == (10.0, 10.0)


def test_steps_that_every_heartbeat_brings_are_timed_by_their_ages() -> None:
    progress, before = TrainingProgress(), an_observed()
    for beat in range(1, 24):
        at = 2.5 * beat
        observed = an_observed(steps=(int(at / 2.4),), step_age_s=at % 2.4)
        progress.record(0, observed, before, at)
        before = observed
    assert progress.patience_s == pytest.approx(22.0), "ten times the longest time that was seen without a step"


def test_a_step_that_is_heard_of_late_is_as_old_as_its_node_says() -> None:
    job = Job()
    job.play("advance 1s", "step n1 1", "advance 1s", "step n1 2", "advance 30s", "step n1 3 age=9s")
    assert job.run.progress.idle_s == 9.0


def test_a_step_of_the_same_number_is_a_step() -> None:
    job = Job()
    step = job.train(10, per_s=10)
    job.play("advance 9s", f"step n1 {step} {step}")
    assert job.run.progress.stepped_at == job.now


def test_where_a_run_ended_is_known_after_its_nodes_have_gone() -> None:
    job = Job()
    job.train(3, per_s=10)
    job.play("step n1 31 31", "step n2 31 32", "succeed n1 n2", "drop n1 n2")
    assert (job.view().state, job.view().nodes) == ("succeeded", ())
    assert job.progress() == (31, None)


def test_where_a_round_stopped_stays_known_when_its_last_node_is_lost() -> None:
    job = Job()
    job.train(3, per_s=10)
    job.play("step n2 29 31", "drop n2 n1", "advance 600s")
    assert job.view().nodes == ()
    assert job.progress() == (29, None)


def test_another_node_that_reports_the_pace_makes_nobody_forget_who_is_gone() -> None:
    job = Job(3)
    job.play("step n2 7 8", "step n3 9 9", "drop n2", "advance 2s", "step n1 9 9", "stopping n1")
    assert [node.node for node in job.view().nodes] == ["n1", "n3"]
    assert job.progress() == (7, None)


def test_a_step_that_is_kept_of_an_earlier_epoch_hides_no_step_of_a_script_that_counts_anew() -> None:
    job = running_job(("n1", "n2"), "min=2 max=2 keeps=600s")
    job.play("step n1 n2 99", "keep n1 n2 1:99", "advance 1s", "step n1 n2 0", "advance 5s", "step n1 n2 38")
    assert job.view().progress.step == 38


def test_what_is_kept_does_not_grow_with_the_words_of_a_node() -> None:
    job = Job(1)
    for word in range(5_000):
        job.now += 0.01
        job.play(f"step n1 {word} {word}")
    assert len(job.run.progress.pace._samples) <= WINDOW_S / SPACING_S + 2
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
        pace = progress.pace.steps_per_s
        assert pace is None or 0 < pace <= 2**53 / SPACING_S
        assert pace is None or math.isfinite(pace)
