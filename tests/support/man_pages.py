"""Makes the man pages of both programs from their parsers."""

import argparse
from collections.abc import Iterator, Mapping

from coordinatord.runtime import PAGES


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
    """Return a text in which roff finds no request and no escape, and keeps each hyphen (see groff_man_style(7))."""
    quoted = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{quoted}" if quoted.startswith((".", "'")) else quoted
