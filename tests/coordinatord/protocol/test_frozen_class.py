"""A class of `@frozen` is what a frozen dataclass of the standard library would be, but for what it costs."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

import pytest

from coordinatord.protocol.frozen_class import frozen, is_frozen


@frozen
class Base:
    """A class with a default."""

    KIND: ClassVar[str] = "base"

    name: str
    size: int = 0


@frozen
class Longer(Base):
    """A class that adds to another one."""

    parts: list[int] = field(default_factory=list)
    note: str = field(default="", repr=False, compare=False)


@frozen(kw_only=True)
class Named:
    """A class with a method of its own in place of a usual one, and something to do after its construction."""

    begin: int
    end: int

    def __post_init__(self) -> None:
        """Refuse what ends before it begins."""
        if self.end < self.begin:
            raise ValueError(f"{self.end} is before {self.begin}")

    def __repr__(self) -> str:
        """Return it in short."""
        return f"{self.begin}-{self.end}"


@frozen
class Empty:
    """A class without fields."""


@dataclass(frozen=True, slots=True)
class Standard:
    """The standard library's own."""

    name: str
    size: int = 0


def test_it_is_made_with_defaults_and_inherits_fields() -> None:
    assert (Base("a").name, Base("a").size, Base("a", 1).size, Base(name="a", size=2).size) == ("a", 0, 1, 2)
    longer = Longer("a", 1)
    assert (longer.name, longer.size, longer.parts, longer.KIND) == ("a", 1, [], "base")
    assert longer.parts is not Longer("a").parts
    assert [declared.name for declared in fields(Longer)] == ["name", "size", "parts", "note"]


def test_equal_objects_have_equal_values_and_classes() -> None:
    assert Base("a", 1) == Base("a", 1)
    assert hash(Base("a", 1)) == hash(Base("a", 1))
    assert Base("a", 1) != Base("a", 2)
    assert Base("a") != Longer("a")
    other: object = ("a", 0)
    assert Base("a") != other
    assert Longer("a", note="x") == Longer("a", note="y")
    assert Empty() == Empty()
    assert len({Base("a"), Base("a"), Base("b")}) == 2
    with pytest.raises(TypeError, match="unhashable"):
        hash(Longer("a"))


def test_it_is_written_as_its_call() -> None:
    assert repr(Longer("a", 1, note="x")) == "Longer(name='a', size=1, parts=[])"
    assert repr(Named(begin=1, end=2)) == "1-2"
    assert repr(Empty()) == "Empty()"


def test_it_is_checked_after_its_construction() -> None:
    with pytest.raises(ValueError, match="1 is before 2"):
        Named(begin=2, end=1)
    with pytest.raises(ValueError, match="1 is before 2"):
        replace(Named(begin=0, end=1), begin=2)
    assert repr(replace(Named(begin=0, end=1), end=5)) == "0-5"


def test_wrong_arguments_are_an_error_from_the_first_call_on() -> None:
    @frozen
    class Fresh:
        name: str

    wrong: Any = Fresh
    for _ in range(2):
        with pytest.raises(TypeError, match=r"Fresh.__init__\(\) missing 1 required positional argument: 'name'"):
            wrong()
    wrong = Named
    with pytest.raises(TypeError, match="takes 1 positional"):
        wrong(1, 2)
    assert Fresh("a").name == "a"


def test_it_can_be_matched_by_position() -> None:
    match Base("a", 1):
        case Base(name, size):
            assert (name, size) == ("a", 1)


def test_it_has_no_room_for_anything_else() -> None:
    with pytest.raises(AttributeError):
        Base("a").other = 1  # type: ignore[attr-defined] # that is the point


@pytest.mark.parametrize(("kind", "frozen_one"), [(Base, True), (Longer, True), (Standard, True), (Exception, False)])
def test_it_can_be_asked_for(kind: type[Any], frozen_one: bool) -> None:
    assert is_frozen(kind) is frozen_one


def test_a_class_without_objects_has_no_compiled_method() -> None:
    @frozen
    class Unused:
        name: str

    common = vars(Unused)["__init__"]
    Unused("a")
    assert vars(Unused)["__init__"] is not common
    assert all(vars(Unused)[name] is vars(Empty)[name] for name in ("__eq__", "__hash__", "__repr__"))
