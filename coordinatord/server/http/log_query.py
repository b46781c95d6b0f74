"""Parses the query of `GET /v1/jobs/{job}/logs`, which selects logs of workers, and how much of each to read.

A *place* is a position in a log: one of its files, by number, and an offset (`LogPlace`). Each part of an answer has
the place of its end, so that a reader whose connection broke can ask for what comes `after` it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from msgspec import Struct
from multidict import MultiMapping

from coordinatord.core.shown.log_sources import WORKERS_AT_ONCE_MAX, LogChoice
from coordinatord.protocol.fields import COUNTER_MAX, RANKS_MAX
from coordinatord.protocol.log_messages import FILE_MAX, LOG_BYTES_MAX, LOG_LINES_MAX, LogPlace, LogStream
from coordinatord.server.http.responses import MalformedQueryError, number_in

LAST_LINES = 100
"""The default number of lines: a long traceback and some screens before it."""

CHOICES_MAX = WORKERS_AT_ONCE_MAX
"""The limit of ranges of ranks, and of nodes, in one query. More make no sense, since each names at least one
worker."""

PLACES_MAX = 2 * WORKERS_AT_ONCE_MAX
"""The limit of places: two streams of each worker."""

PARAMETERS = ("run", "rank", "node", "round", "stream", "last", "last_bytes", "follow", "after")
"""The parameters that the query may have."""

Log = tuple[int, LogStream]
"""The key of a log within a round: the rank of its worker, and its stream."""

BOTH = "both"
"""The value of `stream` for stdout and stderr."""

ALL = "all"
"""The value of `last` for no limit of lines."""

_PLACE = re.compile(r"(\d{1,19}):(\d{1,7}):(stdout|stderr):([0-9a-f]{1,16}):(\d{1,19})", re.ASCII)
_RANKS = re.compile(r"(\d{1,7})(?:-(\d{1,7}))?", re.ASCII)


class LogQuery(Struct, frozen=True):
    """The logs that a reader wants."""

    choice: LogChoice
    run: str | None
    """None for the live or last run."""
    round: int | None
    """None for the last round and, with `follow`, all later ones."""
    after: Mapping[Log, LogPlace]
    """The places at which to continue some logs."""
    after_round: int | None
    """The round of the logs in `after`; None without any."""
    last_bytes: int
    """A log that is not in `after` begins with at most this many of its last bytes."""
    last_lines: int | None
    """A log that is not in `after` begins with at most this many of its last lines; None for no limit."""
    follow: bool
    """Whether to wait for new output."""


def parse_query(query: MultiMapping[str]) -> LogQuery:
    """Parse the query. Raises `MalformedQueryError`."""
    ranks, nodes = parse_ranks(query), frozenset(query.getall("node", []))
    if len(nodes) > CHOICES_MAX:
        raise MalformedQueryError(f"at most {CHOICES_MAX} nodes are chosen at once")
    number = number_in(query, "round", 0, COUNTER_MAX) if "round" in query else None
    places = [parse_place(text) for text in query.getall("after", [])]
    after_rounds = {after.round for after in places}
    named_rounds = after_rounds if number is None else after_rounds | {number}
    if len(places) > PLACES_MAX:
        raise MalformedQueryError(f"after is given for at most {PLACES_MAX} logs")
    if len(named_rounds) > 1:
        raise MalformedQueryError("after is given for logs of one round, the one that is wanted")
    return LogQuery(
        choice=LogChoice(ranks, nodes, _streams(query.get("stream", BOTH))),
        run=query.get("run"),
        round=number,
        after={after.log: after.place for after in places},
        after_round=next(iter(after_rounds), None),
        last_bytes=number_in(query, "last_bytes", LOG_BYTES_MAX, LOG_BYTES_MAX),
        last_lines=_last_lines(query),
        follow=_follows(query),
    )


def parse_ranks(query: MultiMapping[str]) -> tuple[range, ...]:
    """Parse the chosen ranks; none means all. Raises `MalformedQueryError`."""
    ranks = tuple(_ranks(query.getall("rank", [])))
    if len(ranks) > CHOICES_MAX:
        raise MalformedQueryError(f"at most {CHOICES_MAX} ranks or ranges are chosen at once")
    return ranks


class RoundPlace(Struct, frozen=True):
    """A place in a log of a round."""

    round: int
    log: Log
    place: LogPlace


def format_place(number: int, log: Log, place: LogPlace) -> str:
    """Format a place in a log of the round with this number, for the query parameter `after`."""
    return f"{number}:{log[0]}:{log[1]}:{place.file:x}:{place.offset}"


def parse_place(text: str) -> RoundPlace:
    """Parse the text of `format_place`. Raises `MalformedQueryError`."""
    matched = _PLACE.fullmatch(text)
    if matched is None:
        raise MalformedQueryError(f"after is the place of a part of a log, not {text[:80]!r}")
    number, rank, file, offset = int(matched[1]), int(matched[2]), int(matched[4], 16), int(matched[5])
    if number > COUNTER_MAX or rank > RANKS_MAX or file > FILE_MAX or offset > LOG_BYTES_MAX:
        raise MalformedQueryError(f"after is the place of a part of a log, not {text[:80]!r}")
    return RoundPlace(number, (rank, LogStream(matched[3])), LogPlace(file, offset))


def _ranks(texts: list[str]) -> Iterator[range]:
    for part in (part for text in texts for part in text.split(",")):
        found = _RANKS.fullmatch(part)
        ranks = range(int(found[1]), int(found[2] or found[1]) + 1) if found else range(0)
        if not ranks or ranks[-1] > RANKS_MAX:
            raise MalformedQueryError(f"rank is a number or a range, such as 3 or 0-7, not {part[:40]!r}")
        yield ranks


def _last_lines(query: MultiMapping[str]) -> int | None:
    """Parse `last`; None for no limit, also if only `last_bytes` is given. Raises `MalformedQueryError`."""
    if query.get("last") == ALL or ("last" not in query and "last_bytes" in query):
        return None
    return number_in(query, "last", LAST_LINES, LOG_LINES_MAX, other=f" or {ALL}")


def _streams(text: str) -> tuple[LogStream, ...]:
    if text == BOTH:
        return tuple(LogStream)
    if text not in set(LogStream):
        raise MalformedQueryError(f"stream is {', '.join(LogStream)} or {BOTH}, not {text[:40]!r}")
    return (LogStream(text),)


def _follows(query: MultiMapping[str]) -> bool:
    text = query.get("follow", "false")
    if text not in {"true", "false"}:
        raise MalformedQueryError(f"follow is true or false, not {text[:40]!r}")
    return text == "true"
