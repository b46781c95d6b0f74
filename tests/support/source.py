"""The files of the tree as data: which there are, what a Python file imports and defines, and what a rule is.

The rules themselves are in `tidy`.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]

UNTRACKED = frozenset({".git", ".venv", "build", "dist", "__pycache__"})
"""Folders that hold no source of ours; the first is a file where git has several working trees."""

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
Definition = FunctionNode | ast.ClassDef


@dataclass(frozen=True)
class Import:
    """One name that a file imports, as the absolute module that it may be."""

    module: str
    line: int
    deferred: bool
    """Done inside a function or for the type checker alone, so not when the module is loaded."""

    def within(self, *packages: str) -> bool:
        """Return whether the module is one of `packages` or lies in one."""
        return any(f"{self.module}.".startswith(f"{package}.") for package in packages)


@dataclass(frozen=True)
class Source:
    """One file of the tree; its path is relative to the root."""

    path: PurePosixPath
    text: str

    @property
    def is_python(self) -> bool:
        """Whether the other properties, which look at the syntax tree, can be asked for."""
        return self.path.suffix == ".py"

    @property
    def is_test(self) -> bool:
        """Whether pytest collects this file."""
        return self.path.parts[0] == "tests" and self.path.name.startswith(("test_", "conftest"))

    def is_in(self, *folders: str) -> bool:
        """Return whether the file lies in one of `folders`, at any depth."""
        return any(self.path.is_relative_to(folder) for folder in folders)

    @cached_property
    def tree(self) -> ast.Module:
        """The syntax tree."""
        return ast.parse(self.text, filename=str(self.path))

    @cached_property
    def imports(self) -> tuple[Import, ...]:
        """Everything that the file imports, wherever in it."""
        return tuple(_imports(self.tree, self.path.parts, deferred=False))

    @cached_property
    def definitions(self) -> tuple[Definition, ...]:
        """All functions and classes, nested ones too."""
        return tuple(_definitions(self.tree))


@cache
def sources() -> list[Source]:
    """Return all files of the tree, sorted by path: read once, and parsed once, for all tests of one process."""
    found: list[Path] = []
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [name for name in folders if not _is_untracked(name)]
        found.extend(Path(folder, name) for name in files if not _is_untracked(name))
    return [
        Source(PurePosixPath(path.relative_to(ROOT)), path.read_text(errors="replace"))
        for path in sorted(found)
        if path.is_file()
    ]


def _is_untracked(name: str) -> bool:
    return name in UNTRACKED or name.endswith(("_cache", ".hypothesis"))


def _definitions(node: ast.AST) -> Iterator[Definition]:
    """Walk through what may hold statements, which is a small part of all nodes."""
    for field in ("body", "orelse", "handlers", "finalbody", "cases"):
        for inner in getattr(node, field, ()):
            if isinstance(inner, FunctionNode | ast.ClassDef):
                yield inner
            yield from _definitions(inner)


def _imports(node: ast.AST, parts: tuple[str, ...], *, deferred: bool) -> Iterator[Import]:
    """Walk downward and remember whether the statement runs when the module is loaded."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield Import(alias.name, node.lineno, deferred)
    elif isinstance(node, ast.ImportFrom):
        package = ".".join(parts[: len(parts) - node.level]) if node.level else ""
        module = ".".join(filter(None, (package, node.module)))
        for alias in node.names:
            yield Import(f"{module}.{alias.name}", node.lineno, deferred)
    elif isinstance(node, ast.If) and _is_type_checking(node.test):
        for statement in node.body:
            yield from _imports(statement, parts, deferred=True)
        for statement in node.orelse:
            yield from _imports(statement, parts, deferred=deferred)
    else:
        inside = deferred or isinstance(node, FunctionNode)
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.expr):
                yield from _imports(child, parts, deferred=inside)


def _is_type_checking(test: ast.expr) -> bool:
    return ast.unparse(test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}


Finding = tuple[int, str]
"""A line, and what is wrong there."""

Check = Callable[[Source], Iterator[Finding]]


@dataclass(frozen=True)
class Rule:
    """One rule of the house: which files it concerns, what breaks it, and the remedy."""

    name: str
    concerns: Callable[[Source], bool]
    findings: Check
    remedy: str

    def judge(self, source: Source) -> list[str]:
        """Write a line for each finding in a file; none if the rule does not concern it."""
        if not self.concerns(source):
            return []
        return [f"{source.path}:{line}: {problem}" for line, problem in sorted(self.findings(source))]
