"""A node that is refused for now, and tries again and again, fills no log."""

from coordinatord.core.rounds.effects import Refuse
from coordinatord.protocol.messages import RefusalCode, Refused
from coordinatord.server.sessions.refusal_log import KEPT, LINES_MAX, WINDOW_S, LineBudget, Refusals
from tests.support.histories import JOB, a_join_of, made_at


def turned_away(node: str = "n1", text: str = "n1 drained by alice", *, retry: bool = True) -> Refuse:
    return Refuse(1, Refused(RefusalCode.DRAINED, text, retry=retry), JOB, node)


def test_it_is_said_once_of_each_node_and_reason() -> None:
    refusals = Refusals()
    assert refusals.is_new(turned_away())
    assert not any(refusals.is_new(turned_away()) for _ in range(100))
    assert refusals.is_new(turned_away(text="n1 drained by bob"))
    assert refusals.is_new(turned_away("n2"))


def test_it_is_said_again_of_one_that_was_let_in_since() -> None:
    refusals = Refusals()
    refusals.is_new(turned_away())
    refusals.record(made_at(0.0, a_join_of("n1")))
    assert refusals.is_new(turned_away())


def test_a_refusal_for_good_is_always_said() -> None:
    refusals = Refusals()
    assert all(refusals.is_new(turned_away(retry=False)) for _ in range(2))


def test_what_is_remembered_of_nodes_is_bounded() -> None:
    refusals = Refusals()
    for number in range(KEPT + 10):
        refusals.is_new(turned_away(f"n{number}"))
    assert refusals.is_new(turned_away("n0"))
    assert not refusals.is_new(turned_away(f"n{KEPT}"))


def test_there_are_so_many_lines_a_minute_about_one_thing_and_then_it_is_said_how_many_are_missing() -> None:
    budget = LineBudget()
    allowed = [budget.allow("ana", 7.0) for _ in range(LINES_MAX + 5)]
    assert allowed == [""] * (LINES_MAX - 1) + ["; more like this is not logged for now"] + [None] * 5
    assert budget.allow("ben", 7.0) == ""
    assert budget.allow("ana", 7.0 + WINDOW_S - 1e-3) is None
    assert budget.allow("ana", 7.0 + WINDOW_S) == "; 6 more like this were not logged"
    assert budget.allow("ana", 7.0 + WINDOW_S) == ""
    assert budget.allow("ana", 7.0 + 3 * WINDOW_S) == ""


def test_a_budget_forgets_what_was_counted_longest_ago() -> None:
    budget = LineBudget()
    for _ in range(LINES_MAX):
        budget.allow("ana", 0.0)
    for number in range(KEPT):
        budget.allow(number, 0.0)
    assert budget.allow("ana", 0.0) == ""
