"""DESIGN.md and the code agree: its tables, its walks, and the decisions beside it.

`pytest --rewrite` prints the tables anew.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from coordinatord.core.transitions.table import ROWS
from nodeclient.core.table import TABLE
from tests.support.source import ROOT

DESIGN = ROOT / "coordinatord" / "DESIGN.md"

DECISIONS = ROOT / "docs" / "decisions"

DECISION = re.compile(r'^## <a id="d(\d+)"></a>(\d+)\. (.+)$', re.MULTILINE)

LISTED = re.compile(r"^(\d+)\. \[(.+)\]\(([\w-]+\.md)#d\1\)$", re.MULTILINE)


def run_table() -> str:
    lines = ["| from | when | to | by | reason given |", "|---|---|---|---|---|"]
    lines += [
        f"| {row.source} | {row.when.__name__} | {row.target} | {row.action.__name__} | {row.reason} |" for row in ROWS
    ]
    return "\n".join(lines)


def node_table() -> str:
    """Group the phases in which the same is done for the same reason."""
    phases: dict[tuple[str, ...], list[str]] = {}
    for (phase, stimulus), row in TABLE.items():
        target = "as it ended" if row.phase is None else "the same" if row.phase is phase else str(row.phase)
        phases.setdefault((stimulus, row.act, target, row.reason), []).append(phase)
    lines = ["| phase | what happens | what is done | next phase | because |", "|---|---|---|---|---|"]
    lines += [f"| {', '.join(group)} | {' | '.join(cells)} |" for cells, group in phases.items()]
    return "\n".join(lines)


@pytest.mark.parametrize(("name", "table"), [("run", run_table()), ("node", node_table())])
def test_design_shows_the_tables_of_the_code(name: str, table: str, *, rewrite: bool) -> None:
    text = DESIGN.read_text()
    start = f"<!-- table: {name} -->\n"
    head, rest = text.split(start)
    shown, tail = rest.split("<!-- end -->", maxsplit=1)
    if rewrite:
        DESIGN.write_text(f"{head}{start}{table}\n<!-- end -->{tail}")
    else:
        assert shown.strip() == table, "run `pytest --rewrite tests/test_design.py` and read the difference"


def test_the_table_of_rooms_has_all_packages_and_no_other() -> None:
    table = DESIGN.read_text().split("## The rooms, and who may know whom")[1].split("\n## ")[0]
    rooms = set(re.findall(r"^\| `([\w/]+)` \|", table, re.MULTILINE))
    packages = {
        str(file.parent.relative_to(ROOT))
        for package in ("coordinatord", "nodeclient", "workerlib")
        for file in (ROOT / package).rglob("__init__.py")
    }
    within = {package for package in packages - rooms for room in rooms if package.startswith(f"{room}/")}
    assert rooms == packages - within - {"coordinatord", "nodeclient"}


def test_the_table_of_tests_has_all_folders_of_tests() -> None:
    table = DESIGN.read_text().split("| folder of `tests` |")[1].split("\n\n")[0]
    named = {
        name for first in re.findall(r"^\| (`.+?) \|", table, re.MULTILINE) for name in re.findall(r"`(.+?)`", first)
    }
    folders = {folder.name for folder in (ROOT / "tests").iterdir() if folder.is_dir() and folder.name[0] not in "_."}
    assert named == folders | {"sim/mutants"}


@pytest.mark.parametrize("walk", ["A heartbeat", "A worker's failure, until the next round"])
def test_a_walk_names_modules_that_exist_and_counts_its_steps(walk: str) -> None:
    text = DESIGN.read_text().split(f"### {walk}\n")[1].split("\n### ")[0]
    steps = re.findall(r"^\| (\d+) \| `([\w/]+)` \| .+ \|$", text, re.MULTILINE)
    assert [int(number) for number, _ in steps] == list(range(1, len(steps) + 1))
    assert len(steps) > 1
    assert [module for _, module in steps if not (ROOT / f"{module}.py").is_file()] == []


def test_decisions_are_numbered_without_gaps_and_listed() -> None:
    made = [
        (number, title, page.name)
        for page in _pages_of_decisions()
        for anchor, number, title in DECISION.findall(page.read_text())
        if anchor == number
    ]
    listed = LISTED.findall((DECISIONS / "README.md").read_text())
    assert listed == sorted(made, key=lambda decision: int(decision[0]))
    assert [int(number) for number, *_ in listed] == list(range(1, len(listed) + 1))


def test_every_decision_has_its_number_as_an_anchor_and_says_why() -> None:
    for page in _pages_of_decisions():
        for decision in page.read_text().split("\n## ")[1:]:
            assert DECISION.match(f"## {decision}"), decision
            assert "**Why.** " in decision, decision


def test_each_page_of_decisions_is_in_the_table_of_subjects() -> None:
    subjects = re.findall(r"^\| \[[^]]+\]\(([^)]+)\) \|", (DECISIONS / "README.md").read_text(), re.MULTILINE)
    assert sorted(subjects) == sorted(page.name for page in _pages_of_decisions())


def _pages_of_decisions() -> list[Path]:
    return [page for page in sorted(DECISIONS.glob("*.md")) if page.name != "README.md"]
