"""Checks decoded data against the annotated dataclasses of `messages`, and builds them.

A check is made once for each class, out of its type annotations, so that a message has one definition and no second
list of rules. Nothing is coerced: a number in a text's place is an error. A field may hold `int`, `float`, `str`,
`bool`, a `StrEnum` or another message class, a tuple of any one of these, and each of all this or None; `Length` and
`Range` bound texts, tuples and numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import StrEnum
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

Check = Callable[[object, str], Any]
"""Takes a decoded value and the path to it; returns what the field is to hold, or raises `SchemaError`."""

MessageT = TypeVar("MessageT")


class SchemaError(ValueError):
    """The data is not the message that it says it is; the text names the field. State: unchanged."""


@dataclass(frozen=True, slots=True)
class Length:
    """Bounds of a text, in characters, all of them printable, or of a tuple, in items; both are included."""

    least: int
    most: int


@dataclass(frozen=True, slots=True)
class Range:
    """Bounds of a number, both included."""

    least: float
    most: float


def check_for(message: type[MessageT]) -> Callable[[object, str], MessageT]:
    """Build the check that turns a decoded map into `message`.

    Fields that are missing or unknown are errors: both sides speak exactly one version of the protocol.
    """
    hints = get_type_hints(message, include_extras=True)
    checks = [(field.name, _check_of(hints[field.name])) for field in fields(message)]  # type: ignore[arg-type]
    names = frozenset(hints)

    def check(value: object, path: str) -> MessageT:
        if type(value) is not dict:
            raise SchemaError(f"{path} must be a map, not {_show(value)}")
        if value.keys() != names:
            raise SchemaError(f"{path} {_difference(names, value)}")
        return message(*[one(value[name], f"{path}.{name}") for name, one in checks])

    return check


def fields_of(message: Any) -> dict[str, Any]:
    """Take a message apart, the way back from `check_for`; of a subclass, this gives the fields of its own."""
    return {name: getattr(message, name) for name in message.__slots__}


def _check_of(annotation: Any) -> Check:
    if get_origin(annotation) is Annotated:
        kind, *bounds = get_args(annotation)
        return _several(kind, bounds[0]) if get_origin(kind) is tuple else _bounded(kind, bounds[0])
    if get_origin(annotation) in {UnionType, Union}:
        return _optional(annotation)
    if isinstance(annotation, type) and issubclass(annotation, StrEnum):
        return _member(annotation)
    if annotation is bool:
        return _boolean
    return check_for(annotation)


def _bounded(kind: type, bound: Length | Range) -> Check:
    least, most = bound.least, bound.most
    accepted = {int, float} if kind is float else {kind}
    measure: Callable[[Any], float] = len if isinstance(bound, Length) else _itself
    unit = " characters" if isinstance(bound, Length) else ""

    def check(value: object, path: str) -> object:
        if type(value) not in accepted:
            raise SchemaError(f"{path} must be of type {kind.__name__}, not {_show(value)}")
        # Written so that a NaN, which compares as False, is outside every range.
        if not least <= measure(value) <= most:
            raise SchemaError(f"{path} must be within {least} and {most}{unit}, not {_show(value)}")
        # Texts end up in environments, logs and terminals: no null byte, escape sequence or line end gets that far.
        if kind is str and not str(value).isprintable():
            raise SchemaError(f"{path} must consist of printable characters, not {_show(value)}")
        return value

    return check


def _several(kind: Any, bound: Length) -> Check:
    check_item = _check_of(get_args(kind)[0])

    def check(value: object, path: str) -> tuple[Any, ...]:
        if type(value) is not list:
            raise SchemaError(f"{path} must be a list, not {_show(value)}")
        if not bound.least <= len(value) <= bound.most:
            raise SchemaError(f"{path} must have {bound.least} to {bound.most} items, not {len(value)}")
        return tuple([check_item(item, f"{path}[{index}]") for index, item in enumerate(value)])

    return check


def _itself(number: float) -> float:
    return number


def _optional(annotation: Any) -> Check:
    (inner,) = [part for part in get_args(annotation) if part is not NoneType]
    check_inner = _check_of(inner)

    def check(value: object, path: str) -> object:
        return None if value is None else check_inner(value, path)

    return check


def _member(choices: type[StrEnum]) -> Check:
    members = {choice.value: choice for choice in choices}

    def check(value: object, path: str) -> StrEnum:
        member = members.get(value) if type(value) is str else None
        if member is None:
            raise SchemaError(f"{path} must be one of {', '.join(members)}, not {_show(value)}")
        return member

    return check


def _boolean(value: object, path: str) -> bool:
    if type(value) is not bool:
        raise SchemaError(f"{path} must be true or false, not {_show(value)}")
    return value


def _difference(names: frozenset[str], value: dict[Any, Any]) -> str:
    missing = sorted(names - value.keys())
    if missing:
        return f"lacks {', '.join(missing)}"
    unknown = sorted(_show(name) for name in value.keys() - names)
    return f"has unknown fields: {', '.join(unknown[:8])}"


def _show(value: object) -> str:
    """Show a value that a stranger sent: enough to recognise it by, never all of it."""
    text = repr(value) if isinstance(value, str | int | float | NoneType) else type(value).__name__
    return text if len(text) <= 40 else f"{text[:37]}..."  # noqa: PLR2004
