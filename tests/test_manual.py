"""The manual has what the programs have: each command, flag, exit code and variable; and no flag that there is not.

`pytest --rewrite` prints the tables of flags and the man pages anew.
"""

import argparse
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

import pytest

from coordinatord.config.subcommands import _make_parser as make_coordinatord
from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.protocol.http.api import FailureStatus
from coordinatord.runtime import PAGES
from nodeclient.config.parse import SUBCOMMANDS
from nodeclient.config.parse import _make_parser as make_nodeclient
from nodeclient.config.up import OWN_HEADING
from tests.support.openapi import field_notes
from tests.support.printed_tables import check_table
from tests.support.source import ROOT
from workerlib.contract.env import WorkerEnvironment

DOCS = ROOT / "docs"
REFERENCE, OPERATING = (DOCS / "reference.md").read_text(), (DOCS / "operating.md").read_text()

FLAG = re.compile(r"`(--?[a-z][a-z-]*)")

HELP = re.compile(r"(?P<meaning>.*?)(?: \(default: (?P<default>[^)]*)\))?(?: \[[A-Z_, ]+\])?")
"""What the help says of a flag."""

OUTPUT_HEADING = "output of workers"
"""The heading of the flags that have a table of their own."""

OF_ALL = {"--help", "--version", "--print-completion", "--coord"}
"""Flags that the manual has once for all commands of a program."""

COORDINATORD: argparse.ArgumentParser
COORDINATORD, OF_COORDINATORD = make_coordinatord({})
NODECLIENT: argparse.ArgumentParser
OF_NODECLIENT: Mapping[str, argparse.ArgumentParser]
NODECLIENT, OF_NODECLIENT = make_nodeclient(SUBCOMMANDS, {})
OPERATORS = sorted(OF_NODECLIENT.keys() - {"join", "run", "launch", "up"})


def section(text: str, heading: str) -> str:
    """Return the text below a heading, up to the next one of its rank."""
    return text.split(f"\n## {heading}\n")[1].split("\n## ", maxsplit=1)[0]


def flags_of(parser: argparse.ArgumentParser) -> set[str]:
    """Return the long flags of a parser, as they are written with dashes."""
    options = (option for action in parser._actions for option in action.option_strings)
    return {option for option in options if option.startswith("--") and "_" not in option}


def flags_in(text: str) -> set[str]:
    """Return the long flags that the first cells of the tables name."""
    cells = [line.split(" | ")[0] for line in text.splitlines() if line.startswith("| `-")]
    return {flag for cell in cells for flag in FLAG.findall(cell) if flag.startswith("--")}


def rows_of(parser: argparse.ArgumentParser, *headings: str) -> list[str]:
    """Return the rows for a parser's flags: for those under these headings, or without any, but workers' output.

    The flags that are no settings, which are under no heading, come last.
    """
    rows = []
    _, options, *headed = parser._action_groups
    groups = (
        group
        for group in (*headed, options)
        if (group.title in headings if headings else group.title != OUTPUT_HEADING)
    )
    for action in (action for group in groups for action in group._group_actions):
        if not action.option_strings or not OF_ALL.isdisjoint({*action.option_strings} - {"--coord"}):
            continue
        value = f" {action.metavar or (action.choices and '|'.join(action.choices)) or ''}".rstrip()
        names = (name for name in action.option_strings if "_" not in name)
        text = HELP.fullmatch((action.help or "").replace("%%", "%"))
        assert text is not None
        cells = (", ".join(f"`{name}{value}`" for name in names), text["default"] or "", text["meaning"])
        row = f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
        rows.append(row.replace("|  |", "| |"))
    return rows


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("join", rows_of(OF_NODECLIENT["join"])),
        ("output", rows_of(OF_NODECLIENT["join"], OUTPUT_HEADING)),
        ("up", rows_of(OF_NODECLIENT["up"], OWN_HEADING)),
        ("coordinatord", rows_of(COORDINATORD)),
    ],
)
def test_the_reference_has_the_tables_of_all_flags(name: str, rows: list[str], *, rewrite: bool) -> None:
    check_table(DOCS / "reference.md", name, "| flag | default | meaning |", rows, rewrite=rewrite)


def man_page(parser: argparse.ArgumentParser, commands: Mapping[str, argparse.ArgumentParser]) -> str:
    """Return the page of a program: its own flags, and then each command with those that no command before it has."""
    description = parser.description or ""
    known = set[str]()
    lines = [
        f".TH {parser.prog.upper()} 1\n.nh\n.ad l",
        ".SH NAME",
        f"{parser.prog} \\- {_roff(description[:1].lower() + description[1:].partition('.')[0])}",
        ".SH SYNOPSIS",
        f".B {parser.prog}\n[flags] [COMMAND [flags]]",
        *(".SH DESCRIPTION", *_paragraphs(description)),
        *(".SH OPTIONS", *_flags(parser, known), *_paragraphs(parser.epilog)),
        ".SH COMMANDS",
    ]
    for name, command in commands.items():
        lines += [f".SS {name}", *_paragraphs(command.description), *_flags(command, known)]
        lines += _paragraphs(command.epilog)
    return "\n".join([*lines, ".SH SEE ALSO", _roff(f"{PAGES}/docs/reference.md"), ""])


def _flags(parser: argparse.ArgumentParser, known: set[str]) -> Iterator[str]:
    """Yield the flags and words of a parser that are not `known` yet, and then the names of the others."""
    shared = []
    for action in parser._actions:
        if action.help == argparse.SUPPRESS or isinstance(action, argparse._SubParsersAction):
            continue
        value = action.metavar or "|".join(action.choices or ()) or (None if action.nargs == 0 else action.dest.upper())
        names = [name for name in action.option_strings if "_" not in name]
        shown = ", ".join(f"\\fB{_roff(name)}\\fR" for name in names)
        row = f"{shown} \\fI{_roff(str(value))}\\fR" if value else shown
        if names and row in known:
            shared.append(max(names, key=len))
            continue
        known.add(row)
        yield f".TP\n{row.strip()}\n{_roff(((action.help or '') % vars(action)) or 'see the usage')}"
    if shared:
        yield f".PP\nAs above: {_roff(', '.join(shared))}."


def _paragraphs(text: str | None) -> Iterator[str]:
    """Yield the lines of a text, each as a paragraph."""
    for line in (text or "").splitlines():
        yield f".PP\n{_roff(line)}"


def _roff(text: str) -> str:
    """Return a text in which roff finds no request and no escape, and keeps each hyphen (see groff_man_style(7)).

    A line may end after the slash of a path or an address: the long ones would stand out of the page.
    """
    quoted = text.replace("\\", "\\e").replace("-", "\\-")
    quoted = re.sub(r"/(?=\w)", r"/\\:", quoted)
    return f"\\&{quoted}" if quoted.startswith((".", "'")) else quoted


@pytest.mark.parametrize(("parser", "commands"), [(COORDINATORD, OF_COORDINATORD), (NODECLIENT, OF_NODECLIENT)])
def test_the_man_pages_have_all_commands_and_flags(
    parser: argparse.ArgumentParser, commands: Mapping[str, argparse.ArgumentParser], *, rewrite: bool
) -> None:
    path, page = DOCS / f"{parser.prog}.1", man_page(parser, commands)
    if rewrite:
        path.write_text(page)
    assert path.read_text() == page, "run `pytest --rewrite` on this test"


def test_the_page_about_torchrun_has_every_flag_of_run_beyond_torchrun() -> None:
    text = section((ROOT / "TORCHRUN.md").read_text(), "Flags")
    table, beyond = text.split("What `run` and `launch` have beyond torchrun:")
    named = {flag for flag in FLAG.findall(beyond) if flag.startswith("--")} - flags_in(table)
    assert named == flags_of(OF_NODECLIENT["run"]) - flags_in(table) - OF_ALL | {"--coord"}


@pytest.mark.parametrize(
    ("program", "command", "parser"),
    [("nodeclient", command, OF_NODECLIENT[command]) for command in OPERATORS]
    + [("coordinatord", command, parser) for command, parser in OF_COORDINATORD.items()],
)
def test_the_operators_page_has_every_command_with_its_flags(
    program: str, command: str, parser: argparse.ArgumentParser
) -> None:
    assert f"{program} {command} " in OPERATING
    assert {flag for flag in flags_of(parser) - OF_ALL if flag not in OPERATING} == set()


@pytest.mark.parametrize("code", [code.value for code in ExitCode])
def test_the_page_of_exit_codes_has_each(code: int) -> None:
    cells = re.findall(r"^\| (.+?) \|", (DOCS / "exit-codes.md").read_text(), re.MULTILINE)
    assert any(str(code) in re.split(r"\D+", cell) for cell in cells)


def test_the_reference_has_the_variables_of_a_worker() -> None:
    values: dict[str, Any] = {field.name: 1 if field.type == "int" else "x" for field in fields(WorkerEnvironment)}
    text = section(REFERENCE, "The environment of a worker")
    assert [name for name in WorkerEnvironment(**values).to_environ() if f"`{name}`" not in text] == []


def test_each_field_of_a_report_is_explained_as_its_record_does(*, rewrite: bool) -> None:
    explained = field_notes(FailureStatus)
    rows = [f"| `{name}` | {explained[name]} |" for name in FailureStatus.__struct_fields__]
    check_table(DOCS / "failures.md", "failure", "| field | meaning |", rows, rewrite=rewrite)
