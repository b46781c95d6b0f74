"""What the command lines read of the HTTP API: of any release, fit for a terminal, with errors that name the field."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Annotated, Any

import pytest

from coordinatord.core.state.durable import State
from coordinatord.core.values.time_ledger import Activity
from coordinatord.protocol.http import api
from coordinatord.protocol.schema import Clipped, Length, Range, SchemaError, Token, fields_of, reader_for
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    """A part that was not always there."""

    text: Annotated[str, Clipped(8)] = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer:
    """An answer of which older releases lack fields."""

    inner: Inner = Inner()
    items: Annotated[tuple[Inner, ...], Length(0, 2)] = ()
    count: Annotated[int, Range(0, 9)]
    word: Annotated[str, Token(4)] | None = None


def test_an_older_release_says_less_and_a_newer_one_more() -> None:
    read = reader_for(Outer)
    assert read({"count": 1}, "answer") == Outer(count=1)
    assert read({"count": 1, "more": [2], "inner": {"more": 3}}, "answer") == Outer(count=1)


def test_texts_are_made_fit_for_a_terminal() -> None:
    shown = reader_for(Outer)({"count": 1, "inner": {"text": "a\x1b[2J\nb, and more"}}, "answer")
    assert shown.inner.text == "a [2J..."


@pytest.mark.parametrize(
    ("shown", "error"),
    [
        ([], "answer must be a map, not list"),
        ({}, "answer lacks count"),
        ({"count": 10}, "answer.count must be within 0 and 9, not 10"),
        ({"count": True}, "answer.count must be of type int, not True"),
        ({"count": 1, "inner": 3}, "answer.inner must be a map, not 3"),
        ({"count": 1, "inner": {"text": None}}, "answer.inner.text must be of type str, not None"),
        ({"count": 1, "items": [{}, {"text": 1}]}, "answer.items[1].text must be of type str, not 1"),
        ({"count": 1, "word": ""}, "answer.word must be 1 to 4 visible ASCII letters, not ''"),
        ({"count": 1, "word": "a b"}, "answer.word must be 1 to 4 visible ASCII letters, not 'a b'"),
        ({"count": 1, "word": "a\n"}, "answer.word must be 1 to 4 visible ASCII letters, not 'a\\n'"),
        ({"count": 1, "word": "\u00e9"}, "answer.word must be 1 to 4 visible ASCII letters, not '\u00e9'"),
        ({"count": 1, "word": "abcde"}, "answer.word must be 1 to 4 visible ASCII letters, not 'abcde'"),
        ({"count": 1, "word": 1}, "answer.word must be of type str, not 1"),
    ],
)
def test_what_is_wrong_is_said_by_its_place(shown: object, error: str) -> None:
    with pytest.raises(SchemaError) as caught:
        reader_for(Outer)(shown, "answer")
    assert str(caught.value) == error


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
    answer = reader_for(kind)(shown, "answer")
    written = json.loads(json.dumps(answer, default=fields_of))
    assert written.items() >= {name: value for name, value in shown.items() if name != "jobs"}.items()
    assert reader_for(kind)(written, "answer") == answer


def test_the_states_and_causes_are_those_of_the_machine() -> None:
    assert {str(state) for state in State if state.ended} == api.ENDED
    assert [field.name for field in fields(api.SecondsStatus)] == [str(activity) for activity in Activity]
