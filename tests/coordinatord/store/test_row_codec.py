"""Every legal record comes back as it was; a row that was damaged or edited is refused by its number."""

import json
from typing import Any

import pytest
from hypothesis import given

from coordinatord.core.rounds.values.records import Record
from coordinatord.store.interface import Entry, UnreadableStoreError
from coordinatord.store.row_codec import AT_MAX, decode, encode
from tests.support.histories import a_join_of, a_loss_of, a_round_of, an_opening, records

JOINED, LOST, FORMED = a_join_of("n1"), a_loss_of("n1"), a_round_of("n1", "n2")


@given(records())
def test_a_record_comes_back_as_it_was(record: Record) -> None:
    entry = decode((1, *encode(Entry(5.5, record))))
    assert entry == Entry(5.5, record)
    assert type(entry.record) is type(record)


def test_a_row_can_be_read_by_people_and_says_nothing_twice() -> None:
    at, job, run, kind, node, number, body = encode(Entry(5.5, LOST))
    assert (at, job, run, kind, node, number) == (5.5, "job", "e-1", "NodeLost", "n1", None)
    assert json.loads(body) == {
        "reason": "silent for its whole lease",
        "incarnation": 1,
        "silent_s": 5.0,
        "leaving": False,
        "silent": False,
    }
    assert encode(Entry(0.0, JOINED))[5] == 0
    assert json.loads(encode(Entry(0.0, FORMED))[-1])["nodes"][1]["node"] == "n2"


@pytest.mark.parametrize(("at", "kept"), [(-0.5, 0.0), (2e11, AT_MAX)])
def test_a_time_of_an_absurd_clock_is_written_so_that_it_can_be_read(at: float, kept: float) -> None:
    assert decode((1, *encode(Entry(at, LOST)))) == Entry(kept, LOST)


def damaged(record: Record, *, body: object = None, **columns: object) -> tuple[Any, ...]:
    names = ("seq", "at", "job", "run", "kind", "node", "round", "body")
    row: dict[str, object] = dict(zip(names, (42, *encode(Entry(0.0, record))), strict=True)) | columns
    return tuple((row | ({} if body is None else {"body": body})).values())


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (damaged(LOST, kind="NodeFound"), "there are no records of kind 'NodeFound'"),
        (damaged(LOST, kind=b"NodeLost"), "there are no records of kind"),
        (damaged(LOST, at="noon"), "it was made at 'noon', which is no time"),
        (damaged(LOST, node=None), "NodeLost: missing field `node`"),
        (damaged(LOST, node=7), "NodeLost.node: expected text, not a whole number"),
        (damaged(LOST, node="a\x1b[2J"), "NodeLost.node: expected text of printable characters"),
        (damaged(LOST, job=""), "NodeLost.job: expected text of length >= 1"),
        (damaged(LOST, round=3), "NodeLost: unknown field `round`"),
        (damaged(LOST, body="{"), "its body is no JSON object"),
        (damaged(LOST, body=b"\xff"), "its body is no JSON object"),
        (damaged(LOST, body=5), "its body is no JSON object"),
        (damaged(LOST, body="[" * 100_000), "its body is no JSON object"),
        (damaged(LOST, body="[]"), "its body is no JSON object"),
        (damaged(LOST, body="{}"), "NodeLost: missing field `reason`"),
        (
            damaged(FORMED, body=encode(Entry(0.0, FORMED))[-1].replace('"n2"', "2")),
            "RoundFormed.nodes[1].node: expected text",
        ),
        (
            damaged(an_opening(), body=encode(Entry(0.0, an_opening()))[-1].replace(":1,", ":9,")),
            "nodes_min is 9, more than",
        ),
    ],
)
@pytest.mark.usefixtures("collects_nothing")
def test_a_damaged_row_is_refused_by_its_number_with_what_to_do(row: Any, words: str) -> None:
    with pytest.raises(UnreadableStoreError) as caught:
        decode(row)
    assert str(caught.value).startswith("record 42 is damaged (")
    assert words in str(caught.value)
    assert "restore it from a copy" in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400
