"""Finds advice about a failure whose cause is well known. Pure; the causes are in other modules, as tables."""

from __future__ import annotations

import re

from coordinatord.hints.hang import hang_advice
from coordinatord.hints.launch import GPUS, LAUNCHING
from coordinatord.hints.network import NETWORK
from coordinatord.hints.resource import LIMITS, MEMORY, SIGNALS
from coordinatord.hints.rule import HintRule
from coordinatord.protocol.exit_codes import signal_behind
from coordinatord.protocol.messages import Report

CAUSES = (*MEMORY, *LAUNCHING, *GPUS, *NETWORK, *LIMITS, *SIGNALS)
"""The causes in the order in which they are tried: more specific ones come first."""

_FINAL = "no restart mends this error, so the run ended at once: correct the script, and start the nodes again"


def hint(report: Report) -> str | None:
    """Return one or two sentences about the root cause; None if it has no known cause."""
    if report.failure.hang is not None:
        return hang_advice(report.failure.hang, report.failure).format(host=report.host)
    if report.failure.final:
        return _FINAL
    cause = cause_of(report)
    return None if cause is None else _advice(cause, report)


def cause_of(report: Report) -> HintRule | None:
    """Return the known cause of a failure; None if there is none, as for a worker that hung."""
    if report.failure.hang is not None:
        return None
    return next((cause for cause in CAUSES if _advice(cause, report) is not None), None)


def _advice(cause: HintRule, report: Report) -> str | None:
    """Return the advice of this cause; None if it is not the cause of the failure."""
    failure = report.failure
    if cause.signals and signal_behind(failure.exit_code) not in cause.signals:
        return None
    if cause.exit_codes and failure.exit_code not in cause.exit_codes:
        return None
    if (cause.alone and not _is_alone(report)) or (cause.early and not report.early):
        return None
    values = {"host": report.host, "local_rank": failure.local_rank, "pid": failure.pid}
    if cause.pattern is None:
        return cause.advice.format(**values)
    texts = [failure.error, failure.message]
    if cause.anywhere or not failure.error:
        texts += failure.last_lines
    found = re.search(cause.pattern, "\n".join(texts))
    return cause.advice.format(**values, **found.groupdict()) if found else None


def _is_alone(report: Report) -> bool:
    """Whether there are other nodes, and no worker of theirs is known to have failed."""
    unnamed = report.consequences_count > len(report.consequences)
    return (
        report.nodes > 1 and not unnamed and all(consequence.node == report.node for consequence in report.consequences)
    )
