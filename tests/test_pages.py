"""The pages for people: links lead somewhere, each page is found, the glossary is in order.

How wide a page may be is a rule of the tree: see `test_tidy`.
"""

import ast
import re
from pathlib import PurePosixPath

import pytest

from coordinatord.core.rounds.state.member import MemberState
from tests.support.pages import WIDTH_MAX, dead_links, is_page, targets
from tests.support.site import _with_links, listed
from tests.support.source import Source, sources

README_LINES_MAX = 200
"""What somebody reads who wants to know whether this is for them; the manual is in docs/."""

PAGES = {str(source.path): source for source in sources() if is_page(source)}

MODULE = re.compile(r"`(\w+/[\w/]+\.py)\b")

TERM = re.compile(r"^\| (?!term|---)([^|]+) \| [^|]+ \| [^|]*\|$", re.MULTILINE)


def page(text: str, path: str = "docs/a.md") -> Source:
    return Source(PurePosixPath(path), text)


def test_every_link_leads_somewhere() -> None:
    found = [f"{path}:{line}: {what}" for path, source in PAGES.items() for line, what in dead_links(source, PAGES)]
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


def test_the_site_has_all_pages() -> None:
    assert sorted(listed()) == sorted(path for path in PAGES if not path.startswith(("tests/", ".")))


def test_every_module_that_a_page_names_exists() -> None:
    files = {f"/{source.path}" for source in sources() if source.is_python}
    folders = {folder for file in files for folder in PurePosixPath(file).parts[1:-1]}
    found = [
        f"{path}: {module}"
        for path, source in PAGES.items()
        for module in MODULE.findall(source.text)
        if module.partition("/")[0] in folders and not any(file.endswith(f"/{module}") for file in files)
    ]
    assert not found, "\n".join(["", *found])


def test_the_glossary_has_every_term_once_in_order() -> None:
    terms = TERM.findall(PAGES["docs/glossary.md"].text)
    assert terms == sorted(set(terms), key=str.casefold)
    assert terms


def test_the_glossary_has_the_states_of_nodes() -> None:
    states = PAGES["docs/glossary.md"].text.split("| member state | meaning |")[1]
    assert re.findall(r"^\| (\w+) \|", states, re.MULTILINE) == [*MemberState]


RETIRED = {
    "accounts": "diagnosis",
    "blame": "root cause",
    "blamed": "culprit",
    "blames": "culprit",
    "chapter": "event",
    "companion": "embedded coordinator",
    "door": "nodeclient",
    "happening": "event",
    "happenings": "event",
    "mailbox": "level",
    "outbox": "batch",
    "petition": "operator",
    "reassure": "degraded",
    "reassured": "degraded",
    "standing": "member state",
}
"""Words that the code had for things with another name, which is in the glossary."""

HAS_RETIRED = re.compile("|".join(RETIRED), re.IGNORECASE)

VAGUE = {
    "gave_up": "cancel, fail, drop or time out",
    "give_up": "cancel, fail, drop or time out",
    "given_up": "cancelled, failed or dropped",
    "gives_up": "the deadline",
    "held_back": "hand over, for a node; delay, for a round",
    "hold_back": "hand over, for a node; delay, for a round",
    "holds_until": "delay",
    "look_again": "check, or poll",
    "look_at": "check, scan, ask or read",
    "looks_at": "check, scan, ask or read",
    "stays_until": "the deadline, or when it is forgotten",
}
"""Names that may mean anything, each with the words to choose from: a look is at workers, and a holder has parts."""

HAS_VAGUE = re.compile("|".join(VAGUE), re.IGNORECASE)  # to parse all files takes seconds

WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def test_no_identifier_has_a_word_of_its_own_for_what_the_glossary_names() -> None:
    assert set(RETIRED.values()) <= set(TERM.findall(PAGES["docs/glossary.md"].text))
    found = [
        f"{source.path}: {name} says {word}, the glossary says {RETIRED[word]}"
        for source in sources()
        if source.is_python and HAS_RETIRED.search(source.text)  # to parse all files takes seconds
        for name in sorted(bound_names(source))
        for word in map(str.lower, WORD.findall(name))
        if word in RETIRED
    ]
    assert not found, "\n".join(["", *found])


def test_no_identifier_of_a_program_is_vague() -> None:
    found = [
        f"{source.path}: {name}: say {words}"
        for source in sources()
        if source.is_python
        and source.is_in("coordinatord", "nodeclient", "workerlib")
        and HAS_VAGUE.search(source.text)
        for name in sorted(bound_names(source))
        for vague, words in VAGUE.items()
        if vague in name.lower()
    ]
    assert not found, "\n".join(["", *found])


def bound_names(source: Source) -> set[str]:
    """Return all names that a file gives to something, those of tasks as well."""
    names = {node.name for node in source.definitions}
    for node in ast.walk(source.tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name):
                names.add(name)
            case ast.Call(func=ast.Attribute(attr="spawn"), keywords=keywords):
                names |= {ast.unparse(keyword.value) for keyword in keywords if keyword.arg == "name"}
    return names


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("[a](nowhere.md)", "docs/nowhere.md, which does not exist"),
        ("[a](../README.md#nowhere)", "#nowhere, which README.md"),
        ("[a](../Makefile#test)", "#test, which Makefile"),
    ],
)
def test_a_dead_link_is_found(text: str, what: str) -> None:
    [(line, found)] = dead_links(page(text), PAGES)
    assert (line, what in found) == (1, True), found


def test_the_site_is_not_built_with_a_link_to_a_file_that_is_not_there() -> None:
    with pytest.raises(SystemExit, match=r"docs/hangs\.md links to docs/nowhere\.md"):
        _with_links("[there](nowhere.md)", PurePosixPath("docs/hangs.md"), set())
