"""Messages for hypothesis, and samples of them for tests by hand, made from the same annotations as the checks are."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from enum import StrEnum
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from hypothesis import strategies as st

from coordinatord.protocol.kept_parts import KeptParts
from coordinatord.protocol.log_messages import LogChunk, ReadLog
from coordinatord.protocol.messages import Assignment, Desired, Goal, JobSpec, Join, Message, Observed, Refused
from coordinatord.protocol.schema import Length, Range
from coordinatord.protocol.stack_messages import AskStacks, Stacks

MESSAGES: tuple[type[Any], ...] = (Join, Observed, Desired, Refused, ReadLog, LogChunk, AskStacks, Stacks)

WIDEST = "\N{GRINNING FACE}"
"""Four bytes in UTF-8, the most that a character can have."""

PRINTABLE = st.characters(codec="utf-8", exclude_categories=("C", "Z"), include_characters=" ")
"""What `str.isprintable` accepts, which is what texts may consist of."""


def messages(kind: type[Any]) -> st.SearchStrategy[Any]:
    """Draw any legal message of a class."""
    hints = get_type_hints(kind, include_extras=True)
    drawn = st.fixed_dictionaries({field.name: values(hints[field.name]) for field in dataclasses.fields(kind)})
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


def _bounded_values(kind: Any, bound: Length | Range) -> st.SearchStrategy[Any]:
    if get_origin(kind) is tuple:
        item = values(get_args(kind)[0])
        return st.lists(item, min_size=int(bound.least), max_size=min(int(bound.most), 4)).map(tuple)
    if kind is bytes:
        return st.binary(min_size=int(bound.least), max_size=int(bound.most))
    if isinstance(bound, Length):
        return st.text(PRINTABLE, min_size=bound.least, max_size=bound.most)
    if kind is float:
        return st.floats(bound.least, bound.most)
    return st.integers(int(bound.least), int(bound.most))


def largest(kind: type[Any], goal: Goal = Goal.EXIT) -> Any:
    """Build the legal message of a class that takes the most bytes; of `Desired`, the one for a goal."""
    hints = get_type_hints(kind, include_extras=True)
    chosen = {field.name: _largest(hints[field.name]) for field in dataclasses.fields(kind)}
    return kind(**_coherent(kind, chosen | ({"goal": goal} if kind is Desired else {})))


def fields_of(kind: type[Any], path: str) -> Iterator[tuple[tuple[str, ...], str, Any]]:
    """Iterate over the fields of a message and of those within it: keys from the top, path as a text, annotation."""
    hints = get_type_hints(kind, include_extras=True)
    for field in dataclasses.fields(kind):
        annotation = inner_of(hints[field.name])
        yield (field.name,), f"{path}.{field.name}", hints[field.name]
        if dataclasses.is_dataclass(annotation) and isinstance(annotation, type):
            for keys, inner_path, inner in fields_of(annotation, f"{path}.{field.name}"):
                yield (field.name, *keys), inner_path, inner


def inner_of(annotation: Any) -> Any:
    """Return what an annotation allows beside None."""
    if get_origin(annotation) in {UnionType, Union}:
        (annotation,) = [part for part in get_args(annotation) if part is not NoneType]
    return annotation


def as_map(message: Message | Assignment) -> dict[str, Any]:
    """Return what goes over the wire for a message, less its type; tuples arrive as lists."""
    arrived: dict[str, Any] = _as_arrived(dataclasses.asdict(message))
    return arrived


def _as_arrived(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _as_arrived(inner) for name, inner in value.items()}
    return [_as_arrived(inner) for inner in value] if isinstance(value, list | tuple) else value


def _coherent(kind: type[Any], chosen: dict[str, Any]) -> dict[str, Any]:
    """Mend what the checks of single fields cannot find."""
    if kind is JobSpec:
        least, most = sorted((chosen["nodes_min"], chosen["nodes_max"]))
        return chosen | {"nodes_min": least, "nodes_max": most}
    if kind is KeptParts:
        world_size = max(2, chosen["world_size"])
        ranks = min(chosen["ranks"], world_size - 1)
        first_rank, first_shard = (
            min(chosen["first_rank"], world_size - ranks),
            min(chosen["first_shard"], chosen["shards"] - 1),
        )
        return chosen | {"world_size": world_size, "ranks": ranks, "first_rank": first_rank, "first_shard": first_shard}
    if kind is Desired:
        goal = chosen["goal"]
        hints = get_type_hints(Desired, include_extras=True)
        for name, owner in (("assignment", Goal.RUN), ("outcome", Goal.EXIT)):
            kept = chosen[name] if chosen[name] is not None else largest(inner_of(hints[name]))
            chosen = chosen | {name: kept if goal is owner else None}
    return chosen


def _largest(annotation: Any) -> Any:
    annotation = inner_of(annotation)
    if get_origin(annotation) is Annotated:
        kind, bound = get_args(annotation)
        if get_origin(kind) is tuple:
            return tuple([_largest(get_args(kind)[0])] * bound.most)
        if kind is bytes:
            return b"x" * bound.most
        if isinstance(bound, Length):
            return WIDEST * bound.most
        # A float takes nine bytes whatever it is.
        return min(0.1, bound.most) if isinstance(bound, Range) and kind is float else int(bound.most)
    if isinstance(annotation, type) and issubclass(annotation, StrEnum):
        return max(annotation, key=len)
    return True if annotation is bool else largest(annotation)
