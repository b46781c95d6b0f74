"""The answers of `GET /v1/jobs/{job}/logs`, as records; `api` describes their conventions."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from coordinatord.protocol.http.api import AnyText, Items, Whole
from coordinatord.protocol.log_messages import LOG_CHUNK_BYTES_MAX

LOG_TEXT_MAX = 1024 * 1024
"""The limit of text in one whole answer, for a browser or a script, in characters. An event stream has none."""


class LogPart(Struct, frozen=True, kw_only=True):
    """The data of the event `log` of a stream: the next piece of one log, or a note."""

    run: AnyText = ""
    """The run of these logs; empty in the last part. The first part has only this field."""
    round: Whole | None = None
    """This and the fields up to `file` identify the log; None and empty in a note about several logs."""
    rank: Whole | None = None
    node: AnyText = ""
    host: AnyText = ""
    stream: AnyText = ""
    """`stdout` or `stderr`."""
    file: AnyText = ""
    """The file on that host; empty if there is none."""
    text: Annotated[str, Meta(max_length=LOG_CHUNK_BYTES_MAX)] = ""
    """The content; a piece may end within a line. Bytes that are no UTF-8 are replaced."""
    place: AnyText = ""
    """The end of the text: a reader whose connection broke continues from there with `after`. Empty in a note."""
    note: AnyText = ""
    """A problem, such as a missing part and its reason; empty without one."""
    over: bool = False
    """Whether it is the last part of the answer."""


class LogStatus(Struct, frozen=True, kw_only=True):
    """One stream of one worker; the fields are those of `LogPart`."""

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
    logs: Items[LogStatus]
    note: AnyText = ""
    """The omitted logs; empty without any."""
