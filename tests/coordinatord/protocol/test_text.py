"""Numbers with their nouns, and lists of names that stay short."""

from coordinatord.protocol.text import counted, listed, name_some


def test_numbers_have_their_nouns() -> None:
    assert [counted(number, "node") for number in (0, 1, 1_024)] == ["0 nodes", "1 node", "1,024 nodes"]


def test_of_many_names_the_first_are_listed_and_the_others_counted() -> None:
    assert listed(["a", "b"], 2) == "a, b"
    assert listed(["a", "b"], 5) == "a, b and 3 more"
    assert listed(map(str, range(20)), 20) == "0, 1, 2, 3, 4, 5, 6, 7 and 12 more"
    assert name_some(["a"], 1) == "node a"
    assert name_some("0123", 4, "rank", most=2) == "ranks 0, 1 and 2 more"
