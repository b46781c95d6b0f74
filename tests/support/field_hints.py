"""The annotations of the fields of a struct, as those need them who make or describe values."""

from __future__ import annotations

from typing import Annotated, Any, get_args, get_origin, get_type_hints

from msgspec import Meta


def field_hints(kind: type[Any]) -> dict[str, Any]:
    """Return the type of each field with its limits, and without its marks (`coordinatord.protocol.news`)."""
    return {name: _unmarked(hint) for name, hint in get_type_hints(kind, include_extras=True).items()}


def _unmarked(hint: Any) -> Any:
    if get_origin(hint) is not Annotated:
        return hint
    kind, *notes = get_args(hint)
    limits = [note for note in notes if isinstance(note, Meta)]
    return Annotated[(kind, *limits)] if limits else kind
