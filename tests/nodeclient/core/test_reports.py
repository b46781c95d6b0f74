"""A node's report of a failure, and its display of the root cause that it receives."""

from msgspec.structs import replace

from coordinatord.protocol.codec import decode, encode
from coordinatord.protocol.fields import RANKS_MAX
from coordinatord.protocol.messages import Follower, Goal, LastOutput, Observed, Phase
from nodeclient.core.events import WorkerExited
from tests.support.bench import SETTINGS, Bench
from tests.support.builders import LOST_PEER, a_diagnosis, an_assignment


def test_a_failure_carries_what_is_known_of_it_within_the_bounds_of_the_protocol() -> None:
    bench = Bench().running()
    lines = tuple(f"line {number}\x1b" for number in range(100))
    diagnosis = a_diagnosis(pid=7, message="m" * 1000, error="ValueError: " + "e" * 1000, last_lines=lines)
    bench.now = 10.0
    bench.submit(WorkerExited(0, 1, diagnosis, age_s=0.25))
    failure = bench.observed.failure
    assert failure is not None
    assert (failure.pid, len(failure.message), len(failure.error), failure.age_s) == (7, 512, 512, 0.25)
    assert failure.last_lines[-1] == "line 99 "
    assert len(failure.last_lines) == 40


def test_a_failure_is_reported_though_the_coordinator_gave_a_rank_beyond_all_limits() -> None:
    bench = Bench().running(assignment=an_assignment(first_rank=RANKS_MAX, world_size=RANKS_MAX))
    bench.exited(1, 3)
    assert decode(encode(bench.observed), Observed).failure == bench.observed.failure
    assert bench.observed.failure is not None
    assert bench.observed.failure.rank == RANKS_MAX


def test_a_failure_from_before_the_stop_counts_though_it_is_reported_after_it() -> None:
    bench = Bench().running()
    bench.now = 10.0
    bench.receive(Goal.STOP)
    bench.now = 10.2
    bench.alive.clear()
    bench.submit(WorkerExited(0, 5, a_diagnosis(error="ValueError: no"), age_s=0.3))
    failure = bench.observed.failure
    assert failure is not None
    assert (failure.exit_code, failure.error, round(failure.age_s, 3)) == (5, "ValueError: no", 0.3)
    assert bench.observed.phase is Phase.STOPPING
    bench.submit(WorkerExited(1, 6, a_diagnosis(), age_s=0.25))
    assert bench.observed.failure is not None
    assert bench.observed.failure.followers == (Follower(1, 6),)


def test_a_worker_that_failed_with_the_same_error_is_told_apart() -> None:
    bench = Bench().running()
    bench.submit(WorkerExited(0, 1, a_diagnosis(error="OSError: no file of rank 0")))
    bench.alive.clear()
    bench.submit(WorkerExited(1, 1, a_diagnosis(error="OSError: no file of rank 1")))
    assert bench.observed.failure is not None
    assert bench.observed.failure.followers == (Follower(1, 1, same_error=True),)


def test_a_worker_with_the_same_error_has_failed_though_it_was_stopped_before_it_had_exited() -> None:
    bench = Bench(replace(SETTINGS, workers=4)).running()
    bench.exited(0, 1, "NameError: name 'lr' is not defined")
    bench.exited(1, -15, "NameError: name 'lr' is not defined")
    bench.exited(2, -15, "OSError: a signal")
    bench.exited(3, -15)
    failure = bench.observed.failure
    assert failure is not None
    assert failure.followers == (Follower(1, -15, same_error=True),)


def test_an_exit_code_without_an_exception_is_the_same_error_only_before_the_signal() -> None:
    bench = Bench(replace(SETTINGS, workers=3)).running()
    bench.now = 10.0
    bench.exited(0, 3)
    bench.now = 11.0
    bench.exited(1, 3, age_s=1.5)
    bench.exited(2, 3)
    failure = bench.observed.failure
    assert failure is not None
    assert failure.followers == (Follower(1, 3, same_error=True), Follower(2, 3))


def test_an_exception_of_a_worker_that_is_stopped_is_reported_to_be_compared_but_as_no_failure_of_the_node() -> None:
    bench = Bench(replace(SETTINGS, workers=4)).running()
    bench.now = 10.0
    bench.receive(Goal.STOP)
    bench.exited(0, -15)
    bench.exited(1, -15, LOST_PEER)
    bench.exited(2, -15, "NameError: name 'lr' is not defined")
    bench.exited(3, -15, "NameError: name 'lr' is not defined")
    failure = bench.observed.failure
    assert failure is not None
    assert (failure.rank, failure.stopped, failure.followers) == (2, True, (Follower(3, -15, same_error=True),))
    bench.swept()
    assert bench.observed.phase is Phase.STOPPED


def test_a_worker_that_was_stopped_follows_one_that_had_failed_before_and_is_seen_only_after_it() -> None:
    bench = Bench(replace(SETTINGS, workers=3)).running()
    bench.now = 10.0
    bench.receive(Goal.STOP)
    bench.now = 10.2
    bench.exited(0, -15, "NameError: name 'lr' is not defined")
    bench.exited(1, -15, "NameError: name 'lr' is not defined")
    bench.exited(2, 1, "NameError: name 'lr' is not defined", age_s=0.5)
    failure = bench.observed.failure
    assert failure is not None
    assert (failure.rank, failure.stopped) == (2, False)
    assert failure.followers == (Follower(0, -15, same_error=True), Follower(1, -15, same_error=True))


def test_lost_connections_are_not_the_same_error_as_that_of_the_worker_that_takes_their_place() -> None:
    bench = Bench(replace(SETTINGS, workers=3)).running()
    bench.now = 10.0
    for rank, error in ((1, LOST_PEER), (2, LOST_PEER), (0, "ValueError: no")):
        bench.alive.discard(rank)
        bench.submit(WorkerExited(rank, 1, a_diagnosis(error=error), age_s=0.1))
    assert bench.observed.failure is not None
    assert bench.observed.failure.rank == 0
    assert bench.observed.failure.followers == (Follower(1, 1), Follower(2, 1))


def test_what_the_first_worker_that_exited_with_0_wrote_is_reported_once_the_round_is_over_here() -> None:
    bench, said = Bench().running(), LastOutput(("no data is left",), "/logs/0/stderr.log")
    bench.all_exited(0)
    assert [ended.output for ended in bench.observed.ended] == [None, None]
    bench.swept(said)
    assert bench.observed.phase is Phase.SUCCEEDED
    assert [ended.output for ended in bench.observed.ended] == [said, None]
    bench.receive(Goal.RUN, round=2, assignment=an_assignment())
    assert bench.observed.ended == ()
