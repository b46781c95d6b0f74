"""Which divergences of replicas are found, which ranks are named, and where that is shown."""

import pytest

from coordinatord.core.rounds.values.records import ReplicasDiverged
from coordinatord.core.watching.divergence_watch import STEPS_MAX, UNCLEAR_MAX
from tests.support.running_job import Job


def _diverged(job: Job) -> list[ReplicasDiverged]:
    return job.records(ReplicasDiverged)


def test_a_rank_that_differs_from_most_is_named_with_its_node_and_the_steps() -> None:
    job = Job("workers=2")
    job.play("digest n1 n2 16 7 7", "digest n1 32 7 7", "digest n2 32 7 9")
    [found] = _diverged(job)
    assert (found.round, found.step, found.agreed, found.ranks) == (1, 32, 16, (3,))
    assert found.reason == (
        "replicas diverged after step 16, by step 32: "
        "rank 3 on node n2 has other parameters or optimizer state than 3 ranks that should have the same"
    )
    assert job.stops == [], "it is only reported"
    assert job.reason.endswith(f"; {found.reason}")
    job.play("advance 2s")
    assert [member.session.sent and member.session.sent.remark for member in job.run.members.values()] == (
        [found.reason] * 2
    )


def test_of_two_that_differ_nobody_can_say_which_is_wrong() -> None:
    job = Job()
    job.play("digest n1 n2 16 7", "digest n1 32 7", "digest n2 32 9")
    [found] = _diverged(job)
    assert found.ranks == ()
    assert found.reason == (
        "replicas diverged after step 16, by step 32: ranks 0, 1 on nodes n1, n2 should have the same parameters and "
        "optimizer state, and do not: nobody can say which is wrong"
    )


def test_replicas_that_were_never_alike_are_said_to_be_that() -> None:
    job = Job("workers=2")
    job.play("digest n1 16 1 2", "digest n2 16 3 4", "digest n1 32 5 6", "digest n2 32 7 8")
    [found] = _diverged(job)
    assert (found.agreed, found.ranks) == (None, ())
    assert found.reason.startswith("replicas are not alike at step 16, and were at no earlier step that is known: ")


def test_only_ranks_with_the_same_shard_should_be_alike() -> None:
    job = Job("workers=3")
    job.play("digest n1 n2 16 7 8 9 shards=0,1,2")
    assert not _diverged(job)
    job.play("digest n1 32 7 8 9 shards=0,1,2", "digest n2 32 7 6 9 shards=0,1,2")
    assert "ranks 1, 4 on nodes n1, n2 should have the same" in _diverged(job)[0].reason


@pytest.mark.parametrize("count", [1, STEPS_MAX])
def test_only_digests_of_one_step_are_compared(count: int) -> None:
    job = Job()
    for step in range(count):
        job.play(f"digest n1 {16 + 2 * step} 7", f"digest n2 {17 + 2 * step} 9")
    assert not _diverged(job)


@pytest.mark.parametrize(("of_n2", "unclear", "ranks"), [("7 7", 0, (2,)), ("7", UNCLEAR_MAX, ())])
def test_a_rank_that_reports_no_digests_any_more_hides_no_other(
    of_n2: str, unclear: int, ranks: tuple[int, ...]
) -> None:
    job = Job("workers=3")
    job.play("digest n1 n2 16 7 7 7")
    first, last = (32 + 16 * count for count in (unclear, unclear + STEPS_MAX))
    for step in range(32, last + 1, 16):
        assert not _diverged(job)
        job.play(f"digest n1 {step} 7 7 9", f"digest n2 {step} {of_n2}")
    [found] = _diverged(job)
    assert (found.step, found.agreed, found.ranks) == (first, 16, ranks)


def test_ranks_that_report_fewer_steps_show_later_which_rank_is_wrong() -> None:
    job = Job("workers=2")
    job.play("digest n1 n2 16 7 7")
    for step in range(32, 32 * 16, 16):
        job.play(f"digest n1 {step} 7 9")
    assert not _diverged(job)
    job.play("digest n1 512 7 9", "digest n2 512 7 7")
    [found] = _diverged(job)
    assert (found.step, found.agreed, found.ranks) == (512, 16, (1,))


def test_a_majority_of_the_ranks_that_report_names_none_if_it_is_none_of_all() -> None:
    job = Job("workers=3")
    for step in range(16, 16 * STEPS_MAX * 4, 16):
        job.play(f"digest n1 {step} 7 7 9")
    assert not _diverged(job)
    job.play(f"digest n1 {step} 7 7 9", f"digest n2 {step} 9 9 9")
    [found] = _diverged(job)
    assert found.ranks == (0, 1)


def test_a_restarted_coordinator_does_not_record_a_divergence_again() -> None:
    job = Job("workers=2")
    job.play("digest n1 16 7 7", "digest n2 16 7 9")
    job.play("die 1s", "advance 3s", "digest n1 32 7 7", "digest n2 32 7 9")
    assert len(_diverged(job)) == 1
    assert job.reason.endswith(_diverged(job)[0].reason)


def test_digests_of_more_workers_than_a_node_has_are_not_those_of_others() -> None:
    job = Job()
    job.play("digest n1 16 7 9", "digest n2 16 7")
    assert not _diverged(job)
