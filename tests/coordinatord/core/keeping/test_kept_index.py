"""What is known of the parts that nodes keep, and what hangs on it: which steps are whole, and who gets what."""

from coordinatord.core.keeping.known import KeptState
from coordinatord.core.keeping.resume_plan import ResumePlan
from coordinatord.core.rounds.values.resume_point import ResumePoint
from coordinatord.protocol.kept_state import KeptStep
from tests.support.kept_runs import NODES, a_kept, keep, note, shard
from tests.support.kept_state import kept_parts


def test_a_node_that_is_gone_takes_its_parts_along() -> None:
    kept = a_kept()
    keep(kept, 8)
    kept.record_parts("n1", ())
    assert not kept.index.is_whole(KeptStep(1, 8))
    for number in range(NODES):
        kept.record_parts(f"n{number}", ())
    assert not kept.index
    assert kept.index.steps() == []


def test_a_step_on_which_ranks_differed_stays_out_even_if_all_of_them_go_and_one_comes_back() -> None:
    kept, at = a_kept(), KeptStep(1, 8)
    alike = [kept_parts(1, 8, range(rank, rank + 1), world_size=2, digest=rank) for rank in range(2)]
    note(kept, 0, alike[0])
    assert kept.index.is_whole(at)
    note(kept, 1, alike[1])
    for number in range(2):
        assert not kept.index.is_whole(at)
        kept.record_parts(f"n{number}", ())
    note(kept, 0, alike[0])
    assert kept.index.differs(at)
    assert not kept.index.is_whole(at)
    assert kept.protection.candidate is None


def a_plan(kept: KeptState, step: int) -> ResumePlan:
    """Make the plan of a round that resumes from a step, and have it kept."""
    at = KeptStep(1, step)
    kept.begin_round(at)
    kept.plan = ResumePlan(ResumePoint(1, step, NODES, NODES, 0), kept.index.holders(at))
    return kept.plan


def test_the_plan_of_a_round_stands_while_all_of_its_parts_do() -> None:
    kept = a_kept()
    keep(kept, 8)
    plan = a_plan(kept, 8)
    keep(kept, 8, protected=True)
    kept.record_parts("n3", (shard(0, 8),))
    kept.record_parts("n0", (shard(0, 8), shard(0, 16)))
    kept.record_parts("n0", (shard(0, 8),))
    assert kept.plan is plan, "what comes and goes of other steps does not matter, nor do further copies of this one"
    kept.record_parts("n1", ())
    assert kept.plan is None


def test_the_plan_of_a_round_is_made_anew_when_a_part_comes_that_it_lacks() -> None:
    kept = a_kept()
    keep(kept, 8, nodes=2)
    plan = a_plan(kept, 8)
    kept.record_parts("n2", (shard(2, 4),))
    assert kept.plan is plan
    kept.record_parts("n2", (shard(2, 8),))
    assert kept.plan is None
