"""The query of `GET /v1/jobs/{job}/logs`: which logs of which workers, and how much of each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from multidict import MultiMapping

from coordinatord.core.queries.log_sources import LogChoice
from coordinatord.protocol.fields import COUNTER_MAX, RANKS_MAX
from coordinatord.protocol.log_messages import LOG_BYTES_MAX, LOG_LINES_MAX, LogStream

LAST_LINES = 100
"""The number of lines by default: some screens, with a long traceback."""

PARTS_MAX = 64
"""The limit of ranges and names: as many as there are workers at once."""

BOTH = "both"
ALL = "all"

_RANKS = re.compile(r"(\d{1,7})(?:-(\d{1,7}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class LogQuery:
    """What a reader wants."""

    choice: LogChoice
    round: int | None
    """None for the last one, and with `follow` for all that come."""
    last_bytes: int
    last_lines: int | None
    """None for any number."""
    follow: bool


def read_query(query: MultiMapping[str]) -> LogQuery:
    """Read the query. Raises `ValueError`."""
    unknown = sorted(set(query) - {"rank", "node", "round", "stream", "last", "last_bytes", "follow"})
    if unknown:
        raise ValueError(f"{unknown[0][:40]!r} selects nothing here: see /openapi.json")
    ranks, nodes = tuple(_ranks(query.getall("rank", []))), frozenset(query.getall("node", []))
    if max(len(ranks), len(nodes)) > PARTS_MAX:
        raise ValueError(f"at most {PARTS_MAX} ranks or ranges, and as many nodes, are chosen at once")
    last = query.get("last")
    bytes_ = _number(query, "last_bytes", LOG_BYTES_MAX, LOG_BYTES_MAX)
    lines = None if last == ALL or (last is None and "last_bytes" in query) else _number(query, "last", LAST_LINES)
    number = _number(query, "round", COUNTER_MAX, COUNTER_MAX) if "round" in query else None
    return LogQuery(LogChoice(ranks, nodes, _streams(query.get("stream", BOTH))), number, bytes_, lines, _truth(query))


def _ranks(texts: list[str]) -> Iterator[range]:
    for part in (part for text in texts for part in text.split(",")):
        found = _RANKS.fullmatch(part)
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
        if not 0 <= first <= last <= RANKS_MAX:
            raise ValueError(f"rank is a number or a range, such as 3 or 0-7, not {part[:40]!r}")
        yield range(first, last + 1)


def _number(query: MultiMapping[str], name: str, default: int, most: int = LOG_LINES_MAX) -> int:
    text = query.get(name, str(default))
    if not re.fullmatch(r"\d{1,19}", text, re.ASCII) or int(text) > most:
        words = f" or {ALL}" if name == "last" else ""
        raise ValueError(f"{name} is 0 to {most}{words}, not {text[:40]!r}")
    return int(text)


def _streams(text: str) -> tuple[LogStream, ...]:
    if text == BOTH:
        return tuple(LogStream)
    if text not in set(LogStream):
        raise ValueError(f"stream is {', '.join(LogStream)} or {BOTH}, not {text[:40]!r}")
    return (LogStream(text),)


def _truth(query: MultiMapping[str]) -> bool:
    text = query.get("follow", "false")
    if text not in {"true", "false"}:
        raise ValueError(f"follow is true or false, not {text[:40]!r}")
    return text == "true"
