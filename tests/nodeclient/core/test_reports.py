"""What a node reports of a failure, of the ends of its workers, and of the time since then."""

import pytest
from msgspec.structs import replace

from coordinatord.protocol.fields import DURATION_S_MAX
from coordinatord.protocol.messages import Follower, Goal, LastOutput, Phase
from nodeclient.core.agent_settings import ABORT_TIMEOUT_S
from nodeclient.core.events import WorkerExited
from tests.support.bench import SETTINGS, Bench
from tests.support.builders import LOST_PEER, a_diagnosis, an_assignment


def test_a_failure_carries_what_is_known_of_it_within_the_bounds_of_the_protocol() -> None:
    bench = Bench().running()
    lines = tuple(f"line {number}\x1b" for number in range(100))
    diagnosis = a_diagnosis(pid=7, message="m" * 1000, error="ValueError: " + "e" * 1000, last_lines=lines)
    bench.now = 10.0
    bench.submit(WorkerExited(0, 1, diagnosis, age_s=0.25))
    failure = bench.failure
    assert (failure.pid, len(failure.message), len(failure.error), failure.age_s) == (7, 512, 512, 0.25)
    assert failure.last_lines[-1] == "line 99 "
    assert len(failure.last_lines) == 40


def test_a_failure_from_before_the_stop_counts_though_it_is_reported_after_it() -> None:
    bench = Bench().running()
    bench.now = 10.0
    bench.receive(Goal.STOP)
    bench.now = 10.2
    bench.alive.clear()
    bench.submit(WorkerExited(0, 5, a_diagnosis(error="ValueError: no"), age_s=0.3))
    failure = bench.failure
    assert (failure.exit_code, failure.error, round(failure.age_s, 3)) == (5, "ValueError: no", 0.3)
    assert bench.observed.phase is Phase.STOPPING
    bench.submit(WorkerExited(1, 6, a_diagnosis(), age_s=0.25))
    assert bench.failure.followers == (Follower(1, 6),)


NAME = "NameError: name 'lr' is not defined"


@pytest.mark.parametrize(
    ("is_stopped", "exits", "failed", "followers"),
    [
        pytest.param(
            False,
            [(10.0, 0, 1, "OSError: no file of rank 0", 0.0), (10.0, 1, 1, "OSError: no file of rank 1", 0.0)],
            (0, False),
            (Follower(1, 1, same_error=True),),
            id="the same error is told apart",
        ),
        pytest.param(
            False,
            [(10.0, 0, 1, NAME, 0.0), (10.0, 1, -15, NAME, 0.0), (10.0, 2, -15, "OSError: a signal", 0.0)],
            (0, False),
            (Follower(1, -15, same_error=True),),
            id="it counts though its worker was stopped before it had exited",
        ),
        pytest.param(
            False,
            [(10.0, 0, 3, "", 0.0), (11.0, 1, 3, "", 1.5), (11.0, 2, 3, "", 0.0), (11.0, 3, 4, "", 0.0)],
            (0, False),
            (Follower(1, 3, same_error=True), Follower(2, 3, same_error=True), Follower(3, 4)),
            id="an exit code of the script is the same error also after the signal",
        ),
        pytest.param(
            False,
            [(10.0, 0, -11, "", 0.0), (11.0, 1, -11, "", 1.5), (11.0, 2, -11, "", 0.0)],
            (0, False),
            (Follower(1, -11, same_error=True), Follower(2, -11)),
            id="a signal that ends a worker is the same error only before that of its node",
        ),
        pytest.param(
            False,
            [(10.0, 1, 1, LOST_PEER, 0.1), (10.0, 2, 1, LOST_PEER, 0.1), (10.0, 0, 1, "ValueError: no", 0.1)],
            (0, False),
            (Follower(1, 1), Follower(2, 1)),
            id="a lost connection gives way to another error, and is not the same",
        ),
        pytest.param(
            True,
            [
                (10.0, 0, -15, "", 0.0),
                (10.0, 1, -15, LOST_PEER, 0.0),
                *((10.0, rank, -15, NAME, 0.0) for rank in (2, 3)),
            ],
            (2, True),
            (Follower(3, -15, same_error=True),),
            id="an exception of a stopped worker is reported to be compared",
        ),
        pytest.param(
            True,
            [(10.0, 0, -15, "", 0.0), (10.0, 1, 1, "", 0.0), (10.0, 2, 3, "", 0.0), (10.0, 3, 3, "", 0.0)],
            (2, True),
            (Follower(3, 3, same_error=True),),
            id="so is an exit code of the script",
        ),
        pytest.param(
            True,
            [*((10.2, rank, -15, NAME, 0.0) for rank in (0, 1)), (10.2, 2, 1, NAME, 0.5)],
            (2, False),
            (Follower(0, -15, same_error=True), Follower(1, -15, same_error=True)),
            id="a stopped worker follows one that failed before and is seen only after it",
        ),
    ],
)
def test_what_came_first_is_the_failure_and_the_same_error_of_others_is_told(
    exits: list[tuple[float, int, int, str, float]],
    failed: tuple[int, bool],
    followers: tuple[Follower, ...],
    *,
    is_stopped: bool,
) -> None:
    bench = Bench(replace(SETTINGS, workers=4)).running()
    bench.now = 10.0
    if is_stopped:
        bench.receive(Goal.STOP)
    for now, rank, exit_code, error, age_s in exits:
        bench.now = now
        bench.exited(rank, exit_code, error, age_s)
    assert (bench.failure.rank, bench.failure.stopped) == failed
    assert bench.failure.followers == followers
    bench.all_exited(-15)
    bench.swept()
    assert bench.observed.phase is (Phase.STOPPED if is_stopped else Phase.FAILED)


@pytest.mark.parametrize(
    ("exit_code", "failed", "age_s", "ended"),
    [
        pytest.param(7, 0, 1.0, [], id="it failed first"),
        pytest.param(0, 1, 0.5, [(0, 1.0)], id="it had ended well, and left its peer behind"),
        pytest.param(-9, 1, 0.5, [], id="it was killed, perhaps by its node"),
    ],
)
def test_a_worker_has_ended_when_its_program_was_over(
    exit_code: int, failed: int, age_s: float, ended: list[tuple[int, float]]
) -> None:
    bench = Bench().running()
    bench.now = 10.0
    bench.exited(1, 1, LOST_PEER)
    bench.now = 10.5
    bench.exited(0, exit_code, age_s=0.25, over_s=0.75)
    assert (bench.failure.rank, bench.failure.age_s) == (failed, age_s)
    assert [(worker.rank, worker.age_s) for worker in bench.observed.ended] == ended


def test_what_the_first_worker_that_exited_with_0_wrote_is_reported_once_the_round_is_over_here() -> None:
    bench, said = Bench().running(), LastOutput(("no data is left",), "/logs/0/stderr.log")
    bench.all_exited(0)
    assert [ended.output for ended in bench.observed.ended] == [None, None]
    bench.swept(said)
    assert bench.observed.phase is Phase.SUCCEEDED
    assert [ended.output for ended in bench.observed.ended] == [said, None]
    bench.receive(Goal.RUN, round=2, assignment=an_assignment())
    assert bench.observed.ended == ()


def test_a_failure_is_reported_with_its_age_which_stays_legal_however_old_it_is() -> None:
    bench = Bench().running()
    bench.exited(1, -9)
    bench.advance(ABORT_TIMEOUT_S)
    bench.exited(0, -9)
    bench.now += 0.5
    bench.swept()
    for age_s in (ABORT_TIMEOUT_S + 0.5, DURATION_S_MAX):
        assert bench.failure.age_s == age_s
        bench.now += 2.0 * DURATION_S_MAX


def test_a_node_that_comes_back_says_for_how_long_it_has_had_no_workers() -> None:
    bench = Bench().running(outage_grace_s=7.0)
    bench.close()
    bench.advance(9.0)
    assert bench.observed.idle_s == 0.0, "they are ending"
    bench.all_exited(-15)
    bench.swept()
    bench.now += 4.0
    assert (bench.observed.phase, bench.observed.idle_s) == (Phase.STOPPED, 4.0)
    bench.now += 2 * DURATION_S_MAX
    assert bench.observed.idle_s == DURATION_S_MAX
