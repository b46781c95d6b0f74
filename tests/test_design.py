"""The tables printed in DESIGN.md are those in the code; `pytest --rewrite` prints them anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinatord.core.queries import conditions
from coordinatord.core.transitions.table import ROWS
from nodeclient.core.table import TABLE

DESIGN = Path(__file__).parent.parent / "coordinatord" / "DESIGN.md"


def run_table() -> str:
    lines = ["| from | when | to | by | reason given |", "|---|---|---|---|---|"]
    lines += [
        f"| {row.source} | {conditions.NAMES[row.when]} | {row.target} | {row.action.__name__} | {row.reason} |"
        for row in ROWS
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
