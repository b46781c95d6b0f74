"""A node that is refused for now, and tries again and again, fills no log."""

from coordinatord.core.rounds.effects import Refuse
from coordinatord.protocol.messages import RefusalCode, Refused
from coordinatord.server.sessions.refusal_log import LINES_MAX, SUBJECTS_MAX, WINDOW_S, LogThrottle, RefusalLog
from tests.support.histories import JOB, a_join_of, made_at


def turned_away(node: str = "n1", text: str = "n1 drained by alice", *, retry: bool = True) -> Refuse:
    return Refuse(1, Refused(RefusalCode.DRAINED, text, retry=retry), JOB, node)


def test_it_is_said_once_of_each_node_and_reason() -> None:
    refusals = RefusalLog()
    assert refusals.is_new(turned_away())
    assert not any(refusals.is_new(turned_away()) for _ in range(100))
    assert refusals.is_new(turned_away(text="n1 drained by bob"))
    assert refusals.is_new(turned_away("n2"))


def test_it_is_said_again_of_one_that_was_let_in_since() -> None:
    refusals = RefusalLog()
    refusals.is_new(turned_away())
    refusals.on_records(made_at(0.0, a_join_of("n1")))
    assert refusals.is_new(turned_away())


def test_a_refusal_for_good_is_always_said() -> None:
    refusals = RefusalLog()
    assert all(refusals.is_new(turned_away(retry=False)) for _ in range(2))


def test_what_is_remembered_of_nodes_is_bounded() -> None:
    refusals = RefusalLog()
    for number in range(SUBJECTS_MAX + 10):
        refusals.is_new(turned_away(f"n{number}"))
    assert refusals.is_new(turned_away("n0"))
    assert not refusals.is_new(turned_away(f"n{SUBJECTS_MAX}"))


def test_there_are_so_many_lines_a_minute_about_one_thing_and_then_it_is_said_how_many_are_missing() -> None:
    throttle = LogThrottle()
    allowed = [throttle.line_suffix("ana", 7.0) for _ in range(LINES_MAX + 5)]
    assert allowed == [""] * (LINES_MAX - 1) + ["; more like this is not logged for now"] + [None] * 5
    assert throttle.line_suffix("ben", 7.0) == ""
    assert throttle.line_suffix("ana", 7.0 + WINDOW_S - 1e-3) is None
    assert throttle.line_suffix("ana", 7.0 + WINDOW_S) == "; 6 more like this were not logged"
    assert throttle.line_suffix("ana", 7.0 + WINDOW_S) == ""
    assert throttle.line_suffix("ana", 7.0 + 3 * WINDOW_S) == ""


def test_a_budget_forgets_what_was_counted_longest_ago() -> None:
    throttle = LogThrottle()
    for _ in range(LINES_MAX):
        throttle.line_suffix("ana", 0.0)
    for number in range(SUBJECTS_MAX):
        throttle.line_suffix(number, 0.0)
    assert throttle.line_suffix("ana", 0.0) == ""
