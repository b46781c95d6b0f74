"""Copies graphs of objects, and serializes them as JSON, for `flight_recorder`: `snapshot`, `dump` and `load`.

A graph is an object with all that it refers to. It may have texts, numbers, enumerations, collections, and objects that
consist only of their attributes. An object that is referenced twice is copied once, and its copy is referenced twice.
Unlike with pickle, loading runs no code. `dump` masks the attributes that a class names in `SECRETS`.
"""

from __future__ import annotations

import importlib
import math
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator
from enum import Enum
from functools import cache
from itertools import chain
from typing import Any

from msgspec import Struct

from coordinatord.protocol.errors import OperationalError

Plain = dict[str, Any]
"""Data that `json` can write."""

_IMMUTABLE = (type(None), bool, int, float, str, bytes, Enum, Struct, type)
"""Classes of objects that are not copied. The structs in a machine's state are frozen."""

_CONCEALED = "0"
"""The mask for each character of a secret, which preserves its length."""

_SEQUENCES = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}


class GraphError(OperationalError):
    """An object cannot be dumped, or data cannot be loaded."""


def attributes(thing: object) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of an object, in slots or in its dict, except those that begin with two underscores."""
    for name in _slots(type(thing)):  # type: ignore[arg-type] # classes are hashable
        if hasattr(thing, name):
            yield name, getattr(thing, name)
    for name, value in getattr(thing, "__dict__", {}).items():
        if not name.startswith("__"):
            yield name, value


@cache
def _slots(kind: type) -> tuple[str, ...]:
    declared = (base.__dict__.get("__slots__", ()) for base in kind.__mro__)
    names = chain.from_iterable((slots,) if isinstance(slots, str) else slots for slots in declared)
    return tuple(name for name in names if not name.startswith("__"))


# Copying


def snapshot(root: Any, *, most: int, without: Collection[str] = ()) -> tuple[Any, int]:
    """Copy a graph, except its immutable objects; return the copy, and its number of objects.

    The copy is None if it would have more than `most` objects. `without` names attributes of the root to leave out.
    """
    copier = _GraphCopier(most)
    try:
        clone = copier.begin(root)
        for name, value in attributes(root):
            if name not in without:
                setattr(clone, name, copier.copy(value))
    except _TooManyError:
        return None, len(copier.clones)
    return clone, len(copier.clones)


class _TooManyError(OperationalError):
    """The graph has more objects than allowed."""


_KNOWN_IMMUTABLE: set[type] = set()
"""The subclasses of `_IMMUTABLE` that were met so far: a look into this set is much faster than `issubclass`."""


class _GraphCopier:
    """Copies one graph of at most `most` objects.

    Most values are numbers and texts, so `instance` and `mapping` look into `_KNOWN_IMMUTABLE` first, to save calls.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.clones: dict[int, Any] = {}
        """The copies, by the id of the original."""

    def copy(self, value: Any) -> Any:
        kind = type(value)
        if kind in _KNOWN_IMMUTABLE:
            return value
        clone = self.clones.get(id(value))
        return _copy_method(kind)(self, value) if clone is None else clone  # type: ignore[arg-type] # hashable

    def begin(self, value: Any, clone: Any = None) -> Any:
        """Register and return `clone`, by default an empty one, as the copy of an object, so that a cycle finds it."""
        clone = object.__new__(type(value)) if clone is None else clone
        self.clones[id(value)] = clone
        if len(self.clones) > self._most:
            raise _TooManyError
        return clone

    def instance(self, value: Any) -> Any:
        clone = self.begin(value)
        for name, inner in attributes(value):
            setattr(clone, name, inner if type(inner) in _KNOWN_IMMUTABLE else self.copy(inner))
        return clone

    def mapping(self, value: dict[Any, Any]) -> Any:
        clone = self.begin(value, Counter() if isinstance(value, Counter) else {})
        for key, inner in value.items():
            clone[self.copy(key)] = inner if type(inner) in _KNOWN_IMMUTABLE else self.copy(inner)
        return clone

    def sequence(self, value: list[Any] | deque[Any]) -> Any:
        clone = self.begin(value, deque(maxlen=value.maxlen) if isinstance(value, deque) else [])
        clone.extend(map(self.copy, value))
        return clone

    def tuple_or_set(self, value: Collection[Any]) -> Any:
        return self.begin(value, type(value)(map(self.copy, value)))  # type: ignore[call-arg]


@cache
def _copy_method(kind: type) -> Callable[[_GraphCopier, Any], Any]:
    """Return the function that copies objects of a class; add an immutable class to `_KNOWN_IMMUTABLE`."""
    if issubclass(kind, _IMMUTABLE):
        _KNOWN_IMMUTABLE.add(kind)
        return lambda _, value: value
    if issubclass(kind, dict):
        return _GraphCopier.mapping
    if issubclass(kind, list | deque):
        return _GraphCopier.sequence
    return _GraphCopier.tuple_or_set if issubclass(kind, tuple | set | frozenset) else _GraphCopier.instance


# Dumping


class _GraphWriter:
    """Makes a list of all objects of a graph; a reference is `{"object": its place in the list}`."""

    def __init__(self) -> None:
        self.objects: list[list[Any]] = []
        """The kind of each object, and its content."""
        self._places: dict[int, int] = {}
        """The place of each object, by its id."""
        self._alive: list[Any] = []
        """The objects written so far, so that Python does not reuse their ids."""

    def write(self, value: Any) -> Any:
        if value is None or (isinstance(value, bool | str) and not isinstance(value, Enum)):
            return value
        if isinstance(value, int | float) and not isinstance(value, Enum) and math.isfinite(value):
            return value
        if (place := self._places.get(id(value))) is None:
            place = self._places[id(value)] = len(self.objects)
            self._alive.append(value)
            self.objects.append([])
            self.objects[place] = self._entry(value)
        return {"object": place}

    def _entry(self, value: Any) -> list[Any]:
        match value:
            case float():
                return ["float", str(value)]
            case bytes():
                return ["bytes", value.hex()]
            case Enum():
                return ["enum", _name_of(type(value)), self.write(value.value)]
            case type():
                return ["class", _name_of(value)]
            case deque():
                return ["deque", [self.write(inner) for inner in value], value.maxlen]
        return self._entry_of_many(value)

    def _entry_of_many(self, value: Any) -> list[Any]:
        if isinstance(value, dict):
            kind = "counter" if isinstance(value, Counter) else "dict"
            return [kind, [[self.write(key), self.write(inner)] for key, inner in value.items()]]
        if isinstance(value, list | tuple | set | frozenset):
            return [type(value).__name__, [self.write(inner) for inner in value]]
        if callable(value):
            raise GraphError(f"{value!r} is code, which is not written down")
        secrets = getattr(type(value), "SECRETS", ())
        written_attributes = {
            name: self.write(_CONCEALED * len(inner) if name in secrets else inner) for name, inner in attributes(value)
        }
        return ["instance", _name_of(type(value)), written_attributes]


def _name_of(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def dump(root: Any) -> Plain:
    """Serialize a graph. Raises `GraphError` for an object that is no data, such as a function."""
    writer = _GraphWriter()
    top = writer.write(root)
    return {"root": top, "objects": writer.objects}


# Loading


class _GraphReader:
    """Makes the objects of a `_GraphWriter` again."""

    def __init__(self, objects: list[list[Any]], packages: Collection[str]) -> None:
        self._objects = objects
        self._packages = packages
        self._built: dict[int, Any] = {}
        """The objects made so far, by their place."""

    def read(self, plain: Any) -> Any:
        if not isinstance(plain, dict):
            return plain
        place = plain["object"]
        if place not in self._built:
            self._build(place, *self._objects[place])
        return self._built[place]

    def _build(self, place: int, kind: str, *parts: Any) -> None:
        """Make an object. If it can be part of a cycle, it is registered in `_built` before its content is read."""
        clone: Any
        if kind in {"dict", "counter"}:
            clone = self._built[place] = {} if kind == "dict" else Counter()
            for key, value in parts[0]:
                clone[self.read(key)] = self.read(value)
        elif kind in {"list", "deque"}:
            clone = self._built[place] = [] if kind == "list" else deque(maxlen=parts[1])
            clone.extend(self.read(inner) for inner in parts[0])
        elif kind == "instance":
            made = self._class(parts[0])
            if issubclass(made, Struct):
                self._built[place] = made(**{name: self.read(value) for name, value in parts[1].items()})
                return
            clone = self._built[place] = object.__new__(made)
            for name, value in parts[1].items():
                object.__setattr__(clone, name, self.read(value))
        else:
            self._built[place] = self._value(kind, *parts)

    def _value(self, kind: str, *parts: Any) -> Any:
        match kind, parts:
            case "float", (text,):
                return float(text)
            case "bytes", (text,):
                return bytes.fromhex(text)
            case "enum", (name, value):
                return self._class(name)(self.read(value))
            case "class", (name,):
                return self._class(name)
        return _SEQUENCES[kind](self.read(inner) for inner in parts[0])

    def _class(self, name: str) -> Any:
        """Return a class by its name. Only the packages are imported, since other modules could run any code."""
        module, _, path = name.partition(":")
        if not any(f"{module}.".startswith(f"{package}.") for package in self._packages):
            raise GraphError(f"{name[:80]!r} is of none of the packages {', '.join(self._packages)}")
        found: Any = importlib.import_module(module)
        for part in path.split("."):
            found = vars(found)[part]
        if not isinstance(found, type):
            raise GraphError(f"{name[:80]!r} is no class")
        return found


def load(plain: Plain, packages: Collection[str]) -> Any:
    """Load a dumped graph; its classes must be in `packages`. Raises `GraphError`."""
    try:
        return _GraphReader(plain["objects"], packages).read(plain["root"])
    except (AttributeError, ImportError, IndexError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise GraphError(f"it is damaged: {error!r}") from error
