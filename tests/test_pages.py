"""The pages for people: links lead somewhere, lines fit a screen, nothing lies where nobody finds it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import PurePosixPath

import pytest

from coordinatord.core.state.member import MemberState
from tests.support.pages import (
    CELL_MAX,
    WIDTH_MAX,
    Finding,
    anchors,
    dead_links,
    is_page,
    long_cells,
    slug_of,
    targets,
    wide_lines,
)
from tests.support.source import Source, sources

README_LINES_MAX = 200
"""What somebody reads who wants to know whether this is for them; the manual is in docs/."""

PAGES = {str(source.path): source for source in sources() if is_page(source)}


TERM = re.compile(r"^\| (?!term|---)([^|]+) \| [^|]+ \| [^|]*\|$", re.MULTILINE)


def page(text: str, path: str = "docs/a.md") -> Source:
    return Source(PurePosixPath(path), text)


@pytest.mark.parametrize("find", [wide_lines, long_cells, lambda source: dead_links(source, PAGES)])
def test_all_pages_keep_the_rule(find: Callable[[Source], Iterable[Finding]]) -> None:
    found = [f"{path}:{line}: {what}" for path, source in PAGES.items() for line, what in find(source)]
    assert not found, "\n".join(["", *found])


def test_the_readme_is_short_and_narrow_throughout() -> None:
    lines = PAGES["README.md"].text.splitlines()
    assert len(lines) <= README_LINES_MAX
    assert max(map(len, lines)) <= WIDTH_MAX


def test_every_page_in_docs_is_found_from_the_readme() -> None:
    reached, pending = set[str](), ["README.md"]
    while pending:
        path = pending.pop()
        if path in PAGES and path not in reached:
            reached.add(path)
            pending += [target for _, target, _ in targets(PAGES[path])]
    assert {path for path in PAGES if path.startswith("docs/")} <= reached


def test_the_glossary_has_every_term_once_in_order() -> None:
    terms = TERM.findall(PAGES["docs/glossary.md"].text)
    assert terms == sorted(set(terms), key=str.casefold)
    assert terms


def test_the_glossary_has_the_states_of_nodes() -> None:
    states = PAGES["docs/glossary.md"].text.split("| member state | meaning |")[1]
    assert re.findall(r"^\| (\w+) \|", states, re.MULTILINE) == [*MemberState]


@pytest.mark.parametrize(
    ("find", "text", "what"),
    [
        (wide_lines, "word " * 25, "125 characters"),
        (long_cells, f"| a | {'b' * (CELL_MAX + 1)} |", "241 characters"),
        (lambda source: dead_links(source, PAGES), "[a](nowhere.md)", "docs/nowhere.md, which does not exist"),
        (lambda source: dead_links(source, PAGES), "[a](../README.md#nowhere)", "#nowhere, which README.md"),
        (lambda source: dead_links(source, PAGES), "[a](../Makefile#test)", "#test, which Makefile"),
    ],
)
def test_a_violation_is_found(find: Callable[[Source], Iterable[Finding]], text: str, what: str) -> None:
    [(line, found)] = find(page(text))
    assert (line, what in found) == (1, True), found


@pytest.mark.parametrize(
    ("find", "text"),
    [
        (wide_lines, "```\n" + "word " * 25 + "\n```"),
        (wide_lines, "| " + "word " * 25 + "|"),
        (wide_lines, "https://example.org/" + "a" * 120),
        (long_cells, f"| a | `{'b' * CELL_MAX}` b |"),
        (lambda source: dead_links(source, PAGES), "[a](../README.md#development) [b](https://a.org/b) `[c](d)`"),
        (lambda source: dead_links(source, {"README.md": source}), "# One\n[a](../README.md#one)"),
    ],
)
def test_what_is_allowed_is_not_found(find: Callable[[Source], Iterable[Finding]], text: str) -> None:
    assert list(find(page(text))) == []


@pytest.mark.parametrize(
    ("heading", "slug"),
    [
        ("What fails, and what happens", "what-fails-and-what-happens"),
        ("With `workerlib.init()`", "with-workerlibinit"),
        ("Keys of --rdzv-conf", "keys-of---rdzv-conf"),
        ("[A link](b.md), and *more*", "a-link-and-more"),
    ],
)
def test_a_heading_has_the_anchor_that_github_makes(heading: str, slug: str) -> None:
    assert slug_of(heading) == slug


def test_a_page_has_the_anchors_of_its_headings_and_its_own() -> None:
    assert anchors(page('# A\n## B\n## B\n1. <a id="d1"></a>c\n```\n# D\n```')) == {"a", "b", "b-1", "d1"}
