"""The rules of a Markdown page: it is good to read, and its links lead somewhere.

Each is a function that finds what breaks it.

A page is a `Source`. `tests/test_pages.py` has the pages, and the rules of single ones.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from tests.support.source import ROOT, Finding, Source

WIDTH_MAX = 120
"""The width in characters: as wide as the code is. A diff, a terminal and a page side by side hold it."""

CELL_MAX = 240
"""The length in characters of prose: a row of a table cannot be folded, and two lines are what a cell takes before it
is a text of its own, which belongs below the table."""

LINK = re.compile(r"\]\(([^)\s]+)\)")
"""A link of Markdown, and the place it leads to."""

_FENCE = re.compile(r"^\s*(```|~~~)")
_CODE = re.compile(r"`[^`]*`")
_ANCHOR = re.compile(r'<a id="([^"]+)"></a>')
_HEADING = re.compile(r"^#{1,6} (.+)$")


def is_page(source: Source) -> bool:
    """Return whether a file is Markdown."""
    return source.path.suffix == ".md"


def prose(source: Source) -> Iterator[tuple[int, str]]:
    """Iterate over the lines of a page with their numbers, without those of code blocks."""
    in_code = False
    for number, line in enumerate(source.text.splitlines(), start=1):
        if _FENCE.match(line):
            in_code = not in_code
        elif not in_code:
            yield number, line


def wide_lines(source: Source) -> Iterator[Finding]:
    """Find lines that could be folded and are too wide; a row of a table, or one word alone, cannot be."""
    for number, line in prose(source):
        can_be_folded = not line.startswith("|") and " " in line.strip()
        if can_be_folded and len(line) > WIDTH_MAX:
            yield number, f"the line has {len(line)} characters"


def long_cells(source: Source) -> Iterator[Finding]:
    """Find cells of tables that are texts of their own; names in backquotes do not count."""
    for number, line in prose(source):
        if line.startswith("|"):
            longest = max(len(cell.strip()) for cell in _CODE.sub("", line).split("|"))
            if longest > CELL_MAX:
                yield number, f"a cell has {longest} characters"


def targets(source: Source) -> Iterator[tuple[int, str, str]]:
    """Iterate over the links to places of this repository: line, path from its root, and anchor or nothing."""
    for number, line in prose(source):
        for link in LINK.findall(_CODE.sub("", line)):
            if "://" not in link:
                path, _, anchor = link.partition("#")
                yield number, resolved(source.path, path), anchor


def dead_links(source: Source, pages: Mapping[str, Source]) -> Iterator[Finding]:
    """Find links to files that do not exist, and to anchors that the page does not have. `pages` is by path."""
    for number, path, anchor in targets(source):
        if not (ROOT / path).exists():
            yield number, f"leads to {path}, which does not exist"
        elif anchor and (path not in pages or anchor not in anchors(pages[path])):
            yield number, f"leads to #{anchor}, which {path} does not have"


def anchors(source: Source) -> set[str]:
    """Return the places of a page that a link can lead to: its headings, as GitHub names them, and its own anchors."""
    counts: dict[str, int] = {}
    own: set[str] = set()
    for _, line in prose(source):
        own.update(_ANCHOR.findall(line))
        heading = _HEADING.match(line)
        if heading:
            slug = slug_of(heading[1])
            counts[slug] = counts.get(slug, -1) + 1
    return own | {
        slug if not again else f"{slug}-{again}" for slug, count in counts.items() for again in range(count + 1)
    }


def slug_of(heading: str) -> str:
    """Return the anchor that GitHub makes of a heading."""
    text = re.sub(r"<[^>]*>|[`*]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)).strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def resolved(page: PurePosixPath, link: str) -> str:
    """Return the path from the root that a link in a page means."""
    if not link:
        return str(page)
    parts: list[str] = []
    for part in (page.parent / link).parts:
        if part == "..":
            parts.pop()
        else:
            parts.append(part)
    return "/".join(parts) or "."
