"""Makes JSON Schemas (draft 2020-12) of the records of `protocol`, so that each record has one definition.

Bounds come from the annotations, and descriptions from the docstrings, which stand in the source below each field.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Collection, Mapping
from enum import StrEnum
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from msgspec import Meta, Struct
from msgspec.structs import fields

from coordinatord.protocol.schema import PRINTABLE

Schema = dict[str, Any]

WHERE = "#/components/schemas/"


class Schemas:
    """The schemas of records, each made once, and of all records within them."""

    def __init__(self, omitted: Mapping[type[Any], frozenset[str]]) -> None:
        """Begin with none; the fields in `omitted` may be missing in an answer."""
        self._omitted = omitted
        self.made: dict[str, Schema] = {}

    def of_answer(self, kind: type[Any]) -> Schema:
        """Return a reference to the schema of a record that is sent: all of its fields are there."""
        return self._of(kind, _fields_without(kind, self._omitted.get(kind, frozenset())))

    def of_body(self, kind: type[Any]) -> Schema:
        """Return a reference to the schema of a record that is received: fields with a default may be left out."""
        needed = [field.name for field in fields(kind) if field.required]
        reference = self._of(kind, needed)
        self.made[kind.__name__]["additionalProperties"] = False
        return reference

    def _of(self, kind: type[Any], required: Collection[str]) -> Schema:
        if kind.__name__ not in self.made:
            self.made[kind.__name__] = {}  # a record may be within itself
            hints, notes = get_type_hints(kind, include_extras=True), _notes(kind)
            self.made[kind.__name__] |= {
                "type": "object",
                "description": _plain(kind.__doc__ or ""),
                "properties": {name: _described(self._of_field(hint), notes.get(name)) for name, hint in hints.items()},
                "required": sorted(required),
            }
        return {"$ref": f"{WHERE}{kind.__name__}"}

    def _of_field(self, annotation: Any) -> Schema:
        if get_origin(annotation) is Annotated:
            kind, bound = get_args(annotation)
            return self._of_field(kind) | (_items(bound) if get_origin(kind) is tuple else _bounds(bound))
        if get_origin(annotation) in {UnionType, Union}:
            (inner,) = [part for part in get_args(annotation) if part is not NoneType]
            return {"anyOf": [self._of_field(inner), {"type": "null"}]}
        if get_origin(annotation) is tuple:
            return {"type": "array", "items": self._of_field(get_args(annotation)[0])}
        if isinstance(annotation, type) and issubclass(annotation, StrEnum):
            return {"type": "string", "enum": list(annotation)}
        if isinstance(annotation, type) and issubclass(annotation, Struct):
            return self.of_answer(annotation)
        return {"type": _TYPES[annotation]}


_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean"}


def _bounds(bound: Meta) -> Schema:
    pattern = None if bound.pattern is None or bound.pattern == PRINTABLE else bound.pattern.replace(r"\Z", "$")
    written = {
        "minimum": bound.ge,
        "maximum": bound.le,
        "minLength": bound.min_length or None,
        "maxLength": bound.max_length,
        "pattern": pattern,
    }
    return {name: value for name, value in written.items() if value is not None}


def _items(bound: Meta) -> Schema:
    return {"minItems": bound.min_length or 0, "maxItems": bound.max_length}


def _fields_without(kind: type[Any], omitted: Collection[str]) -> list[str]:
    return [field.name for field in fields(kind) if field.name not in omitted]


def _described(schema: Schema, note: str | None) -> Schema:
    return schema if note is None else schema | {"description": note}


def _notes(kind: type[Any]) -> dict[str, str]:
    """Return the docstring of each field that has one; none where the source is not at hand."""
    try:
        source = textwrap.dedent(inspect.getsource(kind))
    except OSError:
        return {}
    [definition] = ast.parse(source).body
    assert isinstance(definition, ast.ClassDef)
    found: dict[str, str] = {}
    for field, note in zip(definition.body, definition.body[1:], strict=False):
        text = note.value if isinstance(note, ast.Expr) else None
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Constant):
            found[field.target.id] = _plain(str(text.value))
    return found


def _plain(docstring: str) -> str:
    """Return a docstring as a text without ends of lines within a paragraph."""
    return "\n\n".join(" ".join(part.split()) for part in inspect.cleandoc(docstring).split("\n\n"))
