"""The table of the corpus and the tests agree."""

import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TREE = HERE.parents[1]

ROW = re.compile(r"\| ([TP]\d+) \| (.+) \| (.+) \| (.+) \|")
THREAD = re.compile(r"[\w/.-]+#\d+")
TEST = re.compile(r"`((?:tests/\S+\.py::)?test_\w+)`")

ROWS = [row.groups() for row in ROW.finditer((HERE / "README.md").read_text())]
ITEMS = [f"T{number}" for number in range(1, 38)] + [f"P{number}" for number in range(1, 25)]


def names_in(path: Path) -> set[str]:
    """Return the names of the tests in a file."""
    return set(re.findall(r"^(?:async )?def (test_\w+)\(", path.read_text(), re.MULTILINE))


SCENARIOS = {name for path in HERE.glob("test_*.py") if path != Path(__file__) for name in names_in(path)}


def test_every_item_is_listed_once() -> None:
    assert [item for item, *_ in ROWS] == ITEMS


@pytest.mark.parametrize(("item", "bug", "threads", "held"), ROWS, ids=[row[0] for row in ROWS])
def test_an_item_says_what_happened_where_it_is_reported_and_what_holds_it(
    item: str, bug: str, threads: str, held: str
) -> None:
    assert bug.endswith("."), item
    assert all(THREAD.fullmatch(thread) for thread in threads.split(", ")), item
    assert TEST.search(held) or "*Not " in held, item


@pytest.mark.parametrize("name", sorted({name for *_, held in ROWS for name in TEST.findall(held)}))
def test_a_test_that_is_named_exists(name: str) -> None:
    path, _, test = name.rpartition("::")
    assert test in (names_in(TREE / path) if path else SCENARIOS)


def test_every_scenario_is_in_the_table() -> None:
    assert {name for *_, held in ROWS for name in TEST.findall(held)} >= SCENARIOS
