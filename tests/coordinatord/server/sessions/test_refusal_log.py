"""Whoever is refused again and again, a node or another bearer of a token, fills no log."""

from typing import Any

import pytest

from coordinatord.core.rounds.effects import Refuse
from coordinatord.protocol.codec import encode
from coordinatord.protocol.messages import Desired, RefusalCode, Refused
from coordinatord.server.sessions import node_sessions, refusal_log
from coordinatord.server.sessions.refusal_log import LINES_MAX, SUBJECTS_MAX, WINDOW_S, LogThrottle, RefusalLog
from tests.coordinatord.server.conftest import Start
from tests.support.histories import JOB, a_join_of, made_at
from tests.support.raw_session import connect, join
from tests.support.raw_websocket import message, request, wire


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


MANY = 12

LINES = 3


def malformed(number: int) -> bytes:
    """Return a message of a type that nobody knows, another one for each number."""
    return message(b"\x81\xa4type\xa4no%02d" % number)


def lines_of(event: str, caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.__dict__.get("event") == event]


@pytest.mark.parametrize(
    ("event", "sent"),
    [
        pytest.param("peer_refused", malformed, id="before the join"),
        pytest.param("node_refused", lambda n: message(encode(join(f"n{n}", nodes=2 + n))), id="by the machine"),
        pytest.param(
            "message_malformed", lambda n: message(encode(join(f"n{n}", job="theirs"))) + malformed(n), id="after it"
        ),
    ],
)
async def test_refusals_of_one_bearer_are_so_many_lines_and_others_notice_nothing(
    start: Start, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, event: str, sent: Any
) -> None:
    monkeypatch.setattr(refusal_log, "LINES_MAX", LINES)
    monkeypatch.setattr(node_sessions, "CLOSE_WITHIN_S", 0.01)
    async with start() as server, connect(server.url, join("honest")) as node:
        await node.receive(Desired)
        for number in range(MANY):
            async with wire(server.url, request() + sent(number)) as peer:
                await peer.upgraded()
                await peer.end()
        lines = lines_of(event, caplog)
        assert len(lines) == LINES, lines
        assert [line.endswith("; more like this is not logged for now") for line in lines] == [False, False, True]
        await node.beat()
        await node.receive(Desired)
