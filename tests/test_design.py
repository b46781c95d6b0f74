"""DESIGN.md and the code agree: its tables, and the decisions beside it; `test_walks` prints the walks.

`pytest --rewrite` prints the tables anew.
"""

import re
from itertools import groupby
from pathlib import Path

from coordinatord.core.keeping import table as keeping
from coordinatord.core.rounds.transitions.table import ROWS, Transition
from nodeclient.core.table import TABLE
from tests.support.printed_tables import DESIGN, check_table
from tests.support.source import ROOT

DECISIONS = ROOT / "docs" / "decisions"

DECISION = re.compile(r'^## <a id="d(\d+)"></a>(\d+)\. (.+)$', re.MULTILINE)

LISTED = re.compile(r"^(\d+)\. \[(.+)\]\(([\w-]+\.md)#d\1\)$", re.MULTILINE)


def _cells_but_the_source(row: Transition) -> tuple[str, ...]:
    target = "the same" if row.target is row.source else str(row.target)
    return row.when.__name__, target, row.action.__name__, row.reason


def test_design_shows_the_table_of_a_run(*, rewrite: bool) -> None:
    rows = []
    for cells, group in groupby(ROWS, _cells_but_the_source):
        rows.append(f"| {', '.join(row.source for row in group)} | {' | '.join(cells)} |")
    check_table(DESIGN, "run", "| from | when | to | by | reason given |", rows, rewrite=rewrite)


def test_design_shows_the_table_of_what_nodes_keep(*, rewrite: bool) -> None:
    rows = [
        f"| {state} | {when.__name__} | {action.__name__} |"
        for state, of in keeping.ROWS.items()
        for when, action in of
    ]
    check_table(DESIGN, "keeping", "| in | when | by |", rows, rewrite=rewrite)


def test_design_shows_the_table_of_a_node_with_the_phases_in_which_the_same_is_done(*, rewrite: bool) -> None:
    places: dict[tuple[str, ...], list[str]] = {}
    for (place, stimulus), row in TABLE.items():
        target = "as it ended" if row.to is None else "the same" if row.to is place else str(row.to)
        places.setdefault((stimulus, row.act, target, row.reason), []).append(place)
    rows = [f"| {', '.join(group)} | {' | '.join(cells)} |" for cells, group in places.items()]
    check_table(
        DESIGN, "node", "| phase or stage | what happens | what is done | next | because |", rows, rewrite=rewrite
    )


def test_the_table_of_packages_has_all_and_no_other() -> None:
    table = DESIGN.read_text().split("## The packages, and which may import which")[1].split("\n## ")[0]
    listed = set(re.findall(r"^\| `([\w/]+)` \|", table, re.MULTILINE))
    packages = {
        str(file.parent.relative_to(ROOT))
        for package in ("coordinatord", "nodeclient", "workerlib")
        for file in (ROOT / package).rglob("__init__.py")
    }
    within = {package for package in packages - listed for other in listed if package.startswith(f"{other}/")}
    assert listed == packages - within - {"coordinatord", "nodeclient"}


def test_the_table_of_tests_has_all_folders_of_tests() -> None:
    table = DESIGN.read_text().split("| folder of `tests` |")[1].split("\n\n")[0]
    named = {
        name for first in re.findall(r"^\| (`.+?) \|", table, re.MULTILINE) for name in re.findall(r"`(.+?)`", first)
    }
    folders = {folder.name for folder in (ROOT / "tests").iterdir() if folder.is_dir() and folder.name[0] not in "_."}
    assert named == folders | {"sim/mutants"}


def test_the_walks_name_modules_that_exist() -> None:
    walks = DESIGN.read_text().split("## Two walks\n")[1].split("\n## ")[0]
    named = set(re.findall(r"`((?:coordinatord|nodeclient)/[\w/]+)`", walks))
    assert named
    assert [
        module for module in sorted(named) if not (ROOT / f"{module}.py").is_file() and not (ROOT / module).is_dir()
    ] == []


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
