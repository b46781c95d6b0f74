"""Tables of DESIGN.md that the tests print: each stands between a comment with its name and one that ends it."""

from __future__ import annotations

from tests.support.source import ROOT

DESIGN = ROOT / "coordinatord" / "DESIGN.md"


def check_table(name: str, header: str, rows: list[str], *, rewrite: bool) -> None:
    """Check that DESIGN.md shows a table with these rows under a header, or write it there."""
    columns = header.count("|") - 1
    table = "\n".join([header, f"|{'---|' * columns}", *rows])
    start = f"<!-- table: {name} -->\n"
    head, rest = DESIGN.read_text().split(start)
    shown, tail = rest.split("<!-- end -->", maxsplit=1)
    if rewrite:
        DESIGN.write_text(f"{head}{start}{table}\n<!-- end -->{tail}")
    else:
        assert shown.strip() == table, (
            "run `pytest --rewrite tests/test_design.py tests/test_walks.py` and read the diff"
        )
