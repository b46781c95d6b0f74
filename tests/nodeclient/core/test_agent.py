"""What a node reports with a time, and what it says of many things: its stories tell of all else."""

from coordinatord.protocol.fields import DURATION_S_MAX
from coordinatord.protocol.messages import Phase
from nodeclient.core.agent_settings import ABORT_TIMEOUT_S
from nodeclient.core.effects import Notice, Waiting
from tests.support.bench import Bench


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


def test_reasons_that_are_never_the_same_do_not_fill_a_log() -> None:
    bench = Bench()
    for number in range(1000):
        bench.close(f"error {number}")
    assert bench.count(Notice) + bench.count(Waiting) < 100
