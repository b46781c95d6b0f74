"""Adds the flag `--print-completion SHELL`, as in torchrun: it prints a script that lets a shell complete flags.

The library shtab makes the script from a parser of all commands and their flags.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

SHELLS = ("bash", "zsh", "tcsh")
"""The shells that shtab supports."""

FILES = frozenset({"FILE", "SCRIPT"})
"""The metavars of values that are paths of files."""

FOLDERS = frozenset({"DIR"})
"""The metavars of values that are paths of directories."""


def add_completion(parser: argparse.ArgumentParser, make_whole: Callable[[], argparse.ArgumentParser]) -> None:
    """Add the flag. `make_whole` makes a parser that has all commands and their flags; `parser` may lack some."""
    parser.add_argument(
        "--print-completion",
        "--print_completion",
        action=_PrintCompletion,
        make_whole=make_whole,
        choices=SHELLS,
        metavar="SHELL",
        help=f"print a script for {', '.join(SHELLS)} that completes commands and flags, and exit",
    )


class _PrintCompletion(argparse.Action):
    def __init__(self, *, make_whole: Callable[[], argparse.ArgumentParser], **options: Any) -> None:
        super().__init__(default=argparse.SUPPRESS, **options)
        self._make_whole = make_whole

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        """Print the script and end the program, as `--help` does."""
        del namespace, option_string
        import shtab  # noqa: PLC0415 - only this flag needs it

        whole = self._make_whole()
        for action in _actions(whole):
            if action.metavar in FILES:
                action.complete = shtab.FILE  # type: ignore[attr-defined]  # shtab reads it
            elif action.metavar in FOLDERS:
                action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
        sys.stdout.write(f"{shtab.complete(whole, shell=str(values))}\n")
        sys.stdout.flush()
        parser.exit()


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:  # noqa: SLF001 - argparse has no public list, and shtab reads this one too
        yield action
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for command in action.choices.values():
                yield from _actions(command)
