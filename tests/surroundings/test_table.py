"""The table of the surroundings that were tried and the tests agree."""

import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TREE = HERE.parents[1]

ROW = re.compile(r"^\| (?!surroundings|---)(.+) \| (.+) \| (.+) \|$", re.MULTILINE)
TEST = re.compile(r"`((?:tests/\S+\.py::)?test_\w+)`")

ROWS = [row.groups() for row in ROW.finditer((TREE / "docs" / "surroundings.md").read_text())]


def names_in(path: Path) -> set[str]:
    """Return the names of the tests in a file."""
    return set(re.findall(r"^(?:async )?def (test_\w+)\(", path.read_text(), re.MULTILINE))


OWN = {name for path in HERE.glob("test_*.py") if path != Path(__file__) for name in names_in(path)}
NAMED = {name for *_, held in ROWS for name in TEST.findall(held)}


@pytest.mark.parametrize(("surroundings", "held"), [(row[0], row[2]) for row in ROWS])
def test_every_row_names_what_holds_it(surroundings: str, held: str) -> None:
    assert TEST.search(held), surroundings


@pytest.mark.parametrize("name", sorted(NAMED))
def test_a_test_that_is_named_exists(name: str) -> None:
    path, _, test = name.rpartition("::")
    assert test in (names_in(TREE / path) if path else OWN)


def test_every_test_here_is_in_the_table() -> None:
    assert NAMED >= OWN
