"""Source as a pattern of the syntax tree: layout, comments and parentheses do not matter.

`...` stands for any expression, or for any number of them in a list, such as the arguments of a call. In the source
that replaces a pattern, the first `...` is the part that the first one of the pattern stood for, and so on.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any


@dataclass
class Spot:
    """A part of a tree that a pattern matches."""

    parent: ast.AST
    field: str
    nodes: slice | None
    """Where it stands in the field; None if it is all of it, and no list."""
    parts: list[list[ast.AST]]
    """The nodes for which each `...` stood."""

    def replace(self, new: list[Any]) -> None:
        """Put other nodes here."""
        parts = iter(self.parts)
        old = getattr(self.parent, self.field)
        place = old if self.nodes is None else old[self.nodes][0]
        made = _filled(deepcopy(new), parts, place)
        if self.nodes is None:
            [old] = made
            setattr(self.parent, self.field, old)
        else:
            old[self.nodes] = made
            if not old and self.field == "body":
                old.append(ast.copy_location(ast.Pass(), place))


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
                parts = _match(pattern, nodes[start:end])
                if parts is not None:
                    yield Spot(parent, field, slice(start, end) if nodes is value else None, parts)


def _names(node: ast.AST) -> list[str]:
    targets = getattr(node, "targets", [getattr(node, "target", node)])
    return [name for target in targets for name in [getattr(target, "name", getattr(target, "id", ""))]]


def _expression(body: list[ast.stmt]) -> list[ast.expr]:
    return [body[0].value] if len(body) == 1 and isinstance(body[0], ast.Expr) else []


def _is_wild(node: Any) -> bool:
    return isinstance(node, ast.Constant) and node.value is ...


def _match(pattern: Any, found: Any) -> list[list[ast.AST]] | None:
    """Return what each `...` stands for, or None if a node or a list is not as its pattern."""
    if isinstance(pattern, list) and isinstance(found, list):
        return _match_list(pattern, found)
    if _is_wild(pattern) and isinstance(found, ast.expr):
        return [[found]]
    if type(pattern) is not type(found):
        return None
    if not isinstance(pattern, ast.AST):
        return [] if pattern == found else None
    fields = [field for field in pattern._fields if field != "ctx"]
    return _joined([_match(getattr(pattern, field), getattr(found, field)) for field in fields])


def _match_list(pattern: list[Any], found: list[Any]) -> list[list[ast.AST]] | None:
    if not pattern or (not found and not _is_wild(pattern[0])):
        return None if pattern or found else []
    if not _is_wild(pattern[0]):
        return _joined([_match(pattern[0], found[0]), _match_list(pattern[1:], found[1:])])
    ends = ((end, _match_list(pattern[1:], found[end:])) for end in range(len(found) + 1))
    return next(([found[:end], *rest] for end, rest in ends if rest is not None), None)


def _joined(matches: list[list[list[ast.AST]] | None]) -> list[list[ast.AST]] | None:
    return None if None in matches else [part for match in matches for part in match or ()]


def _filled(nodes: list[Any], parts: Iterator[list[ast.AST]], place: ast.AST) -> list[Any]:
    """Return the nodes with the parts of a pattern in place of each `...`, and with the place of what they replace."""
    made: list[Any] = []
    for node in nodes:
        if _is_wild(node):
            made += next(parts)
            continue
        if isinstance(node, ast.AST):
            ast.copy_location(node, place)
            for field, value in ast.iter_fields(node):
                filled = _filled(value if isinstance(value, list) else [value], parts, place)
                setattr(node, field, filled if isinstance(value, list) else filled[0])
        made.append(node)
    return made
