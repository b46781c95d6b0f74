"""Decides which command lines can be started warm: those that begin with a Python that runs `sitecustomize`.

A warm worker is a fork of an interpreter that our `sitecustomize` controls, so others have to start cold, as processes
of their own. This module starts no process, but parses Python's command line (`config_parse_cmdline` in initconfig.c).
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

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


def check(argv: Sequence[str], environ: Mapping[str, str]) -> tuple[str, ...]:
    """Check that this command line can be started warm; return its interpreter and the interpreter's options.

    Only the program's own arguments may differ between workers, by `LOCAL_RANK_MACRO`. Raises `ColdError`.
    """
    program = shutil.which(argv[0], path=environ.get("PATH", os.defpath))
    if program is None:
        raise ColdError(f"{argv[0]} is not found")
    real = Path(program).resolve()
    if not _PYTHON.fullmatch(real.name) or not _is_program(real):
        raise ColdError(f"{argv[0]} is no Python interpreter: begin the command with one, such as python -m")
    options, main = _split(argv)
    if any(LOCAL_RANK_MACRO in word for word in argv[: main + 1]):
        raise ColdError(
            f"{LOCAL_RANK_MACRO} stands before the program's own arguments, so each worker would run another program"
        )
    return (argv[0], *options)


def is_python(program: str) -> bool:
    """Whether a program is a Python interpreter by its name; it may be a script that starts one."""
    return _PYTHON.fullmatch(Path(program).name) is not None


def script_of(argv: Sequence[str]) -> str | None:
    """Return the script that a Python command runs; None for a module, `-c`, standard input, or another program."""
    try:
        options, main = _split(argv)
    except ColdError:
        return None
    has_main_option = [*options] != [*argv[1:main]]  # -m or -c, which is no option of the interpreter alone
    is_script = is_python(argv[0]) and main < len(argv) and not has_main_option
    return argv[main] if is_script and not argv[main].startswith("-") else None


def _split(argv: Sequence[str]) -> tuple[Sequence[str], int]:
    """Return the interpreter's options, and the index of the script, module or text of -c. Raises `ColdError`."""
    index = 1
    while index < len(argv):
        word = argv[index]
        if word == "-" or not word.startswith("-"):
            return argv[1:index], index
        if word.startswith("--"):
            index += 2 if word == "--check-hash-based-pycs" else 1
            continue
        for place, option in enumerate(word[1:], start=2):
            follows = place == len(word)  # the value is the next word, or the rest of this one
            if option in _WITHOUT_HOOK:
                raise ColdError(f"Python is {_WITHOUT_HOOK[option]} (-{option})")
            if option in _MAIN:
                others = word[: place - 1]  # of -um, -u is an option of the interpreter
                return (*argv[1:index], *((others,) if others != "-" else ())), index + follows
            if option in _WITH_VALUE:
                index += follows
                break
        index += 1
    raise ColdError("the command names no program for Python to run")


def _is_program(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(_ELF)) == _ELF
    except OSError:
        return False
