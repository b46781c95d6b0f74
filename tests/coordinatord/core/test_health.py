"""Whether a round that goes on does well: training that stalls, nodes that are all silent, and the reports of it."""

import pytest
from msgspec.structs import asdict

from coordinatord.core.rounds.queries.time_attribution import spent
from coordinatord.core.rounds.state.run import Health
from coordinatord.protocol.text import lasted
from tests.support.script import Stage

PAIR = ("join n1 n2 min=2 max=2", "running n1 n2")


class Job(Stage):
    """Two nodes that train, and report it each second."""

    def __init__(self, **policy: float) -> None:
        super().__init__(**policy)
        self.step = 0
        self.play(*PAIR)

    def train(self, seconds: int, per_s: int = 10) -> None:
        """Let both do so many steps a second."""
        for _ in range(seconds):
            self.step += per_s
            self.play("advance 1s", f"step n1 n2 {self.step}")

    def stand(self, seconds: int, *, behind: int = 0) -> None:
        """Let both do no step for so long; the second one has done fewer than the first."""
        if behind:
            self.play(f"step n2 {self.step - behind}")
        self.play(f"advance {seconds}s")

    def seconds(self) -> dict[str, float]:
        """Return where the time went, without the zeros."""
        return {activity: took for activity, took in asdict(self.view().ledger.seconds).items() if took}

    def summaries(self) -> list[str]:
        """Return the reasons of the records of stalls and silence."""
        kinds = ("TrainingStalled", "TrainingResumed", "NodesSilent", "NodesHeard")
        return [record.reason for _, record in self.past if record.KIND in kinds]


SILENT = "every node is silent: the coordinator's own network may be cut"


def test_a_gap_that_was_seen_before_is_usual() -> None:
    job = Job()
    for gap_s in (30, 50):
        job.train(20)
        job.stand(gap_s)
    assert job.view().health == Health.WELL, "such as an evaluation"
    assert len(job.summaries()) == 2
    job.stand(15)
    assert job.view().health == Health.STALLED, "twice as long as the gap before"


def test_slow_steps_are_no_stall() -> None:
    job = Job()
    for _ in range(8):
        job.train(1, per_s=1)
        job.stand(7)
    job.stand(60)
    assert job.summaries() == []
    job.stand(14)
    assert job.view().health == Health.STALLED


def test_the_step_after_a_first_one_that_took_long_may_take_long() -> None:
    job = Job()
    job.play("advance 20s")
    job.train(1)
    job.stand(200)
    assert job.view().health == Health.WELL
    job.stand(11)
    assert job.view().health == Health.STALLED


def test_who_is_not_heard_makes_no_stall() -> None:
    job = Job()
    job.train(20)
    job.play("silence n1 n2", "advance 60s")
    assert job.summaries() == [SILENT]
    assert job.view().health == Health.SILENT


def test_a_stall_is_said_to_last_from_the_newest_step_as_soon_as_a_node_is_back() -> None:
    job = Job()
    job.train(20)
    job.stand(40)
    job.play("die 5s")
    assert job.view().reason == "no step", "since when, nodes have yet to say"
    job.play("reconnect n1 n2")
    assert job.view().reason == "no step for 45 s"


def test_a_coordinator_that_was_started_again_does_not_call_slow_steps_a_stall() -> None:
    job = Job()
    job.play("advance 30s")
    for _ in range(4):
        job.train(1, per_s=1)
        job.stand(29)
    job.play("die 5s", "reconnect n1 n2")
    job.stand(20)
    job.train(1, per_s=1)
    job.stand(29)
    assert job.summaries() == []


def test_a_coordinator_that_was_started_again_sees_a_stall_all_the_same() -> None:
    job = Job()
    job.train(20)
    job.play("die 5s", "reconnect n1 n2")
    job.stand(294)
    assert job.view().health == Health.WELL
    job.stand(1)
    assert job.view().health == Health.STALLED


def test_a_node_that_is_constantly_behind_by_more_than_reports_explain_is_known_by_it() -> None:
    job = Job()
    for lag, behind in ((20, 0), (37, 37)):
        for _ in range(8):
            job.play("advance 1s")
            job.step += 10
            job.play(f"step n1 {job.step}", f"step n2 {max(0, job.step - lag)}")
        assert job.view().progress.steps_per_s == 10.0
        assert [node.behind for node in job.view().nodes] == [0, behind], "two reports are up to two seconds apart"


def test_a_node_that_stands_behind_others_is_known_by_it_however_little_it_lacks() -> None:
    job = Job()
    job.train(20)
    job.play(f"step n1 {job.step + 1}")
    assert [node.behind for node in job.view().nodes] == [0, 0]
    job.play("advance 6s")
    assert [node.behind for node in job.view().nodes] == [0, 1]


def test_nobody_is_behind_when_there_is_no_round() -> None:
    job = Job()
    job.train(20)
    job.play("step n1 500")
    assert job.view().nodes[0].behind == 0 != job.view().nodes[1].behind
    job.play("drop n1", "advance 6s", "stopped n2")
    assert (job.view().state, [node.behind for node in job.view().nodes]) == ("forming", [0])


def test_workers_of_a_later_round_are_starting_until_they_do_a_step() -> None:
    job = Job()
    job.train(2)
    job.play("fail n1", "stopped n1 n2", "running n1")
    assert [node.state for node in job.view().nodes] == ["running", "assigned"], "others have yet to start"
    job.play("running n2")
    assert (job.view().state, {node.state for node in job.view().nodes}) == ("starting", {"starting"})


@pytest.mark.parametrize("end", ["drop n1 n2", "silence n1 n2"])
def test_to_start_the_coordinator_again_is_not_to_hear_a_node(end: str) -> None:
    job = Job()
    job.train(20)
    job.play(end, "advance 10s", "die 5s", "advance 3s")
    since = "not heard since this coordinator was started 3 s ago: they may have ended meanwhile"
    assert (job.view().health, job.view().reason) == (Health.SILENT, since)
    job.play("advance 57s")
    assert job.summaries() == [SILENT]
    job.play("reconnect n2")
    assert job.summaries() == [SILENT, "nodes are heard again"]


def test_a_round_that_breaks_in_a_stall_had_stalled_until_then() -> None:
    job = Job()
    job.train(20)
    job.stand(30)
    job.play("fail n1 age=2s")
    run = job.run
    assert spent(run, job.now).stalled == pytest.approx(28.0)
    assert job.view().health == Health.WELL


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.0621, "0.062 s"),
        (9.0, "9 s"),
        (12.4, "12 s"),
        (59.7, "1 min 0 s"),
        (75.0, "1 min 15 s"),
        (7_500, "2 h 5 min"),
    ],
)
def test_how_long_something_lasted_is_said_in_two_units_at_most(seconds: float, said: str) -> None:
    assert lasted(seconds) == said


def test_a_report_that_is_old_by_habit_makes_no_node_a_straggler() -> None:
    job = Job(heartbeat_s=10.0)
    for node in (*("n2", "n1") * 4, "n2"):  # all beat at whole tens of seconds, and n2 also speaks in between
        job.play("advance 5s")
        job.step += 50
        job.play(f"step {node} {job.step}")
    assert [node.behind for node in job.view().nodes] == [0, 0]


def test_a_node_that_is_in_the_middle_of_a_long_step_is_no_straggler() -> None:
    job = Job()
    for _ in range(4):
        job.play("advance 20s")
        job.step += 1
        job.play(f"step n1 {job.step}")
        assert [node.behind for node in job.view().nodes] == [0, 0], "the other one may be as far, and not have said so"
        job.play("advance 1s", f"step n2 {job.step}")
    job.play("advance 20s", f"step n1 {job.step + 1}", "advance 25s")
    assert [node.behind for node in job.view().nodes] == [0, 1]
