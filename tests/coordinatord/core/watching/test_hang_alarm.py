"""When workers that do no step are looked at, and what follows from what is seen."""

import pytest

from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.values.records import BusyWorkerAwaited, RoundEnded, RunEnded
from coordinatord.core.shown.job_view import job_view
from coordinatord.protocol.codec import decode, encode
from coordinatord.protocol.messages import Desired, HangKind, Killed, Phase
from tests.support.builders import a_failure
from tests.support.looks import PID
from tests.support.running_job import Job
from tests.support.script import Stage, play


def looked_at(kinds: str) -> tuple[str, ...]:
    """Return the lines of a pair of looks at workers that stand still, in which they are seen like this."""
    return "advance 10s", f"seen {kinds}", "advance 1s", f"seen {kinds}"


def test_a_hang_is_a_failure_of_the_worker_that_is_named() -> None:
    job = Job("workers=2 log_dir=/logs/mnist")
    job.play(*looked_at("waits waits waits stands"), "stopped n1 n2")
    [ended] = job.records(RoundEnded)
    assert (ended.charged, ended.restarts_used) == (True, 1)
    assert ended.report is not None
    failure = ended.report.failure
    assert (ended.report.node, failure.rank, failure.local_rank, failure.hang) == ("n2", 3, 1, HangKind.STUCK)
    sentence = "rank 3 on node n2 stands in get (train.py:41) for 12 s; the 3 others wait in all_reduce 7"
    assert failure.message == ended.reason == sentence
    assert failure.last_lines == ("get (queue.py:180)", "main (train.py:41)", "<module> (train.py:60)")
    assert failure.age_s == 12.0
    assert failure.log == "/logs/mnist/e-1/round_1/3/stderr.log"
    view = job_view(job.run, job.now, None)
    assert view.failure is not None
    assert (view.failure.hang, view.failure.how) == ("stuck", "hung: stuck")
    assert view.ledger.seconds.stalled == 11.0, "it is no time of detecting: everybody could see that it stood"
    assert job.run.durable.last_end_reason == "rank 3 on node n2 hung in round 1"


@pytest.mark.parametrize(
    ("shown", "hang", "ranks", "reason"),
    [
        ("waits skipped", HangKind.MISMATCHED, (0, 1), "ranks 0, 1 hung in round 1"),
        ("waits waits", HangKind.NETWORK, (), "a collective did not complete in round 1"),
    ],
)
def test_of_a_hang_all_culprits_are_named_or_none(
    shown: str, hang: HangKind, ranks: tuple[int, ...], reason: str
) -> None:
    job = Job()
    job.play(*looked_at(shown), "stopped n1 n2")
    assert job.run.durable.last_end_reason == reason
    assert job.run.durable.report is not None
    failure = job.run.durable.report.failure
    assert (failure.rank, failure.hang, failure.hang_ranks) == (0, hang, ranks)


@pytest.mark.parametrize(
    ("settings", "shown", "says"),
    [
        ("restarts=0", "waits skipped", "rank 0 on node n1 waits in all_reduce 7 and rank 1 on node n2 in barrier 7"),
        ("restarts=0", "waits ended", "rank 1 on node n2 has ended"),
        ("restarts=0 hang=10", "waits stands", "stands in get (train.py:41)"),
    ],
    ids=["another collective", "dead", "as the user has said"],
)
def test_without_a_restart_left_the_run_fails_with_the_code_of_a_timeout(settings: str, shown: str, says: str) -> None:
    job = Job(settings)
    job.play(*looked_at(shown), "stopped n1 n2")
    [ended] = job.records(RunEnded)
    assert ended.outcome.exit_code == 124
    assert says in ended.reason


STANDS = "waiting for rank 1 on node n2, which stands in get (train.py:41)"

LEFT_TO_TORCH = (
    "; a failed round would now end the job, so only torch's own timeout ends this "
    "(30 min with gloo, 10 min with NCCL, or timeout= of init_process_group)"
)

CUT = "all 2 workers wait in all_reduce 7 for 12 s, and it completes for none: look at the network between nodes n1, n2"


RESTART = "`nodeclient restart` begins another round now"

STOPPED = "waiting for rank 1 on node n2, which has been stopped by a signal"


@pytest.mark.parametrize(
    ("shown", "says", "remedy"),
    [
        pytest.param("waits stands", STANDS, RESTART, id="stands"),
        pytest.param("waits waits", CUT, RESTART, id="cut"),
        pytest.param("waits stopped", STOPPED, "`kill -CONT 4711` on its host lets it go on", id="stopped"),
    ],
)
def test_without_a_restart_left_what_does_not_move_is_said_once_and_left_to_torch(
    shown: str, says: str, remedy: str
) -> None:
    job = Job("restarts=0")
    job.play(*looked_at("waits computes"), "advance 10s")
    _stands(job, shown, 40)
    said = f"{says}{LEFT_TO_TORCH}; {remedy}"
    assert job.stops == []
    assert job.reason.endswith(f"; {said}")
    noted = [record.reason for record in job.records(BusyWorkerAwaited)]
    assert noted == ["waiting for rank 1 on node n2, which computes in evaluate (train.py:50)", said]
    assert [sent.remark for member in job.run.members.values() if (sent := member.session.sent)] == [said, said]
    job.play("fail n1", "stopped n1 n2")
    assert job.state() is State.FAILED


def test_what_is_left_to_torch_is_said_in_a_message_that_nodes_accept() -> None:
    names = [f"n{number}-{'x' * 120}" for number in range(1, 5)]
    stage = Stage(heartbeat_s=1.0)
    stage.play(*(f"join {name} min=4 max=4 restarts=0" for name in names), f"running {' '.join(names)}", "advance 1s")
    for name in names:
        stage.play(f"step {name} 10")
    stage.play("advance 10s", *2 * ("seen waits waits waits waits", "advance 2s"))
    for member in stage.run.members.values():
        assert member.session.sent is not None
        assert f"{LEFT_TO_TORCH}; " in decode(encode(member.session.sent), Desired).remark


TIMED_OUT = "RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 1800000ms for recv operation"

HANGS = looked_at("waits stands")


def test_a_hang_that_comes_back_at_the_same_place_says_how_often_it_was_there() -> None:
    job = Job("restarts=2")
    for step in (20, 30):
        job.play(*HANGS, "stopped n1 n2", "running n1 n2", f"step n1 n2 {step}", "advance 1s", f"step n1 n2 {step + 1}")
    assert [record.reason.partition("all_reduce 7")[2] for record in job.records(RoundEnded)] == [
        "",
        "; 1 earlier round hung at the same place",
    ]
    job.play(*HANGS)
    again = "; 2 earlier rounds hung at the same place"
    assert job.reason.endswith(
        f"; {STANDS}{again}{LEFT_TO_TORCH}; see what that line waits for, and end the job by `nodeclient stop`"
    )


def test_the_worker_that_all_waited_for_is_the_root_cause_when_torchs_timeout_is_over() -> None:
    job = Job("restarts=0")
    job.play(*HANGS, "advance 60s")
    job.report("n1", phase=Phase.STOPPING, failure=a_failure(error=TIMED_OUT))
    job.play("stopped n1 n2")
    [ended] = job.records(RunEnded)
    assert ended.report is not None
    assert (ended.report.node, ended.report.failure.hang) == ("n2", HangKind.STUCK)
    assert [each.node for each in ended.report.consequences] == ["n1"]
    assert ended.outcome.exit_code == 124
    assert job.stops == ["hung"]


def test_who_is_stopped_by_a_signal_is_named_where_ranks_only_send_and_receive() -> None:
    job = Job()
    job.play(*looked_at("stopped untold"), "stopped n1 n2")
    [ended] = job.records(RoundEnded)
    assert ended.report is not None
    assert ended.report.failure.message == "rank 0 on node n1 has been stopped by a signal; rank 1 is idle"
    assert ended.report.failure.age_s == 11.0, "since the last step"


@pytest.mark.parametrize("shown", ["stopped stopped", "stopped computes", "traced untold"])
def test_nobody_is_named_if_all_are_stopped_or_one_works_or_a_debugger_holds_one(shown: str) -> None:
    job = Job()
    job.play("advance 10s", f"seen {shown}", "advance 10s", f"seen {shown}", "advance 60s")
    assert job.stops == []


def test_a_time_limit_ends_no_round_whose_workers_are_all_stopped_and_the_end_of_the_job_names_them() -> None:
    job = Job("hang=10")
    job.play("advance 10s", "seen stopped stopped", "advance 10s", "seen stopped stopped", "ask stop default")
    assert job.stops == ["stop_asked"]
    stopped = "all 2 workers, such as rank 0 on node n1, have been stopped by a signal"
    assert job.desired("n1").remark == stopped
    job.report("n1", phase=Phase.STOPPED, killed=Killed((0,), 1, 30.0))
    job.play("stopped n2")
    assert job.run.durable.reason.endswith(f"rank 0 on node n1 (within 30 s); {stopped}")


def test_a_planned_stop_names_the_worker_that_hangs_where_others_may_not_end_in_time() -> None:
    job = Job("restarts=0")
    job.play(*HANGS, "ask restart default")
    seen = "rank 1 on node n2 stands in get (train.py:41) for 12 s; rank 0 waits in all_reduce 7"
    hung = f"the round hung on host host-n2: {seen}"
    assert [job.desired(node).remark for node in ("n1", "n2")] == [hung, hung]
    job.report("n1", phase=Phase.STOPPED, killed=Killed((0,), 1, 30.0))
    job.play("stopped n2")
    [ended] = job.records(RoundEnded)
    assert ended.reason.endswith(f"rank 0 on node n1 (within 30 s); {hung}")


@pytest.mark.parametrize(
    ("looks", "named"),
    [
        (
            ("seen waits stands", "advance 1s", "seen waits stands", "advance 1s"),
            "the round hung on host host-n2: rank 1 on node n2 stands in get (train.py:41) for 12 s; rank 0 waits in ",
        ),
        (("seen waits computes", "advance 2s"), ""),
        (("seen waits saves", "advance 2s"), ""),
    ],
    ids=["hangs", "saves", "writes"],
)
def test_a_planned_stop_whose_workers_do_not_end_looks_for_the_one_that_hangs(
    looks: tuple[str, ...], named: str
) -> None:
    job = Job("hang=60")
    job.play("ask stop default", "advance 3s", *looks)
    assert job.desired("n1").remark.startswith(named)
    job.report("n1", phase=Phase.STOPPED, killed=Killed((0,), 1, 10.0))
    job.play("stopped n2")
    assert named in job.run.durable.reason
    assert ("hung" in job.run.durable.reason) is bool(named)
    assert job.records(BusyWorkerAwaited) == []


@pytest.mark.parametrize("ask", ["ask stop default", "ask restart default", "leave n1"])
def test_a_planned_stop_names_the_worker_that_hangs_after_its_node_is_lost(ask: str) -> None:
    job = Job("restarts=0")
    job.play(*HANGS, ask)
    hung = job.desired("n1").remark
    job.play("drop n2", "advance 5s")
    assert "n2" not in job.run.members
    assert job.desired("n1").remark == hung != ""


def test_another_failure_than_torchs_timeout_proves_no_hang() -> None:
    job = Job("restarts=0")
    job.play(*HANGS, "fail n1", "stopped n1 n2")
    assert job.stops == ["worker_failed"]


def test_who_hangs_after_it_has_computed_is_named_all_the_same() -> None:
    job = Job()
    job.play(*looked_at("computes waits"), "advance 60s", "seen stands waits", "advance 1s", "seen stands waits")
    assert job.stops == ["hung"]


def _stands(job: Job, kinds: str, minutes: int) -> None:
    """Have a job looked at for so long, and see its workers like this at each look."""
    until = job.now + 60 * minutes
    while job.now < until and not job.stops:
        if job.looks("advance 1s"):
            job.play(f"seen {kinds}")


@pytest.mark.parametrize(
    ("doing", "awaited"), [("saves", "a disk"), ("runs", "the program rsync (process 99)")], ids=["disk", "program"]
)
def test_who_waits_for_what_is_outside_the_job_is_noted_and_borne_for_ten_minutes(doing: str, awaited: str) -> None:
    job = Job()
    _stands(job, f"{doing} waits", 9)
    assert job.stops == []
    noted = job.records(BusyWorkerAwaited)
    assert [record.reason for record in noted] == [
        f"waiting for rank 0 on node n1, which waits for {awaited} in get (train.py:41)"
    ]
    _stands(job, f"{doing} waits", 3)
    assert job.stops == ["hung"]
    assert 600 <= job.now - 11 <= 665, "the time counts from the first look, and there is one a minute"


def test_a_disk_that_answers_now_and_then_is_borne_for_longer() -> None:
    job = Job()
    for _ in range(4):
        _stands(job, "saves waits", 8)
        _stands(job, "computes waits", 2)
    assert job.stops == []


@pytest.mark.parametrize("shown", ["moves moves", "stands stands", "unknown waits", "silent waits", "debugged waits"])
def test_looks_that_show_no_hang_come_less_and_less_often(shown: str) -> None:
    job = Job()
    job.play("advance 10s", f"seen {shown}")
    pauses = []
    for _ in range(5):
        began = job.now
        while not job.looks("advance 1s"):
            pass
        pauses.append(round(job.now - began))
        job.play(f"seen {shown}")
    assert pauses == [10, 20, 40, 60, 60]
    assert job.stops == []


NOBODY_WAITS = "; no worker waits in a collective, so none is named: see nodeclient stacks"

ALL_STOPPED = (
    "; all 2 workers, such as rank 0 on node n1, have been stopped by a signal: "
    f"`kill -CONT {PID}` on its host lets it go on"
)

MAKES_GROUP = (
    "; rank 0 on node n1 stands in init_process_group after earlier collectives: if the script destroys its "
    "process group and makes another, start it by python -m workerlib.store; see nodeclient stacks"
)

NO_COLLECTIVES = (
    "; no worker reports a collective, so a hang cannot be seen: "
    "none has come to one yet, or they only send and receive, or torch has no flight recorder, or it is off; "
    "see nodeclient stacks"
)


@pytest.mark.parametrize(
    ("shown", "notice", "then"),
    [
        *((shown, NOBODY_WAITS, "moves stands") for shown in ("stands stands", "stands computes")),
        ("stopped stopped", ALL_STOPPED, "moves stands"),
        ("makes_group makes_group", MAKES_GROUP, "moves stands"),
        ("connects connects", NOBODY_WAITS, "moves stands"),
        ("untold untold", NO_COLLECTIVES, "untold moves"),
        ("unrecorded held", NO_COLLECTIVES, "untold moves"),
    ],
)
def test_where_no_worker_waits_nobody_is_named_and_status_says_so(shown: str, notice: str, then: str) -> None:
    job = Job()
    job.play("advance 10s", f"seen {shown}")
    assert job.reason.endswith(notice)
    job.play("advance 60s", f"seen {then}")
    assert notice not in job.reason, "one makes progress"


@pytest.mark.parametrize("waits", ["makes_group", "connects"])
def test_who_others_wait_for_where_no_recorder_shows_it_is_named(waits: str) -> None:
    job = Job()
    job.play(*looked_at(f"{waits} stands"), "stopped n1 n2")
    assert job.stops == ["hung"]
    assert job.run.durable.last_end_reason == "rank 1 on node n2 hung in round 1"


@pytest.mark.parametrize(("waits", "stops"), [("makes_group", ["hung"]), ("connects", [])])
def test_without_steps_collectives_may_complete_between_two_equal_stacks(waits: str, stops: list[str]) -> None:
    job = Job("hang=30", trained_s=0)
    job.play("advance 30s", f"seen {waits} stands", "advance 30s", f"seen {waits} stands")
    assert job.stops == stops


def test_a_pair_whose_second_look_is_lost_needs_only_another_second_one() -> None:
    job = Job()
    job.play("advance 10s", "seen waits stands", "advance 1s")
    assert job.looks("advance 10s") == 1
    job.play("seen waits stands")
    assert job.stops == ["hung"]


def test_a_lost_look_does_not_prolong_the_pause_after_a_pair() -> None:
    job = Job()
    job.play("advance 10s")
    assert job.looks("advance 10s") == 1
    job.play("seen computes waits", "advance 1s", "seen computes waits")
    assert job.looks("advance 10s") == 1


def test_an_answer_to_an_old_look_is_dropped() -> None:
    job = Job()
    job.play("advance 10s")
    old = job.look
    job.play("advance 10s", "seen waits stands", "advance 1s")
    newer = job.look
    assert old is not None
    assert newer is not None
    assert newer.number > old.number
    job.look = old
    job.play("seen waits stands")
    assert job.stops == []
    job.look = newer
    job.play("seen waits stands")
    assert job.stops == ["hung"]


@pytest.mark.parametrize("between", ["step n1 11", "trouble 30s"])
def test_after_a_step_and_while_nothing_can_be_recorded_a_second_look_shows_nothing(between: str) -> None:
    job = Job()
    job.play("advance 10s", "seen waits stands", "advance 1s")
    look = job.look
    job.play(between)
    job.look = look
    job.play("seen waits stands")
    assert (job.stops, job.looks("advance 5s")) == ([], 0)


def test_a_round_that_ends_between_two_looks_takes_its_look_along() -> None:
    job = Job()
    job.play("advance 10s", "seen waits stands", "advance 1s")
    look = job.look
    job.play("fail n1", "stopped n1 n2", "running n1 n2", "step n1 n2 30")
    job.look = look
    job.play("seen waits stands")
    assert (job.stops, job.state()) == (["worker_failed"], State.RUNNING)
    assert job.looks("advance 9s") == 0


def test_a_coordinator_that_starts_between_two_looks_looks_twice_again_and_restarts_once() -> None:
    job = Job()
    job.play("advance 10s", "seen waits stands", "die 1s")
    assert job.looks("reconnect n1 n2") == 1
    job.play("seen waits stands")
    assert job.stops == []
    job.play("advance 1s", "seen waits stands")
    assert job.stops == ["hung"]
    job.play("die 1s", "reconnect n1 n2", "stopped n1 n2")
    [ended] = job.records(RoundEnded)
    assert ended.charged
    assert job.stops == ["hung"]


def test_nobody_is_looked_at_while_a_node_is_not_connected() -> None:
    job = Job()
    job.play("advance 9.5s", "drop n2")
    assert job.looks("advance 0.6s") == 0
    assert job.looks("reconnect n2") == 1


@pytest.mark.parametrize("settings", ["hang=0", "launcher=torchrun"])
def test_without_an_alarm_and_with_torchrun_nobody_is_looked_at(settings: str) -> None:
    job = Job(settings)
    assert job.looks("advance 3000s") == 0
    says = job.reason.endswith("; hangs are not looked for (--hang-timeout off): see nodeclient stacks")
    assert says is (settings == "hang=0")


@pytest.mark.parametrize(("doing", "hang"), [("computes", HangKind.BUSY), ("saves", HangKind.STUCK)])
def test_who_says_how_long_it_may_take_wants_a_restart_for_whatever_reason(doing: str, hang: HangKind) -> None:
    job = Job("hang=30")
    assert job.looks("advance 29s") == 0
    job.play("advance 1s", f"seen {doing} waits", "advance 1s", f"seen {doing} waits", "stopped n1 n2")
    assert job.stops == ["hung"]
    assert job.run.durable.report is not None
    assert job.run.durable.report.failure.hang is hang
    fresh = Job("hang=30", trained_s=0)
    fresh.play("advance 30s", "seen computes waits", "advance 30s", "seen computes waits")
    assert fresh.stops == [], "before the first step a worker may compute for any time"
    assert fresh.reason.endswith("; waiting for rank 0 on node n1, which computes in evaluate (train.py:50)")


@pytest.mark.parametrize(
    ("doing", "hang", "does"),
    [
        ("stands", HangKind.STUCK, "stands in get (train.py:41)"),
        ("computes", HangKind.BUSY, "computes in evaluate (train.py:50)"),
        ("unknown", HangKind.STUCK, "stands in the kernel's futex_do_wait"),
    ],
)
def test_who_says_how_long_it_may_take_wants_a_restart_for_a_worker_that_does_not_end(
    doing: str, hang: HangKind, does: str
) -> None:
    job = Job("hang=30")
    job.play("advance 20s", "succeed n1", "advance 10s", f"seen ended {doing}")
    job.play("advance 20s", f"seen ended {doing}")
    assert job.stops == [], "it may take as long from the end of the other one, and one look shows nothing"
    job.play("advance 1s", f"seen ended {doing}", "stopped n2")
    assert job.stops == ["hung"]
    assert job.run.durable.report is not None
    failure = job.run.durable.report.failure
    assert (failure.rank, failure.hang, failure.age_s) == (1, hang, 31.0)
    assert failure.message == f"rank 1 on node n2 {does}; rank 0 has ended"


@pytest.mark.parametrize("doing", ["moves", "traced", "debugged", "silent", "ended"])
def test_a_worker_that_may_still_end_is_let_alone(doing: str) -> None:
    job = Job("hang=30")
    job.play("succeed n1", "advance 30s")
    _stands(job, f"ended {doing}", 3)
    assert job.stops == []


def test_a_worker_that_comes_to_a_collective_in_its_exit_is_let_alone() -> None:
    job = Job("hang=30")
    job.play("succeed n1", "advance 30s", "seen ended stands", "advance 1s", "seen ended waits")
    assert job.stops == []


@pytest.mark.parametrize("doing", ["computes", "unknown"])
def test_without_steps_a_worker_that_works_or_cannot_be_seen_may_take_any_time_to_end(doing: str) -> None:
    job = Job("hang=30", trained_s=0)
    job.play("succeed n1")
    _stands(job, f"ended {doing}", 15)
    assert job.stops == []


def test_a_worker_that_computes_while_nobody_waits_for_it_is_not_said_to_be_awaited() -> None:
    job = Job("hang=30", trained_s=0)
    job.play("succeed n1")
    _stands(job, "ended computes", 2)
    notice = "rank 1 on node n2 computes in evaluate (train.py:50); rank 0 has ended"
    assert job.reason.endswith(f"; {notice}")
    assert [record.reason for record in job.records(BusyWorkerAwaited)] == [notice]


@pytest.mark.parametrize("doing", ["saves", "runs"])
def test_without_steps_a_worker_that_waits_for_what_is_outside_the_job_has_ten_minutes_to_end(doing: str) -> None:
    job = Job("hang=30", trained_s=0)
    job.play("succeed n1")
    _stands(job, f"ended {doing}", 10)
    assert job.stops == []
    _stands(job, f"ended {doing}", 3)
    assert job.stops == ["hung"]


def test_without_steps_a_worker_that_does_not_end_stands_in_two_looks_as_far_apart_as_its_user_has_said() -> None:
    job = Job("hang=30", trained_s=0)
    assert job.looks("succeed n1", "advance 30s") == 1
    job.play("seen ended stands")
    assert job.looks("advance 29s") == 0
    job.play("advance 1s", "seen ended stands")
    assert job.stops == ["hung"]


@pytest.mark.parametrize("trained_s", [0, 1])
def test_a_worker_has_time_to_end_after_its_section(trained_s: int) -> None:
    job = Job("hang=30", trained_s=trained_s)
    job.play("succeed n1", "advance 30s", "section n2 upload limit=600s", "advance 200s", "section n2")
    until = job.now + 29
    while job.now < until:
        if job.looks("advance 1s"):
            job.play("seen ended stands")
    assert job.stops == []
    _stands(job, "ended stands", 3)
    assert job.stops == ["hung"]


def test_a_worker_that_does_not_end_may_have_begun_a_section_since_its_last_heartbeat() -> None:
    job = Job("hang=30")
    job.play("succeed n1", "advance 29.5s", "silence n2", "advance 0.5s", "seen ended stands")
    job.play("advance 1s", "seen ended stands", "section n2 upload limit=60s")
    assert job.looks("heal n2", "advance 59s") == 0
    assert job.stops == []


@pytest.mark.parametrize("trained_s", [0, 1])
def test_a_worker_that_crashes_leaves_none_behind_that_does_not_end(trained_s: int) -> None:
    job = Job("hang=30", trained_s=trained_s)
    job.play("advance 30s", "seen ended stands")
    _stands(job, "ended stands", 3)
    assert job.stops == [], "nobody has reported an end without an error"


def test_a_worker_that_does_not_end_does_no_harm_where_no_restart_was_asked_for() -> None:
    job = Job()
    job.play("succeed n1", "advance 10s", "seen ended stands", "advance 1000s", "seen ended stands")
    assert job.stops == []


def test_a_round_without_a_step_is_looked_at_where_its_user_has_said_how_long_it_may_take() -> None:
    job = Job("hang=30", trained_s=0)
    assert job.looks("advance 29s") == 0
    assert job.looks("advance 1s") == 1
    job.play("seen waits stands")
    assert job.looks("advance 29s") == 0, "nobody knows how long they have stood, so they are to stand for so long"
    assert job.looks("advance 1s") == 1
    assert job.stops == []
    job.play("seen waits stands", "stopped n1 n2")
    assert job.stops == ["hung"]
    assert job.run.durable.report is not None
    assert job.run.durable.report.failure.rank == 1
    assert Job(trained_s=0).looks("advance 3000s") == 0, "otherwise nobody is looked at"


def test_a_round_without_a_step_whose_workers_cannot_be_seen_says_so() -> None:
    job = Job("hang=30", trained_s=0)
    job.play("advance 30s", "seen unknown waits")
    assert job.reason.endswith("; rank 0 on node n1 cannot be looked at: import workerlib")
    job.play("ask stop default", "stopped n1 n2")
    assert "looked at" not in job.reason


def test_the_first_step_ends_the_looks_at_a_round_without_one() -> None:
    job = Job("hang=30", trained_s=0)
    job.play("advance 30s", "seen waits stands", "step n1 n2 1")
    assert job.looks("advance 29s") == 0
    assert job.looks("advance 2s") == 1, "it has stalled"
    job.play("seen waits stands", "advance 1s", "seen waits stands")
    assert job.stops == ["hung"]


def test_all_nodes_must_say_the_same() -> None:
    stage = play("join n1 min=2 max=2 hang=30")
    text = "\n".join(stage.play("join n2 min=2 max=2 hang=0"))
    assert "--hang-timeout is off on this node (n2), but 30 on n1" in text


# Sections


def test_a_section_may_take_as_long_as_it_says() -> None:
    job = Job(trained_s=5)
    job.play("section n1 eval limit=60s")
    assert job.reason.startswith("in section eval, at most 1 min 0 s; ")
    assert job.looks("advance 59s") == 0
    assert job.run.health == "well"
    assert job.looks("advance 2s") == 1
    assert "no step for 1 min 1 s" in job.reason


def test_the_time_of_a_section_is_no_slow_step_and_counts_for_nothing_after_it() -> None:
    job = Job(trained_s=5)
    job.play("section n1 eval limit=600s", "advance 300s", "section n1")
    assert job.looks("advance 0.9s") == 0
    job.play("step n1 n2 51")
    assert job.looks("advance 9s") == 0
    assert job.looks("advance 2s") == 1


def test_of_several_sections_the_one_that_may_go_on_for_the_longest_counts() -> None:
    job = Job()
    job.play("section n1 save limit=20s", "section n2 eval limit=40s")
    assert "in section eval" in job.reason
    assert job.looks("advance 39s") == 0
    assert job.looks("advance 2s") == 1


def test_a_section_that_begins_between_two_looks_is_no_hang() -> None:
    job = Job()
    job.play("advance 10s", "seen waits stands", "advance 1s", "section n1 eval limit=60s", "seen waits stands")
    assert job.stops == []


def test_a_section_that_begins_and_ends_within_a_stall_puts_the_looks_off_no_longer() -> None:
    job = Job()
    job.play("advance 10s", "seen waits stands", "section n1 eval limit=600s", "advance 60s")
    assert job.looks("section n1", "advance 1s") == 1
    job.play("seen waits stands", "advance 1s", "seen waits stands")
    assert job.stops == ["hung"]


@pytest.mark.parametrize("section", [True, False])
def test_nobody_is_a_culprit_before_its_node_can_have_reported_a_section(section: bool) -> None:
    job = Job()
    job.play("advance 9.5s", "silence n2", "advance 0.5s", "seen waits stands", "advance 1s", "seen waits stands")
    assert job.stops == [], "the section may have begun after the last heartbeat"
    if section:
        job.play("section n2 upload limit=60s")
        assert job.looks("heal n2", "advance 59s") == 0
        return
    assert job.looks("advance 0.5s", "heal n2", "advance 0.5s") == 1
    job.play("seen waits stands")
    assert job.stops == ["hung"]


def test_nodes_that_are_rarely_heard_are_heard_between_two_looks() -> None:
    job = Job(heartbeat_s=4.0)
    assert job.looks("advance 15s") == 1
    job.play("seen waits stands")
    assert job.looks("advance 3.9s") == 0
    assert job.looks("advance 0.2s") == 1
    job.play("seen waits stands")
    assert job.stops == ["hung"]


def test_a_new_round_is_in_no_section() -> None:
    job = Job()
    job.play(
        "section n1 eval limit=600s",
        "fail n1",
        "section n1",
        "stopped n1 n2",
        "running n1 n2",
        "step n1 n2 20",
    )
    assert job.looks("advance 10s") == 1
