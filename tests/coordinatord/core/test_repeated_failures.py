"""Failures round after round: a pause that grows, restarts in a window, and the end of a job that gets nowhere."""

from typing import Any

import pytest
from msgspec.structs import replace

from coordinatord.core.rounds.effects import Batch
from coordinatord.core.rounds.events import PolicyChanged
from coordinatord.core.rounds.policy import Policy
from coordinatord.core.rounds.values.records import RoundEnded, RunEnded
from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.protocol.messages import Failure, Goal, Phase, Result
from tests.support.builders import a_failure, a_spec
from tests.support.host_job import HostJob
from tests.support.script import Stage

ERROR = "RuntimeError: ZeRO was saved by 4 workers"


class Job(Stage):
    """A job of node n1 and perhaps of others, whose workers fail at once."""

    def __init__(self, settings: str = "", **policy: float) -> None:
        super().__init__(**policy)
        self.settings = f"min=1 max=1 restarts=100 {settings}"
        self.play(f"join n1 {self.settings}", "advance 10s")

    @property
    def number(self) -> int:
        """Return the number of the round that was formed last."""
        return self.run.durable.round

    def says(self, phase: Phase, failure: Failure | None = None, steps: tuple[int | None, ...] = ()) -> Batch:
        """Have the node report how its part of the round stands."""
        self.puppets["n1"].stepped_at = self.now
        age_s = 0.0 if any(steps) else None
        return self.report("n1", phase=phase, failure=failure, steps=steps, step_age_s=age_s, beat=True)

    def fail(
        self, error: str = ERROR, *, steps: tuple[int | None, ...] = (), after_s: float = 1.0, **facts: Any
    ) -> Any:
        """Let the round's workers run, and one of them fail; return the end of the round, or of the run with it."""
        self.says(Phase.RUNNING, steps=steps)
        self.play(f"advance {after_s}s")
        records = self.says(Phase.FAILED, a_failure(error=error, **facts), steps).records
        [ended] = [record for record in records if isinstance(record, RoundEnded | RunEnded)]
        return ended

    def restart(self) -> str:
        """Have an operator ask for a restart; return the answer."""
        [answer] = [line for line in self.play("ask restart default") if "-> operator: " in line]
        return answer.partition("-> operator: ")[2]

    def waits(self) -> float:
        """Return how long it is until the next round."""
        since, number = self.now, self.number
        while self.number == number:
            self.play("advance 0.5s")
        return self.now - since


def test_a_run_whose_last_round_did_no_step_ends_at_the_step_of_the_one_before() -> None:
    job = Job("restarts=1")
    job.fail(steps=(14,))
    ended = job.fail()
    assert (type(ended), ended.step) == (RunEnded, 14)


def test_the_pause_doubles_while_the_same_error_comes_again() -> None:
    job = Job()
    assert job.fail().repeats == 0
    assert job.number == 2, "a first failure costs no time"
    waited = []
    for number in range(3, 9):
        ended = job.fail()
        assert job.number == number - 1
        assert f"round {number}: the same error" in ended.reason
        waited.append(job.waits())
    assert waited == [4.0, 8.0, 16.0, 32.0, 60.0, 60.0]


def test_a_spare_that_is_back_after_a_restart_of_the_coordinator_does_not_end_the_pause() -> None:
    job = Job()
    job.play(f"join n2 {job.settings}")
    job.fail()
    assert "waiting 4 s before round 3" in job.fail().reason
    job.play("die 0s", "reconnect n2 n1")
    assert job.number == 2
    assert job.waits() == 4.0


def test_the_reason_is_said_to_the_node_with_how_long_it_takes() -> None:
    job = Job()
    job.fail()
    job.fail()
    sent = job.desired("n1")
    assert (sent.goal, sent.wait_s) == (Goal.WAIT, 4.0)
    assert sent.reason == "waiting 4 s before round 3: the same error twice in a row"
    job.waits()
    job.fail()
    again = "waiting 8 s before round 4: the same error 3 times in a row"
    assert job.desired("n1").reason == again


@pytest.mark.parametrize(
    "second",
    [{"error": "ValueError: another"}, {"exit_code": 3}, {"steps": (7,)}, {"after_s": 61.0}],
    ids=["another error", "another code", "a step between", "a long round"],
)
def test_a_round_that_got_somewhere_or_failed_of_something_else_is_followed_at_once(second: dict[str, Any]) -> None:
    job = Job()
    job.fail()
    assert job.fail(**second).repeats == 0
    assert job.number == 3


def test_a_node_of_the_last_round_is_no_newcomer_when_an_older_word_of_it_is_heard_in_between() -> None:
    job = Job()
    job.fail()
    job.fail()
    job.says(Phase.RUNNING)
    job.says(Phase.FAILED, a_failure(error=ERROR))
    assert job.number == 2
    assert job.waits() == pytest.approx(4.0, abs=0.5)


def test_a_nodeclient_that_is_started_again_ends_the_pause() -> None:
    job = Job("max=2")
    job.fail()
    job.fail()
    assert job.number == 2
    job.play(f"join n1 {job.settings} incarnation=2", "advance 2.5s")
    assert job.number == 3, "whoever did that has mended something"


def test_the_pause_can_be_turned_off_also_while_it_lasts() -> None:
    assert [Job(retry_pause_s=0.0).fail().repeats] == [0]
    job = Job()
    job.fail()
    job.fail()
    assert job.number == 2
    job.handle(PolicyChanged(Policy(retry_pause_s=0.0)))
    assert job.number == 3


def test_an_operator_who_asks_for_a_restart_ends_the_pause() -> None:
    job = Job()
    job.fail()
    job.fail()
    assert (job.number, job.restart()) == (2, "done: job default: the pause before round 3 is over")
    assert job.number == 3
    reason = "rank 0 on node n1 failed in round 2; restarted by alice; formed of node n1, all that --nnodes allows"
    assert job.run.durable.reason == reason
    job.fail()
    assert job.waits() == 8.0, "it comes again if the error does"


def test_or_has_none_begin_while_the_failed_round_is_still_ending() -> None:
    job = Job()
    job.fail()
    job.says(Phase.RUNNING)
    job.says(Phase.STOPPING, a_failure(error=ERROR))
    answer = job.restart()
    assert answer.startswith("done: ")
    assert answer.endswith("; it follows without a pause")
    assert job.restart().startswith("nothing: ")
    job.says(Phase.FAILED, a_failure(error=ERROR))
    assert job.number == 3


def test_a_restart_finds_no_pause_that_is_over() -> None:
    job = Job()
    job.fail()
    job.fail()
    job.play("advance 3.5s", "drop n1", "advance 0.9s")
    assert job.restart().startswith("nothing: ")


def test_no_node_is_let_go_for_a_pause_that_is_longer_than_its_patience() -> None:
    job = Job(retry_pause_s=300.0, retry_pause_max_s=300.0)
    job.fail()
    job.fail()
    assert job.waits() == 60.0
    assert job.run.members["n1"].durable.outcome is None


TRACEBACK = ('  File "train.py", line 81, in <module>', "    loss = model(batch)", "ValueError: bad shape 3")


BOX = ("╭──── Traceback (most recent call last) ────╮", "│ /src/train.py:81 in main │", "ValueError: bad shape 3")
"""A traceback as rich and typer write it."""


@pytest.mark.parametrize("traceback", [TRACEBACK, BOX], ids=["as Python writes it", "as rich writes it"])
def test_the_same_error_of_the_script_at_the_same_place_ends_the_job(traceback: tuple[str, ...]) -> None:
    job = Job("futile=3")
    job.fail("ValueError: bad shape 3", last_lines=traceback)
    job.play("die 0s", "reconnect n1")
    ended = job.fail("ValueError: bad shape 5", last_lines=traceback)
    assert isinstance(ended, RunEnded)
    assert (ended.outcome.result, ended.outcome.exit_code) == (Result.FAILED, ExitCode.NO_PROGRESS)
    assert ended.reason.endswith(
        "(the script failed with the same error at the same place in two short rounds, and reports no steps, so nobody "
        "knows whether it got on: mend it, or give --max-futile-rounds 0 if the cause is outside the job)"
    )


def test_the_same_error_at_the_same_step_ends_the_job_though_earlier_steps_were_done_again() -> None:
    job = Job("futile=3")
    job.fail("ValueError: bad shape 3", last_lines=TRACEBACK, steps=(7,))
    assert isinstance(job.fail("ValueError: bad shape 3", last_lines=TRACEBACK, steps=(6,)), RoundEnded)
    ended = job.fail("ValueError: bad shape 3", last_lines=TRACEBACK, steps=(7,))
    assert isinstance(ended, RunEnded)
    assert "at the same place in two rounds, without a new step in between: mend it, or give" in ended.reason


@pytest.mark.parametrize(
    "second",
    [
        {"last_lines": ('  File "train.py", line 99, in <module>', "ValueError: bad shape 3")},
        {"last_lines": ()},
        {"steps": (7,)},
        {"after_s": 61.0},
        {"error": "torch.OutOfMemoryError: CUDA out of memory"},
    ],
    ids=["another place", "no place", "a step between", "a long round", "no error of the script"],
)
def test_an_error_that_another_round_may_not_have_is_followed_by_one(second: dict[str, Any]) -> None:
    job = Job("futile=3", retry_pause_s=0.0)
    first = {"error": second["error"]} if "error" in second else {}
    failed = {"error": "ValueError: bad shape 3", "last_lines": TRACEBACK}
    job.fail(**failed | first)
    assert isinstance(job.fail(**failed | second), RoundEnded)


def test_rounds_that_fail_without_a_new_step_end_the_job() -> None:
    job = Job("futile=3", retry_pause_s=0.0)
    job.fail("OSError: one", steps=(7,))
    job.fail("OSError: two", steps=(7,))
    job.fail("OSError: three", steps=(5,))
    job.play("die 0s", "reconnect n1")
    ended = job.fail("OSError: four", steps=(7,))
    assert isinstance(ended, RunEnded)
    assert ended.outcome.exit_code == ExitCode.NO_PROGRESS
    assert ended.reason.endswith("(3 rounds in a row have failed without a new step, see --max-futile-rounds)")


def test_long_rounds_of_a_script_that_announced_steps_and_did_none_get_nowhere() -> None:
    job = Job("futile=2", retry_pause_s=0.0)
    assert isinstance(job.fail("OSError: one", steps=(None,), after_s=100.0), RoundEnded)
    assert isinstance(job.fail("OSError: two", steps=(None,), after_s=100.0), RunEnded)


def test_rounds_that_preemptions_end_are_not_futile() -> None:
    spec = replace(a_spec(1, 4, max_restarts=0), max_futile_rounds=2)
    job = HostJob(4, spec, Policy(heartbeat_s=1_000.0))
    for node in ("n0", "n1", "n2"):
        for each in job.inside:
            job.report(each, Phase.RUNNING, steps=(7,), step_age_s=0.0)
        others = [each for each in job.inside if each != node]
        job.report(node, Phase.FAILED, a_failure(exit_code=-15), leaving=True)
        for each in others:
            job.report(each, Phase.STOPPED)
        job.wait(3.0)
    assert job.inside == ["n3"]


def test_a_new_step_begins_the_count_of_futile_rounds_anew() -> None:
    job = Job("futile=2", retry_pause_s=0.0)
    for step in range(1, 9):
        assert isinstance(job.fail(f"OSError: {step}", steps=(step // 2,)), RoundEnded)


def test_a_script_that_counts_the_steps_of_each_epoch_gets_somewhere() -> None:
    job = Job("futile=2", retry_pause_s=0.0)
    for epoch in range(4):
        for step in (0, 500, 999, 0):
            job.says(Phase.RUNNING, steps=(step,))
            job.play("advance 100s")
        assert isinstance(job.fail(f"OSError: epoch {epoch}", steps=(3,)), RoundEnded)


def test_a_broken_gpu_costs_no_restart() -> None:
    job = Job("restarts=0 futile=3", retry_pause_s=0.0)
    for _ in range(2):
        ended = job.fail("torch.AcceleratorError: CUDA error: unspecified launch failure", xids=(79,))
        assert isinstance(ended, RoundEnded)
        assert (ended.charged, ended.restarts_used) == (False, 0)
    ended = job.fail("torch.AcceleratorError: CUDA error: unspecified launch failure", xids=(79,))
    assert isinstance(ended, RunEnded)
    assert ended.outcome.exit_code == ExitCode.NO_PROGRESS


def test_only_restarts_within_the_window_are_counted() -> None:
    job = Job("restarts=2 restart_window_s=600", retry_pause_s=0.0)
    for error in ("OSError: one", "OSError: two", "OSError: three", "OSError: four"):
        assert isinstance(job.fail(error, after_s=400.0), RoundEnded)
    job.play("die 0s", "reconnect n1")
    ended = job.fail("OSError: five")
    assert isinstance(ended, RunEnded)
    assert ended.reason.endswith("(restarts used: 2 of 2/10min)")
    assert ended.outcome.exit_code == 1
