"""What the command lines read of the HTTP API is of any release, and its words are those of the machine."""

from typing import Annotated

from msgspec import Meta, Struct

from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.values.time_ledger import Activity
from coordinatord.protocol.http import api
from coordinatord.protocol.schema import check, printable


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


def test_the_states_and_causes_are_those_of_the_machine() -> None:
    assert {str(state) for state in State if state.ended} == api.ENDED
    assert list(api.SecondsStatus.__struct_fields__) == [str(activity) for activity in Activity]
