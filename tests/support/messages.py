"""Messages for hypothesis, and samples of them for tests by hand, made from the same annotations as the checks are."""

from collections.abc import Iterator
from enum import StrEnum
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from hypothesis import strategies as st
from msgspec import Meta, Struct

from coordinatord.protocol.kept_state import HELD_RANKS_MAX, PARTS_MAX, KeptParts
from coordinatord.protocol.log_messages import LogChunk, ReadLog
from coordinatord.protocol.messages import Assignment, Desired, Goal, JobSpec, Join, Message, Observed, Refused
from coordinatord.protocol.schema import plain_without
from coordinatord.protocol.stack_messages import AskStacks, Stacks
from tests.support.field_hints import field_hints

MESSAGES: tuple[type[Any], ...] = (Join, Observed, Desired, Refused, ReadLog, LogChunk, AskStacks, Stacks)

WIDEST = "\N{GRINNING FACE}"
"""Four bytes in UTF-8, the most that a character can have."""

PRINTABLE = st.characters(codec="utf-8", exclude_categories=("C", "Z"), include_characters=" ")
"""What `str.isprintable` accepts, which is what texts may consist of."""


def messages(kind: type[Any]) -> st.SearchStrategy[Any]:
    """Draw any legal message of a class."""
    hints = field_hints(kind)
    drawn = st.fixed_dictionaries({name: values(hints[name]) for name in kind.__struct_fields__})
    return drawn.map(lambda chosen: kind(**_coherent(kind, chosen)))


def values(annotation: Any) -> st.SearchStrategy[Any]:
    """Draw any legal value of a field."""
    if get_origin(annotation) is Annotated:
        return _bounded_values(*get_args(annotation))
    if get_origin(annotation) in {UnionType, Union}:
        return st.none() | values(inner_of(annotation))
    if isinstance(annotation, type) and issubclass(annotation, StrEnum):
        return st.sampled_from(annotation)
    return st.booleans() if annotation is bool else messages(annotation)


def _bounded_values(kind: Any, bound: Meta) -> st.SearchStrategy[Any]:
    if kind is float:
        return st.floats(bound.ge, bound.le)
    if kind is int:
        assert bound.ge is not None
        assert bound.le is not None
        return st.integers(int(bound.ge), int(bound.le))
    least, most = bound.min_length or 0, bound.max_length or 0
    if get_origin(kind) is tuple:
        return st.lists(values(get_args(kind)[0]), min_size=least, max_size=min(most, 4)).map(tuple)
    if kind is bytes:
        return st.binary(min_size=least, max_size=most)
    return st.text(PRINTABLE, min_size=least, max_size=most)


def largest(kind: type[Any], goal: Goal = Goal.EXIT) -> Any:
    """Build the legal message of a class that takes the most bytes; of `Desired`, the one for a goal."""
    hints = field_hints(kind)
    chosen = {name: _largest(hints[name]) for name in kind.__struct_fields__}
    return kind(**_coherent(kind, chosen | ({"goal": goal} if kind is Desired else {})))


def fields_of(kind: type[Any], path: str) -> Iterator[tuple[tuple[str, ...], str, Any]]:
    """Iterate over the fields of a message and of those within it: keys from the top, path as a text, annotation."""
    hints = field_hints(kind)
    for name in kind.__struct_fields__:
        annotation = inner_of(hints[name])
        yield (name,), f"{path}.{name}", hints[name]
        if isinstance(annotation, type) and issubclass(annotation, Struct):
            for keys, inner_path, inner in fields_of(annotation, f"{path}.{name}"):
                yield (name, *keys), inner_path, inner


def inner_of(annotation: Any) -> Any:
    """Return what an annotation allows beside None."""
    if get_origin(annotation) in {UnionType, Union}:
        (annotation,) = [part for part in get_args(annotation) if part is not NoneType]
    return annotation


def as_map(message: Message | Assignment) -> dict[str, Any]:
    """Return what goes over the wire for a message, less its type; tuples arrive as lists."""
    arrived: dict[str, Any] = plain_without(message, {})
    return arrived


def _coherent(kind: type[Any], chosen: dict[str, Any]) -> dict[str, Any]:
    """Mend what the checks of single fields cannot find."""
    if kind is JobSpec:
        least, most = sorted((chosen["nodes_min"], chosen["nodes_max"]))
        return chosen | {"nodes_min": least, "nodes_max": most}
    if kind is KeptParts:
        world_size = max(2, chosen["world_size"])
        ranks = min(chosen["ranks"], world_size - 1, HELD_RANKS_MAX // PARTS_MAX)
        first_rank, first_shard = (
            min(chosen["first_rank"], world_size - ranks),
            min(chosen["first_shard"], chosen["shards"] - 1),
        )
        return chosen | {"world_size": world_size, "ranks": ranks, "first_rank": first_rank, "first_shard": first_shard}
    if kind is Desired:
        goal = chosen["goal"]
        hints = field_hints(Desired)
        for name, owner in (("assignment", Goal.RUN), ("outcome", Goal.EXIT)):
            kept = chosen[name] if chosen[name] is not None else largest(inner_of(hints[name]))
            chosen = chosen | {name: kept if goal is owner else None}
    return chosen


def _largest(annotation: Any) -> Any:
    annotation = inner_of(annotation)
    if get_origin(annotation) is Annotated:
        kind, bound = get_args(annotation)
        if get_origin(kind) is tuple:
            return tuple([_largest(get_args(kind)[0])] * bound.max_length)
        if kind in {bytes, str}:
            return (b"x" if kind is bytes else WIDEST) * bound.max_length
        # A float takes nine bytes whatever it is.
        return min(0.1, bound.le) if kind is float else int(bound.le)
    if isinstance(annotation, type) and issubclass(annotation, StrEnum):
        return max(annotation, key=len)
    return True if annotation is bool else largest(annotation)
