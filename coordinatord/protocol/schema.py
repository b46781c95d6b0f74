"""Checks decoded data against the annotated dataclasses of `messages` and `http`, builds them, and takes them apart.

A check is made once for each class, out of its type annotations, so that a message has one definition and no second
list of rules. Nothing is coerced: a number in a text's place is an error. A field may hold `int`, `float`, `str`,
`bytes`, `bool`, a `StrEnum` or another message class, a tuple of any one of these, and any of all these or None.
`Length` and `Range` bound texts, bytes, tuples and numbers. `Clipped` texts are made fit instead of refused, `Token`s
fit into a header, and `Verbatim` texts may have any characters.

`check_for` is strict: both sides of a session use one version. `reader_for` is for the HTTP API, whose two sides may
be of different releases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from enum import StrEnum
from functools import cache
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from coordinatord.protocol.errors import OperationalError
from coordinatord.protocol.frozen_class import frozen
from coordinatord.protocol.text import clip

Check = Callable[[object], Any]
"""Takes a decoded value; returns the value of the field, or raises `_WrongError`."""

MessageT = TypeVar("MessageT")


class SchemaError(OperationalError):
    """The data is not the message that it claims to be; the text names the field. Nothing has changed."""


class _WrongError(OperationalError):
    """A value is wrong. Its path is added on the way out, so that correct data costs nothing for it."""

    def __init__(self, problem: str, path: str = "") -> None:
        super().__init__(problem)
        self.problem, self.path = problem, path

    def within(self, part: str) -> _WrongError:
        """Return the same error with the path from the object of which the value is this part."""
        return _WrongError(self.problem, part + self.path)


@frozen
class Length:
    """Bounds of a text, in characters, all of them printable, of bytes, or of a tuple, in items; both are included."""

    least: int
    most: int


@frozen
class Range:
    """Bounds of a number, both included."""

    least: float
    most: float


@frozen
class Clipped:
    """The bound of a text for people, in characters: a longer one is cut, and unprintable characters become blanks."""

    most: int


@frozen
class Verbatim:
    """The bound of a text as it was written, in characters: with ends of lines and whatever else it has."""

    most: int


@frozen
class Token:
    """The bound of a text that goes into a header unchanged, in characters: visible ASCII letters, and at least one."""

    most: int


Without = Mapping[type[Any], frozenset[str]]
"""The fields that the data lacks, by class: a message then holds their defaults. The values that an enumeration lacks
are errors."""

_WITHOUT_NOTHING: Without = MappingProxyType({})


def check_for(message: type[MessageT], without: Without = _WITHOUT_NOTHING) -> Callable[[object, str], MessageT]:
    """Build the check that turns a decoded map into `message`.

    Fields that are missing or unknown are errors: the data was written in exactly one version. That version may be
    `without` some fields.
    """
    return _placed(_exactly(message, without))


class Checks(dict[type[Any], Callable[[object, str], Any]]):
    """The checks of messages by class, each made at its first use: to make all of them delays a start by a tenth."""

    def __init__(self, without: Without = _WITHOUT_NOTHING) -> None:
        super().__init__()
        self._without = without

    def __missing__(self, message: type[Any]) -> Callable[[object, str], Any]:
        """Make the check of a class at its first use."""
        check = self[message] = check_for(message, self._without)
        return check


def reader_for(message: type[MessageT]) -> Callable[[object, str], MessageT]:
    """Return the check that turns a decoded map of a perhaps newer or older release into `message`.

    Unknown fields are left out, and a field that is missing has its default; if it has no default it is an error.
    """
    return _placed(_leniently(message))  # type: ignore[arg-type] # classes are hashable


def fields_of(message: Any, without: Without = _WITHOUT_NOTHING) -> dict[str, Any]:
    """Return the fields of a message by name, which `check_for` reads; those of a subclass are its own alone.

    For a message without slots this takes a quarter of the time: it copies a map that exists.
    """
    names = getattr(message, "__slots__", None)
    if names is None:
        return dict(vars(message))
    left_out = without.get(type(message))
    if left_out is None:
        return {name: getattr(message, name) for name in names}
    return {name: getattr(message, name) for name in names if name not in left_out}


def _placed(check_fields: Callable[[object], MessageT]) -> Callable[[object, str], MessageT]:
    """Return a check whose errors are `SchemaError`s that name the path of the wrong value."""

    def check(value: object, path: str) -> MessageT:
        try:
            return check_fields(value)
        except _WrongError as error:
            raise SchemaError(f"{path}{error.path} {error.problem}") from None

    return check


def _check_of(annotation: Any, of_message: Callable[[type[Any]], Check], without: Without = _WITHOUT_NOTHING) -> Check:
    """Return the check of a field; `of_message` makes those of the messages within."""
    if get_origin(annotation) is Annotated:
        kind, bound = get_args(annotation)
        if get_origin(kind) is tuple:
            return _several(_check_of(get_args(kind)[0], of_message, without), bound)
        if kind is bytes:
            return _bytes(bound)
        return _TEXTS[type(bound)](bound) if kind is str else _number(kind, bound)
    if get_origin(annotation) in {UnionType, Union}:
        (inner,) = [part for part in get_args(annotation) if part is not NoneType]
        return _optional(_check_of(inner, of_message, without))
    if isinstance(annotation, type) and issubclass(annotation, StrEnum):
        return _member(annotation, without.get(annotation, frozenset()))
    return _boolean if annotation is bool else of_message(annotation)


@cache
def _annotations(message: type[Any]) -> Mapping[str, Any]:
    return get_type_hints(message, include_extras=True)


def _exactly(message: type[MessageT], without: Without) -> Callable[[object], MessageT]:
    hints = _annotations(message)  # type: ignore[arg-type] # classes are hashable
    left_out = without.get(message, frozenset())
    kept = [field.name for field in fields(message) if field.name not in left_out]  # type: ignore[arg-type]
    checks = [(name, _check_of(hints[name], lambda inner: _exactly(inner, without), without)) for name in kept]
    count, names = len(kept), frozenset(kept)
    build: Callable[..., MessageT] = _by_name(message, kept) if left_out else message

    def check(value: object) -> MessageT:
        if type(value) is not dict:
            raise _WrongError(f"must be a map, not {shown(value)}")
        if len(value) != count:
            raise _WrongError(_difference(names, value))
        try:
            checked = [check_field(value[name]) for name, check_field in checks]
        except KeyError:
            raise _WrongError(_difference(names, value)) from None
        except _WrongError:
            raise _first_wrong((f".{name}", check_field, value[name]) for name, check_field in checks) from None
        return build(*checked)

    return check


def _first_wrong(parts: Iterable[tuple[str, Check, object]]) -> _WrongError:
    """Check parts of which one is wrong once more; return its error with its path.

    So only wrong data takes the time that it costs to know where each value is.
    """
    for part, check, value in parts:
        try:
            check(value)
        except _WrongError as error:
            return error.within(part)
    raise AssertionError


@cache
def _leniently(message: type[Any]) -> Check:
    hints = _annotations(message)  # type: ignore[arg-type] # as above
    checks = [
        (field.name, _check_of(hints[field.name], _leniently))  # type: ignore[arg-type] # as above
        for field in fields(message)
    ]
    needed = frozenset(field.name for field in fields(message) if field.default is field.default_factory is MISSING)

    def check(value: object) -> Any:
        if type(value) is not dict:
            raise _WrongError(f"must be a map, not {shown(value)}")
        if not needed <= value.keys():
            raise _WrongError(f"lacks {', '.join(sorted(needed - value.keys()))}")
        checked: dict[str, Any] = {}
        name = ""
        try:
            for name, check_field in checks:
                if name in value:
                    checked[name] = check_field(value[name])
        except _WrongError as error:
            raise error.within(f".{name}") from None
        return message(**checked)

    return check


def _by_name(message: type[MessageT], names: Sequence[str]) -> Callable[..., MessageT]:
    return lambda *values: message(**dict(zip(names, values, strict=True)))


def _text(bound: Length) -> Check:
    least, most = bound.least, bound.most

    def check(value: object) -> str:
        if type(value) is not str:
            raise _WrongError(f"must be of type str, not {shown(value)}")
        if not least <= len(value) <= most:
            raise _WrongError(f"must be within {least} and {most} characters, not {shown(value)}")
        # Texts end up in environments, logs and terminals: no null byte, escape sequence or line end gets that far.
        if not value.isprintable():
            raise _WrongError(f"must consist of printable characters, not {shown(value)}")
        return value

    return check


def _bytes(bound: Length) -> Check:
    least, most = bound.least, bound.most

    def check(value: object) -> bytes:
        if type(value) is not bytes:
            raise _WrongError(f"must be of type bytes, not {shown(value)}")
        if not least <= len(value) <= most:
            raise _WrongError(f"must have {least} to {most} bytes, not {len(value)}")
        return value

    return check


def _raw(bound: Verbatim) -> Check:
    def check(value: object) -> str:
        if type(value) is not str:
            raise _WrongError(f"must be of type str, not {shown(value)}")
        if len(value) > bound.most:
            raise _WrongError(f"must have at most {bound.most} characters, not {len(value)}")
        return value

    return check


def _clipped(bound: Clipped) -> Check:
    def check(value: object) -> str:
        if type(value) is not str:
            raise _WrongError(f"must be of type str, not {shown(value)}")
        return clip(value, bound.most)

    return check


def _token(bound: Token) -> Check:
    def check(value: object) -> str:
        if type(value) is not str:
            raise _WrongError(f"must be of type str, not {shown(value)}")
        if not 1 <= len(value) <= bound.most or not value.isascii() or not value.isprintable() or " " in value:
            raise _WrongError(f"must be 1 to {bound.most} visible ASCII letters, not {shown(value)}")
        return value

    return check


_TEXTS: dict[type, Callable[[Any], Check]] = {Length: _text, Verbatim: _raw, Clipped: _clipped, Token: _token}


def _number(kind: type[int | float], bound: Range) -> Check:
    least, most = bound.least, bound.most
    accepted = {int, float} if kind is float else {kind}

    def check(value: Any) -> Any:
        if type(value) not in accepted:
            raise _WrongError(f"must be of type {kind.__name__}, not {shown(value)}")
        # A NaN compares as False, so this puts it outside every range.
        if least <= value <= most:
            return value
        raise _WrongError(f"must be within {least} and {most}, not {shown(value)}")

    return check


def _several(check_item: Check, bound: Length) -> Check:
    def check(value: object) -> tuple[Any, ...]:
        if type(value) is not list:
            raise _WrongError(f"must be a list, not {shown(value)}")
        if not bound.least <= len(value) <= bound.most:
            raise _WrongError(f"must have {bound.least} to {bound.most} items, not {len(value)}")
        try:
            return tuple([check_item(item) for item in value])
        except _WrongError:
            raise _first_wrong((f"[{place}]", check_item, item) for place, item in enumerate(value)) from None

    return check


def _optional(check_inner: Check) -> Check:
    return lambda value: None if value is None else check_inner(value)


def _member(choices: type[StrEnum], left_out: frozenset[str]) -> Check:
    members = {choice.value: choice for choice in choices if choice not in left_out}

    def check(value: object) -> StrEnum:
        member = members.get(value) if type(value) is str else None
        if member is None:
            raise _WrongError(f"must be one of {', '.join(members)}, not {shown(value)}")
        return member

    return check


def _boolean(value: object) -> bool:
    if type(value) is not bool:
        raise _WrongError(f"must be true or false, not {shown(value)}")
    return value


def _difference(names: frozenset[str], value: dict[Any, Any]) -> str:
    missing = sorted(names - value.keys())
    if missing:
        return f"lacks {', '.join(missing)}"
    unknown = sorted(shown(name) for name in value.keys() - names)
    return f"has unknown fields: {', '.join(unknown[:8])}"


def shown(value: object) -> str:
    """Return a short text that shows a value which a peer has sent: its beginning, or the name of a collection's type.

    A collection may be nested more deeply than Python can follow.
    """
    text = repr(value) if isinstance(value, str | int | float | NoneType) else type(value).__name__
    return text if len(text) <= 40 else f"{text[:37]}..."  # noqa: PLR2004
