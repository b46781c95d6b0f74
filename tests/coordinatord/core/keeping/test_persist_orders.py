"""What nodes are told to write to the disk, and who makes the step whole of what."""

import pytest

from coordinatord.core.keeping import write_plan
from coordinatord.core.keeping.known import kept_of
from coordinatord.core.keeping.write_plan import END_S
from coordinatord.core.rounds.state.durable import State
from coordinatord.protocol.messages import Result
from tests.support.running_job import order, running_job, to_write
from tests.support.script import Stage

NODES = ("n1", "n2")
PAIR = "min=2 max=2 keeps=600s"
SHARDED = "shards=2 of=2"


def test_who_makes_a_step_whole_knows_how_many_small_states_others_have_written() -> None:
    """Where all ranks have the same big state, one node writes it; a directory that is not shared shows by the rest."""
    stage = running_job(NODES, PAIR)
    for kept in ("1:100", "1:100 protected=yes"):
        stage.play(f"keep n1 n2 {kept}", "advance 1s")
    stage.play("advance 600s")
    both = order(stage, "n1"), order(stage, "n2")
    assert [asked and sum(part.big for part in asked.parts) for asked in both] == [1, 0]
    assert [asked and sum(part.small for part in asked.parts) for asked in both] == [1, 1]
    stage.play("write n2 n1 written")
    assert (last := order(stage, "n1")) is not None
    assert (last.commit, last.small) == (True, 2)


def protected(stage: Stage, node: str) -> list[int]:
    """Return the steps that a node must not overwrite."""
    return sorted(at.step for at in stage.desired(node).protected or ())


def keep(stage: Stage, *steps: int, options: str, protect: bool = True) -> None:
    """Let both nodes keep these steps, and protect them when they are told to."""
    parts = " ".join(f"1:{step}" for step in steps)
    for more in ("", "protected=yes")[: 1 + protect]:
        stage.play(f"keep n1 n2 {parts} {options} {more}", "advance 1s")


def keeping(options: str, protect: bool = True, more: str = "") -> Stage:
    """Return two nodes that run, and keep step 100; `more` are options of their job."""
    stage = running_job(NODES, f"{PAIR} {more}")
    keep(stage, 100, options=options, protect=protect)
    return stage


def test_a_round_that_ends_before_all_are_heard_after_a_restart_has_a_place_for_its_last_step() -> None:
    stage = keeping("shards=2 halts=yes")
    stage.play("keep n1 1:100 1:101 1:102 shards=2 halts=yes protected=yes", "die 1s", "reconnect n1")
    assert stage.desired("n1").protected is None
    stage.play("leave n1")
    assert protected(stage, "n1") == [101, 102]


def test_a_step_that_no_round_may_resume_from_makes_room_before_an_older_one() -> None:
    stage = keeping("shards=2 halts=yes")
    keep(stage, 100, 101, options="shards=2 halts=yes")
    stage.play("fail n1", "stopped n1 n2", "fetch n1 failed why=digest", "stopped n1 n2")
    stage.play("fetch n1 ready", "running n1 n2", "step n1 101")
    assert (resume := stage.coordinator.jobs["default"].durable.resume) is not None
    assert resume.step == 100, "step 101 is damaged"
    stage.play("keep n1 1:100 1:101 3:102 shards=2 halts=yes protected=yes", "die 1s", "reconnect n1", "leave n1")
    assert protected(stage, "n1") == [100, 102]


@pytest.mark.parametrize(("shards", "stay"), [(1, [100]), (2, [100, 101, 102])])
def test_a_save_at_the_end_of_a_round_finds_a_place_while_a_step_is_written(shards: int, stay: list[int]) -> None:
    """What all ranks have alike is saved at a break, which nobody foresees; what each has, at a planned end."""
    options = f"shards={shards} halts=yes"
    stage = keeping(options)
    stage.play("advance 600s")
    assert to_write(stage, "n1") == 100
    keep(stage, 100, 101, options=options)
    keep(stage, 101, 102, options=options, protect=False)
    stage.play("advance 1s")
    assert protected(stage, "n1") == stay
    stage.play("ask restart default")
    assert len(protected(stage, "n1")) < 3
    assert (order(stage, "n1") is None) is (shards == 2), "the older step need not be written any more"


def test_no_step_is_written_while_a_node_that_has_it_may_overwrite_it() -> None:
    stage = running_job(NODES, PAIR)
    stage.play("keep n1 1:100", "keep n1 1:100 protected=yes", "keep n2 1:100", "advance 600s")
    assert order(stage, "n1") is None, "n2 was late to say that it has the step, and does not protect it yet"
    stage.play("keep n2 1:100 protected=yes", "advance 1s")
    assert to_write(stage, "n1") == 100


def back_with_workers() -> Stage:
    """Return two nodes of which one was out of reach at a planned end, and is back with the workers of that round."""
    stage = keeping("of=2")
    stage.play("silence n2", "ask restart default", "stopped n1", "advance 30s")
    stage.play("write n1 written", "write n1 committed", "keep n2 1:100 1:110 of=2", "reconnect n2 phase=running")
    assert stage.state() is State.FORMING
    return stage


def test_no_step_is_written_between_two_rounds_while_workers_that_are_back_may_overwrite_it() -> None:
    stage = back_with_workers()
    assert order(stage, "n2") is None
    stage.play("keep n2 1:100 1:120 of=2", "stopped n2")
    assert to_write(stage, "n2") == 120


def test_a_step_of_workers_that_are_back_is_written_once_their_node_protects_it() -> None:
    stage = back_with_workers()
    stage.play("keep n2 1:100 1:110 of=2 protected=yes", "advance 1s")
    assert to_write(stage, "n2") == 110


def back_with_a_newer_step() -> Stage:
    """Return two nodes that protect step 100, one of them back with workers that may overwrite its part of step 110."""
    stage = keeping(SHARDED, more="join_timeout_s=60")
    stage.play(f"keep n1 n2 1:100 1:110 {SHARDED} protected=100", "silence n2", "ask restart default", "stopped n1")
    stage.play("advance 8s", "reconnect n2 phase=running")
    assert (stage.state(), order(stage, "n1")) == (State.FORMING, None)
    return stage


@pytest.mark.parametrize("line", ["ask stop default", "advance 10s"])
def test_an_older_step_is_written_while_workers_that_are_back_may_overwrite_the_newest(line: str) -> None:
    stage = back_with_a_newer_step()
    stage.play(line)
    for step in (100, 110):
        assert [to_write(stage, node) for node in NODES] == [step, step]
        stage.play("write n1 n2 written", "write n1 committed")
        if step == 100:
            assert (stage.state(), order(stage, "n1")) == (State.FORMING, None)
            stage.play("stopped n2", "advance 1s")
    assert kept_of(stage.run).disk.problem == ""


def test_a_job_that_is_stopped_waits_a_while_for_workers_that_are_back_and_says_which_step_they_cost() -> None:
    stage = back_with_a_newer_step()
    stage.play("ask stop default", "write n1 n2 written", "write n1 committed", f"advance {END_S - 1:g}s")
    assert stage.state() is State.FORMING
    stage.play("advance 1s")
    assert stage.state() is State.STOPPED
    lost = "step 110 is not on the disk: workers of node n2 may overwrite it"
    assert stage.run.durable.reason == f"stopped by alice; {lost}"


def test_a_node_that_leaves_stays_to_write_an_older_step_while_the_newest_may_be_overwritten() -> None:
    stage = keeping("of=2")
    stage.play("silence n2", "ask restart default", "stopped n1", "keep n2 1:110 of=2", "advance 5s")
    stage.play("reconnect n2 phase=running", "leave n1 n2")
    assert to_write(stage, "n1") == 100


def test_a_write_that_comes_to_its_end_while_no_node_is_heard_disturbs_nothing() -> None:
    stage = keeping("halts=yes")
    stage.play("advance 600s")
    assert order(stage, "n1") is not None
    stage.play("silence n1 n2", "advance 20s")
    assert kept_of(stage.run).disk.problem.startswith("node n1 is gone")
    stage.play("heal n1 n2")
    assert order(stage, "n1") is None


def test_a_job_that_is_stopped_says_which_step_is_lost_since_the_disk_stands_still() -> None:
    stage = keeping("shards=2 of=2")
    stage.play("advance 600s", "ask stop default")
    keep(stage, 100, 101, options="shards=2 of=2", protect=False)
    stage.play("stopped n1 n2", "advance 34s")
    assert stage.state() is State.FORMING, "a node says before if its disk hangs"
    stage.play("advance 6s")
    ended = stage.run.durable
    assert ended.state is State.STOPPED
    assert ended.reason == "stopped by alice; step 101 is not on the disk: nothing was written for 40 s"


def test_the_time_of_a_write_that_is_slow_is_that_of_all_its_attempts() -> None:
    stage = stopped_pair()
    stage.play("write n1 failed why=full", "advance 30s")
    assert order(stage, "n1") is not None
    stage.play("advance 35s", "write n1 writing", "advance 35s", "write n2 writing", "advance 19s")
    assert stage.state() is State.FORMING
    stage.play("advance 1s")
    lost = "step 100 is not on the disk: nodes that leave wait 120 s for it at most"
    assert stage.run.durable.reason == f"stopped by alice; {lost}"


def test_a_step_whose_parts_fit_into_no_order_is_not_said_to_be_held_by_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_plan, "WANTED_MAX", 0)
    stage = keeping(SHARDED)
    stage.play("advance 600s")
    assert order(stage, "n1") is None
    assert kept_of(stage.run).disk.problem == "a node would have to write too many groups of parts"


def test_a_job_that_is_stopped_between_two_rounds_writes_its_last_step() -> None:
    stage = keeping("shards=1 of=2")
    stage.play("drop n2", "advance 30s", "stopped n1")
    assert (stage.state(), order(stage, "n1")) == (State.FORMING, None)
    answer = "".join(stage.play("ask stop default"))
    assert "it had no workers; what is kept is written to the disk, then its nodes end" in answer
    assert (to_write(stage, "n1"), stage.state()) == (100, State.FORMING)
    stage.play("write n1 written", "write n1 committed")
    assert stage.state() is State.STOPPED


def stopped_pair() -> Stage:
    """Return two nodes of a job that is being stopped, which are told to write the last step."""
    stage = keeping("shards=2 of=2", protect=False)
    stage.play("ask stop default", "stopped n1 n2")
    assert to_write(stage, "n1") == 100
    return stage


def alone() -> Stage:
    """Let two nodes of which none can be missed keep step 100, and lose one of them."""
    stage = running_job(NODES, f"{PAIR} join_timeout_s=30")
    keep(stage, 100, options="")
    stage.play("drop n2", "advance 2s", "stopped n1")
    return stage


def end_of_n1(stage: Stage) -> str:
    """Return what a node is told that has waited in vain."""
    outcome = stage.desired("n1").outcome
    assert outcome is not None
    assert outcome.result is Result.TIMED_OUT
    return outcome.summary


def test_a_node_that_has_waited_in_vain_says_which_step_is_lost_with_it() -> None:
    stage = alone()
    stage.play("advance 12s", "write n1 failed why=full", "advance 18s")
    assert end_of_n1(stage).endswith("; step 100 is not on the disk: node n1: full")


def test_a_node_that_is_to_leave_waits_for_the_disk_and_not_for_others() -> None:
    stage = alone()
    stage.play("advance 5s", "leave n1", "write n1 failed why=full", "advance 31s")
    assert order(stage, "n1") is not None
    stage.play("write n1 written", "write n1 committed")
    assert (outcome := stage.desired("n1").outcome) is not None
    assert outcome.result is Result.LEFT
    assert "is not on the disk" not in outcome.summary


def test_a_node_that_has_waited_in_vain_stays_while_it_writes_and_no_longer() -> None:
    stage = alone()
    stage.play("advance 29s")
    assert order(stage, "n1") is not None
    stage.play("write n1 written", "advance 5s")
    assert stage.state() is State.FORMING
    stage.play("write n1 committed", "advance 1s")
    assert stage.state() is State.FAILED
    assert "is not on the disk" not in end_of_n1(stage)


def test_a_coordinator_that_is_started_again_has_the_last_step_of_a_stopped_job_written() -> None:
    """That the job is to end is recorded, what its nodes keep is not: they are heard first."""
    stage = stopped_pair()
    stage.play("die 1s")
    answer = "".join(stage.play("ask stop default"))
    assert "is being stopped already" in answer
    stage.play("reconnect n1")
    assert (stage.state(), order(stage, "n1")) == (State.FORMING, None)
    assert "what nodes keep is known when all are heard again" in "".join(stage.play("status"))
    stage.play("reconnect n2")
    for line in ("write n1 n2 written", "write n1 committed"):
        assert (to_write(stage, "n1"), stage.state()) == (100, State.FORMING)
        stage.play(line)
    assert stage.state() is State.STOPPED


def test_a_job_that_is_stopped_after_a_restart_of_its_coordinator_writes_its_last_step() -> None:
    stage = keeping("shards=1 of=2")
    stage.play("drop n2", "advance 30s", "stopped n1", "die 1s")
    answer = "".join(stage.play("ask stop default"))
    assert "its nodes are heard first, since the coordinator was started again, then its nodes end" in answer
    stage.play("reconnect n1")
    assert to_write(stage, "n1") == 100


def test_a_coordinator_that_is_started_again_has_the_next_whole_step_of_a_round_written() -> None:
    """It does not know when the last one was: the round may last for weeks after that."""
    stage = keeping("shards=2 of=2")
    stage.play("die 1s", "reconnect n1", "advance 1s")
    assert order(stage, "n1") is None, "n2 has not said what it keeps"
    stage.play("reconnect n2", "advance 12s")
    assert to_write(stage, "n1") == 100
    stage.play("write n1 n2 written", "write n1 committed")
    keep(stage, 100, 200, options="shards=2 of=2")
    assert order(stage, "n1") is None
    stage.play("advance 600s")
    assert to_write(stage, "n1") == 200


def test_a_coordinator_that_is_started_again_has_no_older_step_written_beside_one_that_its_nodes_find_soon() -> None:
    """A node that has written the newer one may be gone: the others look at the disk every ten seconds."""
    stage = keeping("shards=2 of=2")
    stage.play("die 1s", "reconnect n1 n2", "advance 10s")
    assert order(stage, "n1") is None
    stage.play("write n1 n2 written found=e-1:1:101 shards=2", "advance 10s")
    assert order(stage, "n1") is None


def test_a_write_is_given_up_as_soon_as_a_node_finds_a_newer_step_on_a_slow_disk() -> None:
    stage = keeping("shards=2 of=2")
    stage.play("die 1s", "reconnect n1 n2", "advance 12s")
    assert (one := order(stage, "n1")) is not None
    stage.play("write n1 written found=e-1:1:101 shards=2", "write n2 written", "advance 1s")
    assert (order(stage, "n1"), order(stage, "n2")) == (None, None)
    assert kept_of(stage.run).disk.aborted == (one.attempt,)
    keep(stage, 100, 200, options="shards=2 of=2")
    assert (two := order(stage, "n1")) is not None
    assert (two.step, two.aborted) == (200, (one.attempt,))


def looking(join_timeout_s: int) -> Stage:
    """Return a node that waits for another one, with a coordinator that was just started again."""
    stage = keeping("of=2", more=f"join_timeout_s={join_timeout_s}")
    stage.play("ask restart default", "stopped n1", "drop n2", "advance 25s", "die 1s", "reconnect n1")
    assert stage.state() is State.FORMING
    return stage


def test_a_step_is_written_before_a_join_timeout_that_ends_before_nodes_have_looked_at_the_disk() -> None:
    stage = looking(join_timeout_s=11)
    stage.play("advance 10s")
    assert order(stage, "n1") is None
    stage.play("advance 1s")
    assert to_write(stage, "n1") == 100


def test_who_stops_a_job_before_nodes_have_looked_at_the_disk_is_told_that_a_step_is_written() -> None:
    stage = looking(join_timeout_s=60)
    answer = "".join(stage.play("ask stop default"))
    assert "it had no workers; what is kept is written to the disk, then its nodes end" in answer
    assert order(stage, "n1") is not None


def test_what_a_node_says_of_an_earlier_attempt_does_not_end_the_next_one() -> None:
    """The end of an attempt may never have reached it: then it repeats what it said."""
    stage = keeping("shards=2 of=2")
    stage.play("advance 600s", "write n1 failed why=full")
    assert order(stage, "n1") is None
    stage.play("advance 30s")
    assert (again := order(stage, "n1")) is not None
    stage.play("write n1 failed why=stale attempt=1")
    assert order(stage, "n1") == again
    stage.play("write n1 n2 written", "write n1 committed")
    assert kept_of(stage.run).disk.problem == ""


def test_an_attempt_of_a_coordinator_that_was_started_again_is_no_earlier_one() -> None:
    stage = stopped_pair()
    first = order(stage, "n1")
    stage.play("write n1 n2 written", "die 1s", "reconnect n1 n2")
    second = order(stage, "n1")
    assert first is not None
    assert second is not None
    assert (second.step, second.commit) == (first.step, False)
    assert second.attempt > first.attempt
