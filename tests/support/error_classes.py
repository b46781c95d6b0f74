"""Finds exception classes that do not say whose fault they are."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator

from tests.support.source import Source

_EXEMPT = ("coordinatord/protocol/errors.py", "nodeclient/forkserver/hook")
"""Where the branches are made; and what runs in the interpreters of workers, which may not have this package."""


def belongs_to_a_branch(source: Source) -> bool:
    """Whether the exception classes of a file have to be of one of the branches of `coordinatord.protocol.errors`."""
    return source.is_python and source.is_in("coordinatord", "nodeclient") and not source.is_in(*_EXEMPT)


def blameless_errors(source: Source) -> Iterator[tuple[int, str]]:
    """Find exception classes that are under none of the branches."""
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.ClassDef):
            continue
        for base in map(ast.unparse, node.bases):
            if base == "CoordinatordError" or _is_error_of_python(base):
                yield node.lineno, f"{node.name} is derived from {base}"


def _is_error_of_python(name: str) -> bool:
    found = getattr(builtins, name, None)
    return isinstance(found, type) and issubclass(found, BaseException)
