"""Reads command lines of Python, and decides which of them can be started warm.

A warm worker is a fork of an interpreter that our `sitecustomize`, the *hook*, controls. So the command has to begin
with a Python that runs `sitecustomize`; workers of any other start cold, as processes of their own. This module starts
no process, but parses Python's command line (`config_parse_cmdline` in initconfig.c).
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from coordinatord.protocol.errors import OperationalError
from coordinatord.protocol.messages import ColdCause
from nodeclient.workers.spawn import LOCAL_RANK_MACRO

_PYTHON = re.compile(r"python[0-9.]*[a-z]?")
"""The file names of interpreters: python, python3, python3.13t."""

_ELF = b"\x7fELF"
"""The first bytes of a binary program. A script, which begins with `#!`, may do anything before it starts Python."""

_MAIN = "cm"
"""The options whose value is the program."""

_WITH_VALUE = "WX"
"""The other options with a value."""

_WITHOUT_HOOK = {"I": "isolated", "E": "set to ignore PYTHONPATH", "S": "set not to import site"}
"""Options that prevent Python from finding the hook."""


class ColdError(OperationalError):
    """Workers cannot be started warm; the text says why, with the remedy if there is one."""

    def __init__(self, text: str, cause: ColdCause = ColdCause.COMMAND) -> None:
        super().__init__(text)
        self.cause = cause


def check_warm(argv: Sequence[str], environ: Mapping[str, str]) -> tuple[str, ...]:
    """Check that this command line can be started warm; return its interpreter and the interpreter's options.

    Only the program's own arguments may differ between workers, by `LOCAL_RANK_MACRO`. Raises `ColdError`.
    """
    program = shutil.which(argv[0], path=environ.get("PATH", os.defpath))
    if program is None:
        raise ColdError(f"{argv[0]} is not found")
    real = Path(program).resolve()
    if not _PYTHON.fullmatch(real.name) or not _is_program(real):
        raise ColdError(f"{argv[0]} is no Python interpreter: begin the command with one, such as python -m")
    line = _parse(argv)
    if line.without_hook:
        raise ColdError(f"Python is {_WITHOUT_HOOK[line.without_hook]} (-{line.without_hook})")
    if any(LOCAL_RANK_MACRO in word for word in (argv[0], *line.options, line.program)):
        raise ColdError(
            f"{LOCAL_RANK_MACRO} stands before the program's own arguments, so each worker would run another program"
        )
    return (argv[0], *line.options)


def is_python(program: str) -> bool:
    """Whether a program is a Python interpreter by its name; it may be a script that starts one."""
    return _PYTHON.fullmatch(Path(program).name) is not None


def program_of(argv: Sequence[str]) -> tuple[str, str]:
    """Return the option that a Python command runs its program by (`-m`, `-c`, or none for a script), and the program.

    Both are empty for standard input, and if the command does not run Python.
    """
    try:
        line = _parse(argv)
    except ColdError:
        return "", ""
    return (line.main_option, line.program) if is_python(argv[0]) and line.program != "-" else ("", "")


class _PythonCommand(NamedTuple):
    """A command line of Python."""

    options: tuple[str, ...]
    """The interpreter's own options."""
    main_option: str
    """`-m` or `-c`; empty for a script."""
    program: str
    """The module, the code or the script; `-` for standard input."""
    without_hook: str
    """The letter of an option that prevents Python from finding the hook; empty without any."""


def _parse(argv: Sequence[str]) -> _PythonCommand:
    """Parse a command line. Raises `ColdError` if it names no program."""
    index, without_hook = 1, ""
    while index < len(argv):
        word = argv[index]
        if word == "-" or not word.startswith("-"):
            return _PythonCommand(tuple(argv[1:index]), "", word, without_hook)
        if word.startswith("--"):
            index += 2 if word == "--check-hash-based-pycs" else 1  # the only long option with a value
            continue
        for place, option in enumerate(word[1:], start=2):
            value = word[place:] or "".join(argv[index + 1 : index + 2])
            if option in _WITHOUT_HOOK:
                without_hook = option
            if option in _MAIN and value:
                others = word[: place - 1]  # of -um, -u is an option of the interpreter
                options = (*argv[1:index], *((others,) if others != "-" else ()))
                return _PythonCommand(options, f"-{option}", value, without_hook)
            if option in _WITH_VALUE:
                if place == len(word):  # nothing is left of this word, so the value is the next one
                    index += 1
                break
        index += 1
    raise ColdError("the command names no program for Python to run")


def _is_program(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(_ELF)) == _ELF
    except OSError:
        return False
