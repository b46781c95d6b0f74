"""Isolates our programs from the PYTHON variables and the modules of a user's training scripts.

A script's own modules are in its folder and on PYTHONPATH. A `secrets.py` or `token.py` there would replace the module
of the standard library that our programs need.
"""

from __future__ import annotations

import os
import sys

STANDARD_LIBRARY = os.path.dirname(os.__file__)  # noqa: PTH120 - PYTHONPATH may have another pathlib
"""The directory of Python's own modules."""

PACKAGE_PARENT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # noqa: PTH100, PTH120
"""The directory that has our packages."""


def prefer_standard_library() -> None:
    """Change `sys.path`: the standard library comes before PYTHONPATH and the working directory."""
    sys.path.sort(key=lambda entry: entry != STANDARD_LIBRARY and not entry.endswith("lib-dynload"))


def isolated(program: str, *arguments: str) -> list[str]:
    """Return the command line that runs the source text `program` in an isolated interpreter.

    It ignores PYTHON variables, the working directory and `sitecustomize`. It finds modules in the standard library,
    then beside this package, and then on this process's `sys.path`.
    """
    path = f"import sys\nsys.path += {[PACKAGE_PARENT, *sys.path]!a}\n"
    return [sys.executable, "-I", "-S", "-c", path + program, *arguments]
