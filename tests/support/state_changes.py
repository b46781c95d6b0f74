"""Rules about changes of objects: queries and properties only read, and durable state changes by records alone.

Code is read here and not run, so types are unknown. A function owns an object if it has made it. Every other object,
and every attribute, may be a part of the state. A call is taken to change the same arguments as any function of that
name in `coordinatord/core/state` or `coordinatord/core/values`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import PurePosixPath

from tests.support.rule import Finding
from tests.support.source import ROOT, FunctionNode, Source

OF_COLLECTIONS = frozenset(
    {
        "__delitem__",
        "__setitem__",
        "add",
        "append",
        "appendleft",
        "clear",
        "difference_update",
        "discard",
        "extend",
        "extendleft",
        "insert",
        "intersection_update",
        "move_to_end",
        "pop",
        "popitem",
        "popleft",
        "remove",
        "reverse",
        "rotate",
        "setdefault",
        "sort",
        "subtract",
        "symmetric_difference_update",
        "update",
    }
)
"""Methods of collections that change their object."""

OF_THE_LIBRARY = frozenset(
    {
        "__delattr__",
        "__setattr__",
        "delattr",
        "heapify",
        "heappop",
        "heappush",
        "heappushpop",
        "heapreplace",
        "insort",
        "insort_left",
        "insort_right",
        "setattr",
    }
)
"""Functions of the standard library that change their first argument."""

MAKERS = frozenset({"defaultdict", "deque", "dict", "fromkeys", "iter", "list", "replace", "set", "sorted", "tuple"})
"""Functions that return a new object; a class does so too."""

DISPLAYS = (
    ast.Constant,
    ast.Dict,
    ast.DictComp,
    ast.GeneratorExp,
    ast.JoinedStr,
    ast.List,
    ast.ListComp,
    ast.Set,
    ast.SetComp,
    ast.Tuple,
)
"""Expressions that make an object."""

STATE = ("coordinatord/core/state", "coordinatord/core/values")
"""The rooms that hold the state."""

Argument = tuple[int, str]
"""An argument that a function changes: its position and its name. A method's object is its first argument."""

Changing = dict[tuple[bool, str], frozenset[Argument]]
"""The arguments that functions change, keyed by (whether it is a method, name)."""

Binding = tuple[str, ast.expr | None]
"""A name, and the expression for its object or for the collection that it is an element of; None if unknown."""


def query_changes(source: Source) -> Iterator[Finding]:
    """Find changes by a query of objects that it has not made; a constructor may change `self`."""
    yield from {finding for function in _functions(source) for finding in _changes_of_others(function)}


def property_changes(source: Source) -> Iterator[Finding]:
    """Find properties that change something: to a reader they look like values."""
    for function in _functions(source):
        if any("property" in ast.unparse(decorator) for decorator in function.decorator_list):
            yield from _changes_of_others(function)


def durable_changes(source: Source) -> Iterator[Finding]:
    """Find changes of durable state: of objects reached by way of `durable`, or with a durable type."""
    if "durable" not in source.text.lower():
        return
    found = set(_changes_within(source.tree, {"durable"}))
    for function in _functions(source):
        found |= set(_changes_within(function, _durable_names(function)))
    yield from found


@cache
def changing_functions() -> Changing:
    """Return the arguments that the functions and methods of the state and the values change."""
    found: Changing = {(True, name): frozenset({(0, "self")}) for name in OF_COLLECTIONS}
    found |= {(False, name): frozenset({(0, "")}) for name in OF_THE_LIBRARY}
    paths = [path for room in STATE for path in sorted((ROOT / room).glob("*.py"))]
    sources = [Source(PurePosixPath(path.relative_to(ROOT)), path.read_text()) for path in paths]
    functions = [function for source in sources for function in _functions(source) if "__" not in function.name]
    while True:  # one may change something only by calling another one
        before = dict(found)
        for function in functions:
            names = [argument.arg for argument in _arguments(function)]
            changed = frozenset((names.index(name), name) for name in _changed_arguments(function, before))
            if changed and function.name not in OF_COLLECTIONS:
                key = names[:1] == ["self"], function.name
                found[key] = found.get(key, frozenset()) | changed
        if found == before:
            return found


# Changes


def _changes_of_others(function: FunctionNode) -> Iterator[Finding]:
    for changed, shown in _others(function, changing_functions()):
        del changed
        yield shown.lineno, f"changes {ast.unparse(shown)}"


def _changes_within(scope: ast.AST, names: set[str]) -> Iterator[Finding]:
    for changed, shown in _changed(scope, changing_functions()):
        if _is_reached_by(changed, names):
            yield shown.lineno, f"changes {ast.unparse(shown)}"


def _changed_arguments(function: FunctionNode, known: Changing) -> set[str]:
    """Return the arguments of which a function changes something."""
    found = set()
    if changed := [changed for changed, _ in _others(function, known)]:
        for argument in _arguments(function):
            names = _names_for({argument.arg}, function)
            if any(_is_reached_by(one, names) for one in changed):
                found.add(argument.arg)
    return found


def _others(function: FunctionNode, known: Changing) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Find changes by a function of objects that it has not made."""
    own = _own_names(function)
    if function.name in {"__init__", "__post_init__"}:
        own.add("self")
    for changed, shown in _changed(function, known):
        if not _is_own(changed, own):
            yield changed, shown


def _changed(scope: ast.AST, known: Changing) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Find the objects that code changes, itself or by a call, each with the expression to show for it."""
    for node in _nodes(scope):
        match node:
            case ast.Attribute(value=changed, ctx=ast.Store() | ast.Del()):
                yield changed, node
            case ast.Subscript(value=changed, ctx=ast.Store() | ast.Del()):
                yield changed, node
            case ast.Call(func=ast.Attribute(value=changed, attr=name), args=arguments):
                yield from _passed(node, [changed, *arguments], known.get((True, name)))
                yield from _passed(node, arguments, known.get((False, name)))
            case ast.Call(func=ast.Name(id=name), args=arguments):
                yield from _passed(node, arguments, known.get((False, name)))


def _passed(
    call: ast.Call, arguments: list[ast.expr], changed: frozenset[Argument] | None
) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Find the arguments of a call that it changes."""
    for place, name in changed or ():
        named = [keyword.value for keyword in call.keywords if keyword.arg == name]
        for argument in arguments[place : place + 1] or named:
            yield argument, argument


# Names


def _own_names(function: FunctionNode) -> set[str]:
    """Return the names of objects that the function has made."""
    bindings = (*_bindings(function), *((argument.arg, None) for argument in _arguments(function)))
    own = {name for name, _ in bindings}
    while True:
        others = {name for name, value in bindings if value is None or not _is_own(value, own)}
        if not others & own:
            return own
        own -= others


def _durable_names(function: FunctionNode) -> set[str]:
    typed = {
        argument.arg
        for argument in _arguments(function)
        if argument.annotation is not None and ast.unparse(argument.annotation).startswith("Durable")
    }
    return _names_for({"durable", *typed}, function)


def _names_for(names: set[str], function: FunctionNode) -> set[str]:
    """Return these names, and all names of objects that are reached by way of them."""
    bindings = _bindings(function)
    while True:
        more = {name for name, value in bindings if value is not None and _is_reached_by(value, names)}
        if more <= names:
            return names
        names = names | more


@cache
def _bindings(function: FunctionNode) -> tuple[Binding, ...]:
    """Return the bindings of a function's names; an element counts as a part of its collection."""
    return tuple(_find_bindings(function))


def _find_bindings(function: FunctionNode) -> Iterator[Binding]:
    for node in _nodes(function):
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    yield from _bound(target, value)
            case ast.AnnAssign(target=target, value=ast.expr() as value) | ast.NamedExpr(target=target, value=value):
                yield from _bound(target, value)
            case ast.For(target=target, iter=value) | ast.comprehension(target=target, iter=value):
                for each in _iterated(value):
                    yield from _bound(target, each)
            case ast.withitem(context_expr=value, optional_vars=ast.expr() as target):
                yield from _bound(target, value)
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield name, None


def _bound(target: ast.expr, value: ast.expr) -> Iterator[Binding]:
    match target, value:
        case ast.Name(id=name), _:
            yield name, value
        case ast.Tuple(elts=targets), ast.Tuple(elts=values) if len(targets) == len(values):
            for one, its in zip(targets, values, strict=True):
                yield from _bound(one, its)
        case ((ast.Tuple(elts=targets) | ast.List(elts=targets)), _):
            for one in targets:
                yield from _bound(one, value)
        case ast.Starred(value=one), _:
            yield from _bound(one, value)


def _iterated(value: ast.expr) -> Iterator[ast.expr]:
    """Find the expressions that the elements come from, also inside `list(...)`, `zip(...)` and the like."""
    match value:
        case ast.Call(func=ast.Name(), args=[_, *_] as arguments):
            for argument in arguments:
                yield from _iterated(argument)
        case ast.GeneratorExp(elt=element) | ast.ListComp(elt=element):
            yield element
        case ast.Tuple(elts=elements) | ast.List(elts=elements):
            yield from elements
        case _:
            yield value


def _arguments(function: FunctionNode) -> list[ast.arg]:
    return [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]


@cache
def _nodes(scope: ast.AST) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(scope))


def _functions(source: Source) -> list[FunctionNode]:
    return [node for node in source.definitions if isinstance(node, FunctionNode)]


# Expressions


def _is_own(value: ast.expr, own: set[str]) -> bool:
    """Whether an expression makes an object, or reaches one from an own name without an attribute on the way."""
    match value:
        case ast.Name(id=name):
            return name in own
        case ast.Call(func=ast.Subscript(value=maker)) | ast.Call(func=maker) if _makes(maker):
            return True
        case ast.Call(func=ast.Attribute(value=inner)) | ast.Subscript(value=inner):
            return _is_own(inner, own)
    parts = _alternatives(value)
    return all(_is_own(part, own) for part in parts) if parts else isinstance(value, DISPLAYS)


def _is_reached_by(value: ast.expr, names: set[str]) -> bool:
    """Whether the way to an object leads over one of these names."""
    match value:
        case ast.Name(id=name) if name in names:
            return True
        case ast.Attribute(attr="durable") if "durable" in names:
            return True
        case ast.Attribute(value=inner) | ast.Subscript(value=inner) | ast.Call(func=inner):
            return _is_reached_by(inner, names)
    return any(_is_reached_by(part, names) for part in _alternatives(value))


def _alternatives(value: ast.expr) -> list[ast.expr]:
    match value:
        case ast.IfExp(body=one, orelse=other):
            return [one, other]
        case ast.BoolOp(values=values):
            return values
    return []


def _makes(maker: ast.expr) -> bool:
    name = maker.attr if isinstance(maker, ast.Attribute) else ast.unparse(maker)
    return name in MAKERS or name.lstrip("_")[:1].isupper()
