"""Numbers with their nouns, lists of names that stay short, and errors that are too long."""

import pytest

from coordinatord.protocol.text import counted, listed, name_some, shorten


def test_numbers_have_their_nouns() -> None:
    assert [counted(number, "node") for number in (0, 1, 1_024)] == ["0 nodes", "1 node", "1,024 nodes"]


def test_of_many_names_the_first_are_listed_and_the_others_counted() -> None:
    assert listed(["a", "b"], 2) == "a, b"
    assert listed(["a", "b"], 5) == "a, b and 3 more"
    assert listed(map(str, range(20)), 20) == "0, 1, 2, 3, 4, 5, 6, 7 and 12 more"
    assert name_some(["a"], 1) == "node a"
    assert name_some("0123", 4, "rank", most=2) == "ranks 0, 1 and 2 more"


@pytest.mark.parametrize(
    ("text", "shortened"),
    [
        ("the disk is full: free some space", "the disk is full: free some space"),
        ("E: " + "x" * 40 + "; free some space", "E: xxxxxxxxxxxxxxxxx ... free some space"),
        ("E: " + "x" * 40 + ". Why? Wait. Try it", "E: xxxxxxxxxxxxxxx ... Why? Wait. Try it"),
        ("E: no " + "x" * 40, "E: no xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx..."),
        ("E: " + "x" * 20 + ": free some space, or wait", "E: xxxxxxxxxxxxxxxxxxxx: free some sp..."),
        ("E:\n" + "x" * 40 + ":\tthe end", "E: xxxxxxxxxxxxxxxxxxxxxxxxx ... the end"),
    ],
)
def test_a_long_error_keeps_its_beginning_and_what_to_do(text: str, shortened: str) -> None:
    assert shorten(text, 40) == shortened
