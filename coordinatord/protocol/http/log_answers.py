"""The answers of `GET /v1/jobs/{job}/logs`, as records; `api` says what such records have in common."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from coordinatord.protocol.http.api import ITEMS_MAX, AnyText, Whole
from coordinatord.protocol.log_messages import LOG_CHUNK_BYTES_MAX

LOG_TEXT_MAX = 1024 * 1024
"""The text of one whole answer, in characters: what a browser or a script takes at once. A stream has more."""


class LogPart(Struct, frozen=True, kw_only=True):
    """The data of the event `log` of a stream: the next piece of one log, or a note."""

    run: AnyText = ""
    """The run whose logs these are; empty in the last part. The first part has this field alone."""
    round: Whole | None = None
    """This and the fields up to `file` identify the log; None and empty where a note is about several logs."""
    rank: Whole | None = None
    node: AnyText = ""
    host: AnyText = ""
    stream: AnyText = ""
    """`stdout` or `stderr`."""
    file: AnyText = ""
    """The file on that host; empty if none is kept."""
    text: Annotated[str, Meta(max_length=LOG_CHUNK_BYTES_MAX)] = ""
    """What was written; a piece may end within a line. Bytes that are no UTF-8 are replaced."""
    place: AnyText = ""
    """Where the text ends: a reader whose connection broke goes on from there with `after`. Empty in a note."""
    note: AnyText = ""
    """What the reader has to know about it, such as what is missing and why; empty if all is well."""
    over: bool = False
    """Whether it is the last part of the answer."""


class LogStatus(Struct, frozen=True, kw_only=True):
    """One stream of one worker; the fields mean what they do in `LogPart`."""

    rank: Whole
    node: AnyText
    host: AnyText
    stream: AnyText
    file: AnyText
    text: Annotated[str, Meta(max_length=LOG_TEXT_MAX)] = ""
    note: AnyText = ""


class LogsAnswer(Struct, frozen=True, kw_only=True):
    """`GET /v1/jobs/{job}/logs`: the logs of a round, by rank."""

    job: AnyText
    run: AnyText
    round: Whole
    logs: Annotated[tuple[LogStatus, ...], Meta(max_length=ITEMS_MAX)]
    note: AnyText = ""
    """What is left out; empty if nothing is."""
