"""Which steps are whole, and which are protected: the last whole one is never given up before a newer one is safe."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from coordinatord.core.keeping.copy_plan import CopyPlan
from coordinatord.core.keeping.kept_index import KeptIndex
from coordinatord.core.keeping.resume_plan import ResumePlan
from coordinatord.core.rounds.state.durable import DurableRun, State
from coordinatord.core.rounds.values.resume_point import ResumePoint
from coordinatord.core.rounds.values.time_ledger import Ledger
from coordinatord.protocol.kept_state import KeptParts, KeptStep
from tests.support.builders import a_member, a_spec
from tests.support.kept_state import kept_parts

NODES = 3


def a_record(members: int = 0) -> DurableRun:
    run = DurableRun("job", "e-1", a_spec(), "n0", entered_at=0.0, ledger=Ledger(0.0))
    run.members = {f"n{number}": a_member(f"n{number}").durable for number in range(members)}
    return run


def shard(number: int, step: int, *, protected: bool = False) -> KeptParts:
    ranks = range(number, number + 1)
    return kept_parts(1, step, ranks, world_size=NODES, shards=NODES, protected=protected)


def named(index: KeptIndex) -> list[int]:
    return [at.step for at in index.protected or ()]


def note(index: KeptIndex, number: int, *parts: KeptParts) -> bool:
    """Take in what a node keeps, where no node takes copies; return whether other steps are to be protected."""
    index.note(f"n{number}", parts)
    changed = index.advance()
    for at in index.unplanned:
        index.copies[at] = CopyPlan({})
    return changed


def keep(index: KeptIndex, step: int, *, protected: bool = False, nodes: int = NODES) -> None:
    for number in range(nodes):
        note(index, number, shard(number, step, protected=protected))


def test_a_step_is_protected_once_all_hold_it_and_is_the_whole_one_once_all_say_that_they_protect_it() -> None:
    index = KeptIndex(a_record())
    keep(index, 8, nodes=2)
    assert index.protected == ()
    keep(index, 8)
    assert (named(index), index.whole) == ([8], None)
    keep(index, 8, protected=True, nodes=2)
    assert (named(index), index.whole) == ([8], None)
    keep(index, 8, protected=True)
    assert (named(index), index.whole) == ([8], KeptStep(1, 8))


def test_a_step_that_all_have_alike_is_the_whole_one_once_each_of_them_protects_it() -> None:
    """A node that has not heard yet what to protect may overwrite its own small state of the step."""
    index = KeptIndex(a_record())
    alike = [kept_parts(1, 8, range(number, number + 1), world_size=2, shards=1) for number in range(2)]
    for number, parts in enumerate(alike):
        note(index, number, parts)
    note(index, 0, structs.replace(alike[0], protected=True))
    assert (named(index), index.whole) == ([8], None)
    note(index, 1)
    index.advance()
    assert index.whole == KeptStep(1, 8), "who has overwritten it is not waited for"


def test_the_whole_step_stays_protected_while_its_successor_is_lost_somewhere() -> None:
    index = KeptIndex(a_record())
    keep(index, 8)
    keep(index, 8, protected=True)
    for number in range(NODES):
        changed = note(index, number, shard(number, 8, protected=True), shard(number, 16))
    assert changed
    assert named(index) == [8, 16]
    assert note(index, 1, shard(1, 8, protected=True))
    assert named(index) == [8]
    again = note(index, 1, shard(1, 8, protected=True), shard(1, 16))
    assert not again, "a node may have given it up when it was not named"


def test_an_older_step_takes_no_place_and_a_later_round_comes_first() -> None:
    index = KeptIndex(a_record())
    index.begin_round(KeptStep(2, 40))
    index.note("n0", (kept_parts(1, 90), kept_parts(2, 30)))
    assert not index.advance()
    index.note("n0", (kept_parts(3, 2),))
    index.advance()
    assert index.candidate == KeptStep(3, 2)


def test_nothing_is_given_up_after_a_restart_before_all_members_are_heard() -> None:
    index = KeptIndex(a_record(members=NODES))
    assert index.protected is None
    for number in range(NODES - 1):
        index.note(f"n{number}", (shard(number, 8, protected=True), shard(number, 16)))
        index.advance()
        assert index.protected is None
    index.note("n2", (shard(2, 8, protected=True), shard(2, 16)))
    index.advance()
    assert named(index) == [8, 16]


def test_what_a_round_resumes_from_is_protected_after_a_restart_until_it_does_steps() -> None:
    record = replace(a_record(members=1), state=State.STARTING, resume=ResumePoint(1, 8, 3, 3, 0))
    assert KeptIndex(record).protected == (KeptStep(1, 8),)
    assert KeptIndex(replace(record, stepped=True)).protected is None
    assert KeptIndex(replace(record, state=State.STOPPED)).protected is None


def test_a_node_that_is_gone_takes_its_parts_along() -> None:
    index = KeptIndex(a_record())
    keep(index, 8)
    index.drop("n1")
    assert not index.is_whole(KeptStep(1, 8))
    for number in range(NODES):
        index.drop(f"n{number}")
    assert not index
    assert index.steps() == []


def test_a_step_on_which_ranks_differed_stays_out_even_if_all_of_them_go_and_one_comes_back() -> None:
    index, at = KeptIndex(a_record()), KeptStep(1, 8)
    alike = [kept_parts(1, 8, range(rank, rank + 1), world_size=2, digest=rank) for rank in range(2)]
    note(index, 0, alike[0])
    assert index.is_whole(at)
    note(index, 1, alike[1])
    for number in range(2):
        assert not index.is_whole(at)
        index.drop(f"n{number}")
    note(index, 0, alike[0])
    assert index.differs(at)
    assert not index.is_whole(at)
    assert index.candidate is None


def a_plan(index: KeptIndex, step: int) -> ResumePlan:
    """Make the plan of a round that resumes from a step, and have it kept."""
    at = KeptStep(1, step)
    index.begin_round(at)
    index.plan = ResumePlan(ResumePoint(1, step, NODES, NODES, 0), index.holders(at))
    return index.plan


def test_the_plan_of_a_round_stands_while_all_of_its_parts_do() -> None:
    index = KeptIndex(a_record())
    keep(index, 8)
    plan = a_plan(index, 8)
    keep(index, 8, protected=True)
    index.note("n3", (shard(0, 8),))
    index.note("n0", (shard(0, 8), shard(0, 16)))
    index.note("n0", (shard(0, 8),))
    assert index.plan is plan, "what comes and goes of other steps does not matter, nor do further copies of this one"
    index.note("n1", ())
    assert index.plan is None


def test_the_plan_of_a_round_is_made_anew_when_a_part_comes_that_it_lacks() -> None:
    index = KeptIndex(a_record())
    keep(index, 8, nodes=2)
    plan = a_plan(index, 8)
    index.note("n2", (shard(2, 4),))
    assert index.plan is plan
    index.note("n2", (shard(2, 8),))
    assert index.plan is None


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
    index = KeptIndex(a_record())
    nodes = [Memory(number) for number in range(NODES)]
    steps = [0] * NODES
    for number, act, draw in acts:
        node = nodes[number]
        if act == "save":
            steps[number] += 1 + draw
            if steps[number] not in node.places:
                node.save(steps[number], draw)
        elif act == "report":
            note(index, number, *node.report())
        else:
            node.protected = index.protected or ()
        if index.whole is not None:
            assert all(index.whole.step in node.places for node in nodes)


def test_a_round_that_resumes_from_nothing_protects_nothing_of_what_was_before() -> None:
    index = KeptIndex(a_record(members=NODES))
    keep(index, 8)
    keep(index, 8, protected=True)
    index.begin_round(None)
    keep(index, 8, protected=True)
    assert (index.whole, named(index)) == (None, [])


def test_a_copy_of_a_step_that_is_protected_for_the_disk_alone_is_none_any_more_once_it_is_written() -> None:
    index = KeptIndex(a_record())
    at = index.pinned = KeptStep(1, 8)
    index.note("n1", (shard(0, 8, protected=True),))
    index.note_plan(at, CopyPlan({"n0": "n1"}, wanted={"n1": {"n0": [0]}}))
    assert index.copy_of("n0") == ("n1", at)
    index.pinned = None
    assert index.copy_of("n0") is None
