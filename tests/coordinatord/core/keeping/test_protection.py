"""Which steps nodes have whole and protect: the last one is never given up before a newer one is safe."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from coordinatord.core.keeping.copy_plan import CopyPlan
from coordinatord.core.keeping.known import KeptState
from coordinatord.core.keeping.resume_plan import ResumePlan
from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.values.resume_point import ResumePoint, SpoiledStep
from coordinatord.protocol.kept_state import KeptParts, KeptStep
from tests.support.kept_runs import NODES, a_kept, a_write, keep, note, shard
from tests.support.kept_state import kept_parts


def named(kept: KeptState) -> list[int]:
    return [at.step for at in kept.protection.steps or ()]


def test_a_step_that_all_have_alike_is_the_whole_one_once_each_of_them_protects_it() -> None:
    """A node that has not heard yet what to protect may overwrite its own small state of the step."""
    kept = a_kept()
    alike = [kept_parts(1, 8, range(number, number + 1), world_size=2, shards=1) for number in range(2)]
    for number, parts in enumerate(alike):
        note(kept, number, parts)
    note(kept, 0, structs.replace(alike[0], protected=True))
    assert (named(kept), kept.protection.whole) == ([8], None)
    note(kept, 1)
    kept.protection.advance()
    assert kept.protection.whole == KeptStep(1, 8), "who has overwritten it is not waited for"


@pytest.mark.parametrize("write_comes_late", [False, True])
def test_state_that_all_have_alike_keeps_two_free_places_while_the_whole_step_is_written(
    write_comes_late: bool,
) -> None:
    """A save at an interval seldom overwrites the newest step: with one place most are left out."""
    kept, step, write = a_kept(), kept_parts(1, 8, protected=True), a_write(KeptStep(1, 8))
    note(kept, 0, structs.replace(step, protected=False))
    note(kept, 0, step)
    if write_comes_late:
        note(kept, 0, step, kept_parts(1, 16))
        assert named(kept) == [8, 16]
    kept.disk.begin(write)
    note(kept, 0, step, kept_parts(1, 16, protected=write_comes_late), kept_parts(1, 24))
    assert (kept.protection.whole, named(kept)) == (KeptStep(1, 8), [8])
    write.is_committing = True
    note(kept, 0, step, kept_parts(1, 32), kept_parts(1, 24))
    assert named(kept) == [8, 32]


def test_an_older_step_takes_no_place_and_a_later_round_comes_first() -> None:
    kept = a_kept()
    kept.begin_round(KeptStep(2, 40))
    kept.record_parts("n0", (kept_parts(1, 90), kept_parts(2, 30)))
    assert not kept.protection.advance()
    kept.record_parts("n0", (kept_parts(3, 2),))
    kept.protection.advance()
    assert kept.protection.candidate == KeptStep(3, 2)


def test_nothing_is_given_up_after_a_restart_before_all_members_are_heard() -> None:
    kept = a_kept(members=NODES)
    assert kept.protection.steps is None
    for number in range(NODES - 1):
        kept.record_parts(f"n{number}", (shard(number, 8, protected=True), shard(number, 16)))
        kept.protection.advance()
        assert kept.protection.steps is None
    kept.record_parts("n2", (shard(2, 8, protected=True), shard(2, 16)))
    kept.protection.advance()
    assert named(kept) == [8, 16]


def test_what_a_round_resumes_from_is_protected_after_a_restart_until_it_does_steps() -> None:
    starting = {"state": State.STARTING, "resume": ResumePoint(1, 8, 3, 3, 0)}
    assert a_kept(1, **starting).protection.steps == (KeptStep(1, 8),)
    assert a_kept(1, **starting, stepped=True).protection.steps is None
    assert a_kept(1, **starting | {"state": State.STOPPED}).protection.steps is None


class Memory:
    """A node with three places, which knows what it was last told to protect."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.places: list[int | None] = [None, None, None]
        self.protected: tuple[KeptStep, ...] = ()

    def save(self, step: int, place: int) -> None:
        """Overwrite a place that is not protected, if the one that was drawn is."""
        named = {at.step for at in self.protected}
        free = [number for number, kept in enumerate(self.places) if kept not in named]
        self.places[free[place % len(free)]] = step

    def report(self) -> tuple[KeptParts, ...]:
        """Return what it holds."""
        named = {at.step for at in self.protected}
        return tuple(shard(self.number, step, protected=step in named) for step in self.places if step is not None)


@given(
    st.lists(
        st.tuples(st.integers(0, NODES - 1), st.sampled_from(["save", "report", "hear"]), st.integers(0, 2)),
        max_size=200,
    )
)
def test_once_a_step_is_whole_and_protected_one_is_for_ever(acts: list[tuple[int, str, int]]) -> None:
    """Nodes save when they like and wherever they may, and messages are as late as can be."""
    kept = a_kept()
    nodes = [Memory(number) for number in range(NODES)]
    steps = [0] * NODES
    for number, act, draw in acts:
        node = nodes[number]
        if act == "save":
            steps[number] += 1 + draw
            if steps[number] not in node.places:
                node.save(steps[number], draw)
        elif act == "report":
            note(kept, number, *node.report())
        else:
            node.protected = kept.protection.steps or ()
        if kept.protection.whole is not None:
            assert all(kept.protection.whole.step in node.places for node in nodes)


def test_a_part_that_a_round_has_let_go_makes_no_step_whole_when_the_others_come_back() -> None:
    """It may be overwritten already, though the last report of its node says that it is protected."""
    kept = a_kept(members=NODES)
    for number in range(NODES):
        note(kept, number, *([] if number else [shard(number, 8, protected=True)]))
    kept.begin_round(None)
    for number in range(1, NODES):
        note(kept, number, shard(number, 8, protected=True))
    assert (kept.protection.whole, named(kept)) == (None, [])


def test_a_copy_of_a_step_that_is_protected_for_the_disk_alone_is_none_any_more_once_it_is_written() -> None:
    kept, at = a_kept(), KeptStep(1, 8)
    write = a_write(at)
    kept.disk.begin(write)
    kept.record_parts("n1", (shard(0, 8, protected=True),))
    kept.copies.add(at, CopyPlan({"n0": "n1"}, wanted={"n1": {"n0": [0]}}))
    assert kept.copy_of("n0") == ("n1", at)
    write.is_committing = True
    assert kept.copy_of("n0") is None


@pytest.mark.parametrize(
    ("reports", "candidate", "whole"),
    [
        ([], False, False),
        (["kept"], True, False),
        (["kept", "protected"], False, True),
        (["kept", "lost"], False, False),
        (["kept", "lost", "kept"], False, False),
        (["kept", "protected", "lost"], False, True),
    ],
)
def test_how_a_step_stands_after_what_a_node_reports_last(reports: list[str], candidate: bool, whole: bool) -> None:
    kept, at = a_kept(), KeptStep(1, 8)
    keep(kept, 8, protected=True, nodes=NODES - 1)
    for report in reports:
        note(kept, NODES - 1, *([] if report == "lost" else [shard(NODES - 1, 8, protected=report == "protected")]))
        note(kept, 0, shard(0, 8, protected=True))
    assert (kept.protection.candidate == at, kept.protection.whole == at) == (candidate, whole)


def test_the_last_place_of_a_round_that_ends_is_not_taken() -> None:
    kept = a_kept()
    kept.disk.begin(a_write(KeptStep(1, 4)))
    kept.protection.is_stopping = True
    keep(kept, 8)
    assert named(kept) == [4]
    kept.disk.drop()
    keep(kept, 8, protected=True)
    assert named(kept) == [8]


def test_a_round_begins_with_a_place_for_its_last_step_though_an_older_one_is_being_written() -> None:
    kept = a_kept()
    kept.disk.begin(a_write(KeptStep(1, 4)))
    kept.protection.whole = KeptStep(1, 8)
    kept.record_parts("n0", (kept_parts(1, 8), kept_parts(1, 16)))
    kept.begin_round(KeptStep(1, 16))
    assert named(kept) == [16, 4]


def test_a_step_from_which_a_round_could_not_resume_does_not_replace_the_older_whole_one() -> None:
    kept = a_kept()
    keep(kept, 8, protected=True)
    keep(kept, 16)
    assert named(kept) == [8, 16]
    kept.run.durable.spoiled = (SpoiledStep(KeptStep(1, 16), 2),)
    keep(kept, 16, protected=True)
    keep(kept, 24)
    assert named(kept) == [8]


def test_a_step_from_which_a_round_could_not_resume_is_not_the_whole_one_after_a_restart() -> None:
    kept = a_kept(members=1, spoiled=(SpoiledStep(KeptStep(1, 16), 2),))
    note(kept, 0, *(kept_parts(1, step, protected=True) for step in (8, 16)))
    assert kept.protection.whole == KeptStep(1, 8)


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
