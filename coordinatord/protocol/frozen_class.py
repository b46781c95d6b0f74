"""Dataclasses that never change, and that cost the start of a program little: `@frozen`.

`dataclasses` writes six methods of a frozen class as text and has Python compile them. That takes 0.6 ms a class, a
fifth of a start where there are 200 of them, and a process makes objects of few. Here `__init__` is compiled when it is
first called, and the other methods are the same for all classes. mypy refuses to set a field. Nothing checks that at
run time, since an object would then take three times as long to make.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import Field, dataclass, field, fields, make_dataclass
from functools import cache
from operator import attrgetter
from typing import Any, TypeVar, dataclass_transform, overload

Made = TypeVar("Made")


@overload
def frozen(cls: type[Made], /) -> type[Made]: ...
@overload
def frozen(*, kw_only: bool = False) -> Callable[[type[Made]], type[Made]]: ...
@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[Any] | None = None, /, *, kw_only: bool = False) -> Any:
    """Make a frozen dataclass with slots of a class; a method that the class has by itself stays."""

    def make(cls: type[Any]) -> type[Any]:
        made = dataclass(init=False, repr=False, eq=False, slots=True, kw_only=kw_only)(cls)
        common = {"__init__": _first_init, "__eq__": _equals, "__hash__": _hashed, "__repr__": _written}
        for name, method in common.items():
            if name == "__init__" or name not in vars(cls):
                setattr(made, name, method)
        made.__frozen__ = True
        return made

    return make if cls is None else make(cls)


def is_frozen(kind: type[Any]) -> bool:
    """Whether objects of a class never change: a dataclass of `frozen`, or a frozen one of the standard library."""
    parameters = getattr(kind, "__dataclass_params__", None)
    return getattr(kind, "__frozen__", False) or (parameters is not None and bool(parameters.frozen))


def _first_init(self: Any, *values: object, **named: object) -> None:
    """Compile the `__init__` of the object's class, and call that."""
    kind = next(ancestor for ancestor in type(self).__mro__ if vars(ancestor).get("__init__") is _first_init)
    finish = {"__post_init__": kind.__post_init__} if hasattr(kind, "__post_init__") else {}
    parts = [(declared.name, Any, _same_field(declared)) for declared in fields(kind)]
    template = make_dataclass(kind.__name__, parts, namespace=finish, repr=False, eq=False, slots=True)
    init = vars(template)["__init__"]
    init.__qualname__ = f"{kind.__qualname__}.__init__"
    kind.__init__ = init  # type: ignore[misc] # it is the class's own
    init(self, *values, **named)


def _same_field(declared: Field[Any]) -> Any:
    return field(
        default=declared.default, default_factory=declared.default_factory, init=declared.init, kw_only=declared.kw_only
    )


@cache
def _values_of(kind: type[Any]) -> Callable[[Any], tuple[Any, ...]]:
    """Return the function that takes from an object of a class the values by which objects are compared."""
    names = [declared.name for declared in fields(kind) if declared.compare]
    if len(names) > 1:
        return attrgetter(*names)
    return lambda made: tuple([getattr(made, name) for name in names])


def _equals(self: Any, other: object) -> Any:
    kind = self.__class__
    if other.__class__ is not kind:
        return NotImplemented
    values = _values_of(kind)  # type: ignore[arg-type] # classes are hashable
    return self is other or values(self) == values(other)


def _hashed(self: Any) -> int:
    return _values_of(self.__class__)(self).__hash__()


def _written(self: Any) -> str:
    kind = self.__class__
    shown = (f"{declared.name}={getattr(self, declared.name)!r}" for declared in fields(kind) if declared.repr)
    return f"{kind.__qualname__}({', '.join(shown)})"
