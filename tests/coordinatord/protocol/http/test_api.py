"""What the command lines read of the HTTP API: of any release, fit for a terminal, with errors that name the field."""

from typing import Annotated, Any

import msgspec
import pytest
from msgspec import Meta, Struct

from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.values.time_ledger import Activity
from coordinatord.protocol.http import api
from coordinatord.protocol.schema import check, printable
from tests.support.canned_http import a_job, a_node

EVENT: dict[str, Any] = {
    "id": "0a-1",
    "number": 1,
    "at": 1e9,
    "job": "mnist",
    "run": "e-1",
    "kind": "RoundFormed",
    "what": "round formed",
    "round": 1,
    "node": None,
    "reason": "formed of node a",
}


class Inner(Struct, frozen=True, kw_only=True):
    """A part that was not always there."""

    text: Annotated[str, printable(8)] = "none"


class Outer(Struct, frozen=True, kw_only=True):
    """An answer of which older releases lack fields."""

    inner: Inner = Inner()
    items: Annotated[tuple[Inner, ...], Meta(max_length=2)] = ()
    count: Annotated[int, Meta(ge=0, le=9)]


def test_an_older_release_says_less_and_a_newer_one_more() -> None:
    assert check({"count": 1}, Outer, "answer") == Outer(count=1)
    assert check({"count": 1, "more": [2], "inner": {"more": 3}}, Outer, "answer") == Outer(count=1)


@pytest.mark.parametrize(
    ("kind", "shown"),
    [
        (api.JobsAnswer, {"jobs": [a_job(a_node("a"))]}),
        (api.EventsAnswer, {"job": None, "events": [EVENT]}),
        (api.HealthAnswer, {"status": "ok", "reason": "", "version": "1", "jobs": 0, "sessions": 0}),
        (api.ErrorAnswer, {"error": "no", "message": "no such job"}),
        (api.AdminAnswer, {"done": True, "message": "done"}),
    ],
)
def test_what_is_written_is_read_again(kind: type[Any], shown: dict[str, Any]) -> None:
    answer = check(shown, kind, "answer")
    written = msgspec.json.decode(msgspec.json.encode(answer))
    assert written.items() >= {name: value for name, value in shown.items() if name != "jobs"}.items()
    assert check(written, kind, "answer") == answer


def test_the_states_and_causes_are_those_of_the_machine() -> None:
    assert {str(state) for state in State if state.ended} == api.ENDED
    assert list(api.SecondsStatus.__struct_fields__) == [str(activity) for activity in Activity]
