"""Keeps what a user has set for training scripts out of our own programs: PYTHON variables, and modules of his.

A training script finds its modules in its folder and by PYTHONPATH. A `secrets.py` or `token.py` there would hide the
module of Python's that our programs need.
"""

from __future__ import annotations

import os
import sys

STANDARD_LIBRARY = os.path.dirname(os.__file__)  # noqa: PTH120 - PYTHONPATH may have another pathlib
"""The directory of Python's own modules."""

PACKAGE_PARENT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # noqa: PTH100, PTH120
"""The directory that has our packages."""


def prefer_standard_library() -> None:
    """Find Python's own modules first from now on, whatever PYTHONPATH and the working directory have."""
    sys.path.sort(key=lambda entry: entry != STANDARD_LIBRARY and not entry.endswith("lib-dynload"))


def isolated(program: str, *arguments: str) -> list[str]:
    """Return the command line that runs a program of ours, whose text this is, in an interpreter of its own.

    It ignores PYTHON variables, the working directory and `sitecustomize`. Modules are found in Python's own library,
    beside this package, and then where this process finds them, which is right for every kind of installation.
    """
    path = f"import sys\nsys.path += {[PACKAGE_PARENT, *sys.path]!a}\n"
    return [sys.executable, "-I", "-S", "-c", path + program, *arguments]
