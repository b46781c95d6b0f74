"""The whole state of a machine as one value that can be compared: all that its objects hold, and what they share."""

from collections import deque
from enum import Enum
from functools import cache
from types import FunctionType, MethodType
from typing import Any

from msgspec import Struct

from coordinatord.runtime.object_graph import attributes

CONSTANT = (type(None), int, float, str, bytes, type, Enum, Struct, FunctionType, MethodType)


def fingerprint(root: Any) -> Any:
    """Return nested tuples that are equal for two states exactly if all that can be seen in them is."""
    numbers: dict[int, int] = {}

    def of(value: Any) -> Any:
        kind = type(value)
        if _is_constant(kind):  # type: ignore[arg-type] # classes are hashable
            return value
        if id(value) in numbers:
            return numbers[id(value)]
        numbers[id(value)] = len(numbers)
        if kind in {list, tuple, deque}:
            return list(map(of, value))
        if isinstance(value, dict):
            return [(of(key), of(inner)) for key, inner in value.items()]
        if kind in {set, frozenset}:
            return sorted(map(repr, value))
        return kind.__name__, [(name, of(inner)) for name, inner in attributes(value)]

    return of(root)


@cache
def _is_constant(kind: type) -> bool:
    """Whether objects of a class never change, and are compared by what they hold."""
    return issubclass(kind, CONSTANT)
