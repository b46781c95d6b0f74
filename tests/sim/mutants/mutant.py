"""A mutant: one small mistake in the source of one module, and how it is planted into a process.

The mistake is never written to the tree. The module is compiled from the changed syntax tree when it is first imported,
in a process that imports everything else as it is. So there are no copies of the tree that could be left behind, and
the tree can be edited meanwhile. A pattern of it matches whatever the layout, the comments and parentheses are.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any


@dataclass
class Spot:
    """A part of a tree that a pattern matches."""

    parent: ast.AST
    field: str
    nodes: slice | None
    """Where it stands in the field; None if it is all of it, and no list."""

    def replace(self, new: list[Any]) -> None:
        """Put other nodes here."""
        if self.nodes is None:
            [only] = new
            setattr(self.parent, self.field, only)
            return
        old = getattr(self.parent, self.field)
        old[self.nodes] = new
        if not old and self.field == "body":
            old.append(ast.fix_missing_locations(ast.Pass()))


def scope(tree: ast.Module, name: str) -> ast.AST:
    """Return the class, function or value with a qualified name. Raises `LookupError`."""
    found: Any = tree
    for part in name.split("."):
        found = next((node for node in found.body if part in _names(node)), None)
        if found is None:
            raise LookupError(f"there is no {name}")
    return found  # type: ignore[no-any-return]


def readings(old: str, new: str) -> Iterator[tuple[list[Any], list[Any]]]:
    """Yield the nodes of two sources: a single expression as such, and also as a statement if nothing replaces it."""
    pattern, replacement = ast.parse(old).body, ast.parse(new).body
    one, other = _expression(pattern), _expression(replacement)
    if not (one and other):
        yield pattern, replacement
    if one and (other or not replacement):
        yield one, other


def spots(root: ast.AST, pattern: list[Any]) -> Iterator[Spot]:
    """Yield the parts of a tree that match consecutive nodes."""
    for parent in ast.walk(root):
        for field, value in ast.iter_fields(parent):
            nodes = value if isinstance(value, list) else [value]
            for start in range(len(nodes) - len(pattern) + 1):
                end = start + len(pattern)
                if _is_like(pattern, nodes[start:end]):
                    yield Spot(parent, field, slice(start, end) if nodes is value else None)


def _names(node: ast.AST) -> list[str]:
    targets = getattr(node, "targets", [getattr(node, "target", node)])
    return [name for target in targets for name in [getattr(target, "name", getattr(target, "id", ""))]]


def _expression(body: list[ast.stmt]) -> list[ast.expr]:
    return [body[0].value] if len(body) == 1 and isinstance(body[0], ast.Expr) else []


def _is_like(pattern: Any, found: Any) -> bool:
    """Whether a node is as its pattern, or all nodes of a list are."""
    if type(pattern) is not type(found):
        return False
    if isinstance(pattern, list):
        return len(pattern) == len(found) and all(map(_is_like, pattern, found))
    if not isinstance(pattern, ast.AST):
        return bool(pattern == found)
    return all(_is_like(getattr(pattern, field), getattr(found, field)) for field in pattern._fields)


ROOT = Path(__file__).parents[3]


class MisfitError(Exception):
    """A mutant does not fit the source any more, and has to be written anew."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A mistake that a reviewer might miss."""

    name: str
    breaks: str
    """The effect of the mistake, for a person."""
    module: str
    """The dotted name of the module that it is in."""
    place: str
    """The qualified name of the class, function or value that it is in."""
    old: str
    """The source that the mistake replaces: a pattern of the syntax tree, which matches once in its place."""
    new: str
    """The mistake; empty if it is to leave out an element or some statements."""
    plays: str = "small_world"
    """The function that plays the histories which may show it: of `history`, or of another module that it names."""

    @property
    def path(self) -> Path:
        """The file of the module."""
        return ROOT.joinpath(*self.module.split(".")).with_suffix(".py")

    def change(self, source: str) -> ast.Module:
        """Return the module's syntax tree with the mistake. Raises `MisfitError`."""
        tree = ast.parse(source)
        try:
            where = scope(tree, self.place)
        except LookupError as error:
            raise MisfitError(f"mutant {self.name}: {error} in {self.module}") from None
        found = [
            (spot, new)
            for old, new in readings(self.old, self.new)
            for spot in spots(where, old)
            if new or spot.nodes is not None
        ]
        if len(found) != 1:
            text = (
                f"mutant {self.name}: its old source stands {len(found)} times in {self.module}:{self.place}, not once"
            )
            raise MisfitError(text)
        [(spot, new)] = found
        spot.replace(new)
        return tree


def plant(mutant: Mutant) -> None:
    """Make this process import the mutant's module with its mistake. Raises `MisfitError`."""
    if mutant.module in sys.modules:
        raise MisfitError(f"mutant {mutant.name}: {mutant.module} is imported already")
    changed = mutant.change(mutant.path.read_text())
    sys.meta_path.insert(0, _Finder(mutant.module, changed))


class _Finder(MetaPathFinder):
    """Finds one module, with another syntax tree than its file has."""

    def __init__(self, module: str, tree: ast.Module) -> None:
        self._module, self._tree = module, tree

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._module:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = _Loader(fullname, spec.origin, self._tree)
        return spec


class _Loader(SourceFileLoader):
    """Compiles a syntax tree in place of the file's text, and ignores earlier bytecode of the file."""

    def __init__(self, fullname: str, path: str, tree: ast.Module) -> None:
        super().__init__(fullname, path)
        self._tree = tree

    def get_code(self, fullname: str) -> CodeType:
        code: CodeType = self.source_to_code(self._tree, self.get_filename(fullname))
        return code
