"""How a failure is shown over HTTP, as records; `api` says what such records have in common."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from coordinatord.protocol.http.answer_fields import ITEMS_MAX, AnyLine, AnyText, Number, Whole


class OtherFailureStatus(Struct, frozen=True, kw_only=True):
    """A worker that failed after the first one."""

    node: AnyText
    rank: Whole
    exit_code: Whole
    """The exit code as a shell has it: 128 + n for signal n."""
    how: AnyText = ""
    """The exit code in words."""
    same_error: bool = False


class EarlyEndStatus(Struct, frozen=True, kw_only=True):
    """A worker that had ended with 0 when another one failed."""

    node: AnyText
    rank: Whole
    before_s: Number


class StragglerStatus(Struct, frozen=True, kw_only=True):
    """A worker whose last step is behind those of others."""

    node: AnyText
    rank: Whole
    step: Whole


class FailureStatus(Struct, frozen=True, kw_only=True):
    """Why the last round that failed did so."""

    round: Whole
    nodes: Whole
    """How many took part in the round."""
    node: AnyText
    host: AnyText
    rank: Whole
    local_rank: Whole
    pid: Whole | None
    """None if the worker was never started."""
    exit_code: Whole
    """The exit code as a shell has it: 128 + n for signal n."""
    how: AnyText
    """The exit code in words, which distinguishes 134 from SIGABRT; of a worker that hung, the kind of the hang."""
    hang: AnyText = ""
    """Set if the worker had not ended: `absent`, `stuck`, `busy`, `mismatched` or `network`."""
    hang_ranks: Annotated[tuple[Whole, ...], Meta(max_length=ITEMS_MAX)] = ()
    """The first few ranks that hung, if there are several, such as those that wait at different places."""
    message: AnyText
    """What the node found out beyond the code."""
    error: AnyText
    """The exception that ended the worker, in one line; empty if there was none, or it is not known."""
    last_lines: Annotated[tuple[AnyLine, ...], Meta(max_length=ITEMS_MAX)] = ()
    """The end of the traceback, or of the worker's output on stderr; of a worker that hung, its stack."""
    age_s: Number
    consequences: Annotated[tuple[OtherFailureStatus, ...], Meta(max_length=ITEMS_MAX)] = ()
    """The first workers that failed later."""
    consequences_count: Whole
    """The number of all workers that are known to have failed later."""
    same_error_count: Whole = 0
    """The number of these that failed with the same error."""
    early: Annotated[tuple[EarlyEndStatus, ...], Meta(max_length=ITEMS_MAX)] = ()
    step: Whole | None = None
    """The furthest step that any worker had reported."""
    stragglers: Annotated[tuple[StragglerStatus, ...], Meta(max_length=ITEMS_MAX)] = ()
    log: AnyText | None = None
    """The file with all that the worker wrote to stderr, on its host."""
    hint: AnyText = ""
    """What to do about it; empty if the cause is not a well-known one."""
    before: AnyText = ""
    """The workers that had ended before, as a sentence; empty if none had."""
    behind: AnyText = ""
    """The workers that were behind, as a sentence, if a worker waited for others; otherwise empty."""
    then: AnyText = ""
    """The workers that failed too, as a sentence; empty if none did."""
