"""Says what to do about a failure whose cause is well known. Pure; the causes are tables of their own."""

from __future__ import annotations

from coordinatord.wire.exits import signal_behind
from coordinatord.wire.messages import Report
from nodeclient.failures.cause import Cause
from nodeclient.failures.launch_causes import GPUS, LAUNCHING
from nodeclient.failures.network_causes import NETWORK
from nodeclient.failures.resource_causes import LIMITS, MEMORY, SIGNALS

CAUSES = (*MEMORY, *LAUNCHING, *GPUS, *NETWORK, *LIMITS, *SIGNALS)
"""In the order in which they are tried: what says more comes first."""


def hint(report: Report) -> str | None:
    """Return one or two sentences about the first cause; None if it is not one of the known ones."""
    return next((said for cause in CAUSES if (said := _advice(cause, report)) is not None), None)


def _advice(cause: Cause, report: Report) -> str | None:
    failure = report.failure
    if cause.signals and signal_behind(failure.exit_code) not in cause.signals:
        return None
    if cause.exit_codes and failure.exit_code not in cause.exit_codes:
        return None
    if cause.alone and (report.nodes == 1 or report.consequences_count > 0):
        return None
    known = {"host": report.host, "local_rank": failure.local_rank, "pid": failure.pid}
    if cause.pattern is None:
        return cause.advice.format(**known)
    everything = "\n".join((failure.error, failure.message, *failure.last_lines))
    said = everything if cause.anywhere or not failure.error else f"{failure.error}\n{failure.message}"
    found = cause.pattern.search(said)
    return cause.advice.format(**known, **found.groupdict()) if found else None
