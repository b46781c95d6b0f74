"""Tables of pages that the tests print: each stands between a comment with its name and one that ends it."""

from pathlib import Path

from tests.support.source import ROOT

DESIGN = ROOT / "coordinatord" / "DESIGN.md"


def check_table(page: Path, name: str, header: str, rows: list[str], *, rewrite: bool) -> None:
    """Check that a page shows a table with these rows under a header, or write it there."""
    columns = header.count("|") - 1
    table = "\n".join([header, f"|{'---|' * columns}", *rows])
    start = f"<!-- table: {name} -->\n"
    head, rest = page.read_text().split(start)
    shown, tail = rest.split("<!-- end -->", maxsplit=1)
    if rewrite:
        page.write_text(f"{head}{start}{table}\n<!-- end -->{tail}")
    else:
        assert shown.strip() == table, "run `pytest --rewrite` on this test and read the difference"
