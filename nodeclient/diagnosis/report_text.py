"""Formats the root cause of a failed round for a terminal: the failure first, the hint last. Pure."""

from __future__ import annotations

import io
import re
import signal
import textwrap
from collections.abc import Sequence
from datetime import datetime, timedelta

from coordinatord.hints.failure_status import failure_status
from coordinatord.protocol.exit_codes import signal_behind
from coordinatord.protocol.http.api import FailureStatus
from coordinatord.protocol.messages import Cause, HangKind, Report
from coordinatord.protocol.text import name_ranks
from coordinatord.runtime.local_time import moment

WIDTH = 110
"""The width of the block in columns. Lines of workers are not wrapped, so that they can be searched for."""

LABEL_WIDTH = 13
"""The width of the labels, with the space after them."""

AGE_SHOWN_MIN_S = 1.5
"""The age from which on a failure's age is shown, in seconds."""

WAITING_LINES_MAX = 20
"""The limit of the lines of a worker that another one left early, since lines of the other one are shown too."""

RULE = "-" * 80

_TITLE = re.compile(rb"---- round \d+ (?:failed|hung|diverged): ")
"""The beginning of a report's first line."""

LINES_MAX = 55
"""The limit of the whole block: a terminal that fills a screen has room for it. Lines of workers get the rest
that the facts leave."""

CONTEXT_CAPTION = "(before that, it wrote)"
"""The line between a traceback and the lines from before it, which are left out first where room is short."""

FACT_LINES_MAX = 7
"""The limit of each fact in lines: a node's diagnosis of 512 characters fits. Six facts may be that long."""


def lines(failure: FailureStatus, seen_at: datetime) -> list[str]:
    """Return the block; `seen_at` is the local time of the report."""
    # A hang or a divergence may be reported without a process, and its workers were started all the same.
    started = failure.pid is not None or _verb(failure) != "failed"
    process = "" if failure.pid is None else f", pid {failure.pid}"
    whose = f"rank {failure.rank}: " if failure.left_early or failure.shared_by else ""
    error = "" if failure.last_lines[-1:] == (failure.error,) else failure.error  # the line above it is the same
    summary, in_full = _root_cause(failure)
    facts = [
        (
            "failed" if failure.excused_by else "root cause",
            in_full if started else f"the workers on {_place(failure)} were not started",
        ),
        ("since" if failure.hang else "when", _when(failure.age_s, seen_at)),
        ("how", f"{whose}{failure.how}{process}" if started else ""),
        ("because" if started else "why", failure.message),
        ("error", error),
        ("cause", "" if failure.cause == Cause.UNKNOWN else failure.cause.replace("_", " ")),
        ("before", failure.before),
        ("behind", failure.behind),
        ("then", failure.then),
        ("not charged", failure.excused_by and f"lost node {failure.excused_by} may have caused this failure"),
        ("log", _log(failure)),
        ("hint", failure.hint),
    ]
    fact_lines = [line for label, text in facts if text for line in _fact(label, text)]
    return [
        f"{RULE[:4]} round {failure.round} {_verb(failure)}: {summary} {RULE}"[: len(RULE)].rstrip(),
        *_last_lines(failure, LINES_MAX - 2 - len(fact_lines)),  # 2 for the title and the rule
        *fact_lines,
        RULE,
    ]


def _verb(failure: FailureStatus) -> str:
    if failure.cause == Cause.DIVERGENCE:
        return "diverged"
    return "hung" if failure.hang else "failed"


def _root_cause(failure: FailureStatus) -> tuple[str, str]:
    """Return which ranks failed, in a few words and in full."""
    if failure.cause == Cause.DIVERGENCE:
        return "replicas are not alike", "ranks that should have the same state, and do not"
    if failure.hang == HangKind.NETWORK:
        in_full = "no single rank: they wait in collectives that complete for none"
        return "a collective completes for none", in_full
    if failure.left_early:
        return f"rank {failure.early[0].rank} on {failure.early[0].node} left early", failure.left_early
    if failure.hang_ranks:
        ranks = name_ranks(failure.hang_ranks)
        relation = ", which wait in different collectives" if failure.hang == HangKind.MISMATCHED else ""
        return ranks, f"{ranks}{relation}"
    one = f"rank {failure.rank} (local rank {failure.local_rank}) on {_place(failure)}"
    if failure.shared_by:
        return failure.shared_by, f"{failure.shared_by}, with the same error; shown is that of {one}"
    who = f"rank {failure.rank}" if failure.hang or failure.pid is not None else "no workers"
    return f"{who} on {failure.host}", one


def _place(failure: FailureStatus) -> str:
    return f"host {failure.host}" if failure.node == failure.host else f"host {failure.host}, node {failure.node}"


def _when(age_s: float, seen_at: datetime) -> str:
    ago = "" if age_s < AGE_SHOWN_MIN_S else f" ({_age(age_s)} ago)"
    return f"{moment(seen_at - timedelta(seconds=age_s))}{ago}"


def _age(seconds: float) -> str:
    """Return an age in the largest unit that gives two or more."""
    for unit, length in (("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def _last_lines(failure: FailureStatus, room: int) -> list[str]:
    """Return as many of the lines of workers as there is room for."""
    if not failure.left_early:
        return [*_caption(failure), *_shown(failure.last_lines, room)][-room:]
    left = failure.early[0]
    needed = f"    (rank {failure.rank} on {failure.node}, which still needed rank {left.rank}, wrote this to stderr)"
    block = [needed, *(_shown(failure.last_lines, WAITING_LINES_MAX) or ["    (nothing)"])]
    if failure.early_lines is not None:
        exited = f"    (rank {left.rank} on {left.node}, which exited with 0, wrote this to stderr last)"
        block += [exited, *(_shown(failure.early_lines, room) or ["    (nothing)"])]
    return block[-room:]


def _shown(lines: Sequence[str], room: int) -> list[str]:
    """Return the last of a worker's lines; if they are too many, without those from before its traceback."""
    if len(lines) > room and CONTEXT_CAPTION in lines:
        lines = lines[: lines.index(CONTEXT_CAPTION)]
    return [f"    {line}".rstrip() for line in lines[-room:]]


def _caption(failure: FailureStatus) -> list[str]:
    """Return the line above a worker's lines that says what they are; none above a traceback or a stack.

    If nothing says why the worker exited, its lines are only logs of libraries, and the cause may be on its stdout.
    """
    if failure.pid is None or failure.hang or (failure.last_lines and failure.error):
        return []
    signum = signal_behind(failure.exit_code)
    is_explained = failure.error or failure.message or signum is not None
    if failure.last_lines and is_explained:
        when = " before it was killed" if signum == signal.SIGKILL else ""
        return [f"    (the last that it wrote to stderr{when})"]
    only = ", only this" if failure.last_lines else ""
    more = "" if is_explained else "; its stdout may say more"
    return [f"    (it wrote no error to stderr{only}{more})"]


def _log(failure: FailureStatus) -> str:
    if failure.hang == HangKind.NETWORK or (failure.pid is None and not failure.hang):
        return ""
    if failure.left_early and failure.early_log:
        return f"{failure.early_log} (of rank {failure.early[0].rank}, on node {failure.early[0].node})"
    is_one_of_several = failure.left_early or failure.hang_ranks or failure.shared_by
    whose = f"of rank {failure.rank}, " if is_one_of_several else ""
    return f"{failure.log} ({whose}on {failure.host})" if failure.log else "none was kept, see --log-dir"


def _fact(label: str, text: str) -> list[str]:
    """Return the lines of a fact; an error and a path stay on one line, for searching and copying."""
    if label in {"error", "log"}:
        return [f"{label:<{LABEL_WIDTH}}{text}"]
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=f"{label:<{LABEL_WIDTH}}",
        subsequent_indent=" " * LABEL_WIDTH,
        break_long_words=False,
        break_on_hyphens=False,
        max_lines=FACT_LINES_MAX,
        placeholder=" ...",
    )


class SharedReports:
    """The reports of several nodes that write to one terminal. All report on the same round: the first one is kept."""

    def __init__(self) -> None:
        self._shown: set[bytes] = set()
        """The first lines of the reports that are kept."""
        self._dropping: set[tuple[str, int]] = set()
        """The streams that are in the middle of a dropped report: each is a host and a descriptor."""

    def without_repeated(self, stream: tuple[str, int], lines: bytes) -> bytes:
        """Return whole lines of a stream without reports that were shown before."""
        return b"".join(line for line in io.BytesIO(lines) if self._is_new(stream, line.rstrip()))

    def _is_new(self, stream: tuple[str, int], line: bytes) -> bool:
        if stream in self._dropping:
            if line == RULE.encode():
                self._dropping.remove(stream)
            return False
        if _TITLE.match(line) is None:
            return True
        if line in self._shown:
            self._dropping.add(stream)
        self._shown.add(line)
        return stream not in self._dropping


def log_fields(report: Report) -> dict[str, object]:
    """Return the whole report as the fields of one JSON log line."""
    failure, shown = report.failure, failure_status(report)
    return {
        "round": report.round,
        "failed_node": report.node,
        "failed_host": report.host,
        "rank": failure.rank,
        "local_rank": failure.local_rank,
        "pid": failure.pid or None,
        "exit_code": failure.exit_code,
        "how": shown.how if failure.pid or failure.hang or failure.diverged else "not started",
        "cause": shown.cause,
        "hang": failure.hang,
        "age_s": failure.age_s,
        "because": shown.left_early or failure.message,
        "error": failure.error,
        "last_lines": list(failure.last_lines) or None,
        "consequences": [f"rank {other.rank} on {other.node}" for other in report.consequences] or None,
        "consequences_count": report.consequences_count,
        "same_error_count": report.same_error_count,
        "shared_by": shown.shared_by or None,
        "ended_early": shown.before,
        "behind": shown.behind,
        "excused_by": shown.excused_by or None,
        "stderr_log": failure.log or None,
        "hint": shown.hint or None,
    }
