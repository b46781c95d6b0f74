"""Source as a pattern of the syntax tree: layout, comments and parentheses do not matter."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
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
    """Whether a node is as its pattern, or all nodes of a list are; what is read may also be what is set."""
    if type(pattern) is not type(found):
        return False
    if isinstance(pattern, list):
        return len(pattern) == len(found) and all(map(_is_like, pattern, found))
    if not isinstance(pattern, ast.AST):
        return bool(pattern == found)
    fields = [field for field in pattern._fields if field != "ctx"]
    return all(_is_like(getattr(pattern, field), getattr(found, field)) for field in fields)
