"""Encodes records as rows of the database, and decodes and checks rows, which may be damaged or edited.

The keys of a row (job, run, kind, node, round) have columns of their own, for the database and for people with the
sqlite3 tool; the rest of the record is one JSON object.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
from msgspec.structs import asdict

from coordinatord.core.rounds.values.records import KINDS, Record, RoundRemembered
from coordinatord.protocol.schema import ERRORS, SchemaError, check
from coordinatord.store.error_texts import REMEDY
from coordinatord.store.interface import Entry, UnreadableStoreError

Row = tuple[int, float, str, str, str, str | None, int | None, str]
"""The columns seq, at, job, run, kind, node, round, body, as in `migrations`."""

AT_MAX = 1e11
"""The limit in seconds since 1970, the year 5138: no host's clock shows a later time."""

_COLUMNS = frozenset({"job", "run", "node", "round"})
"""The fields with a column of their own. The column `kind` is no field: it is the `KIND` of the class."""

_CLASSES: dict[str, type[Record]] = {**KINDS, RoundRemembered.KIND: RoundRemembered}
"""The classes of stored records, and the one that the store makes when it reads."""


def encode(entry: Entry) -> tuple[float, str, str, str, str | None, int | None, str]:
    """Return the row of a record without its seq, which the database assigns. A time is kept within the limits."""
    record = entry.record
    fields = {name: value for name, value in asdict(record).items() if name not in _COLUMNS}
    body = json.dumps(fields, default=asdict, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    node, number = getattr(record, "node", None), getattr(record, "round", None)
    at = min(max(entry.at, 0.0), AT_MAX)
    return at, record.job, record.run, record.KIND, node, number, body


def decode(row: Row) -> Entry:
    """Return the entry of a row. Raises `UnreadableStoreError`, which names the row."""
    try:
        return _entry(row)
    except SchemaError as error:
        raise UnreadableStoreError(f"record {row[0]} is damaged ({error}): {REMEDY}") from error


def _entry(row: Row) -> Entry:
    _, at, job, run, kind, node, number, body = row
    record_class = _CLASSES.get(kind)
    if record_class is None:
        raise SchemaError(f"there are no records of kind {str(kind)[:40]!r}")
    if type(at) is not float or not 0 <= at <= AT_MAX:
        raise SchemaError(f"it was made at {str(at)[:40]!r}, which is no time")
    try:
        fields = msgspec.json.decode(body, type=dict[str, Any])
    except (TypeError, *ERRORS) as error:
        raise SchemaError(f"its body is no JSON object: {error}") from error
    fields["job"], fields["run"] = job, run
    if node is not None:
        fields["node"] = node
    if number is not None:
        fields["round"] = number
    return Entry(at, check(fields, record_class, kind))
