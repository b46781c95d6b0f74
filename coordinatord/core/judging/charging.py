"""Finds the host that ended a round by a fault of its own, to charge it: enough charges quarantine a host.

A wrong charge costs a good host. A script may fail on each host that it visits, and a network may cut off many at once.
So a failure charges a host only if it may be the host's fault, and nothing like it happened on another node.
"""

from __future__ import annotations

from coordinatord.core.rounds.queries.next_round import can_do_without
from coordinatord.core.rounds.state.run import Run
from coordinatord.core.rounds.values.judged_host import Charge, Fault
from coordinatord.hints.hang_place import may_be_of_host
from coordinatord.hints.xid import OF_THE_NODE
from coordinatord.protocol.exit_codes import describe_exit, signal_behind
from coordinatord.protocol.fields import MESSAGE_MAX
from coordinatord.protocol.messages import Cause, HangKind, OnDivergence, Report
from coordinatord.protocol.text import clip

FAULT_OF = {
    Cause.DEVICE: Fault.DEVICE,
    Cause.HANG: Fault.HANG,
    Cause.DISK: Fault.DISK,
    Cause.UNKNOWN: Fault.CRASH,
}
"""The faults of hosts by the causes of failures. `_diverged_host` judges a divergence. Other causes are no fault of a
host: an error of the script, a lack of memory, an act of somebody outside the job, and a broken connection, since
either end may have failed."""


def charged_host(run: Run, report: Report | None) -> tuple[str, Charge] | None:
    """Return the host to charge with the end of a round, and the charge; None if the end may be no fault of a host.

    Without a report, no worker failed by itself: the round was stopped, or has lost nodes.
    """
    if report is None:
        return _lost_host(run)
    return _diverged_host(run, report) if report.cause is Cause.DIVERGENCE else _failed_host(run, report)


def _failed_host(run: Run, report: Report) -> tuple[str, Charge] | None:
    """Return the host of the first failed worker with its charge; None if the failure may be no fault of a host."""
    failure, fault = report.failure, FAULT_OF.get(report.cause)
    if fault is None:
        return None
    if fault is Fault.CRASH and signal_behind(failure.exit_code) is None:
        return None  # without a signal, the script has ended the process
    is_torch_timeout = fault is Fault.HANG and failure.hang is None
    if is_torch_timeout or failure.hang is HangKind.NETWORK or failure.hang_ranks:
        return None  # the hang has no culprit, or several
    are_all_named = report.consequences_count == len(report.consequences)
    if not are_all_named or any(other.same_error and other.node != report.node for other in report.consequences):
        return None  # the same error came on another node, or may have among those that the report leaves out
    # A hang by the script's fault moves with its rank. If rounds need this host, the rank stays there, and the host
    # would be charged each time. Otherwise a quarantine tells whose fault it is: if the rank hangs on another host too,
    # the quarantine is lifted.
    if failure.hang is not None and not may_be_of_host(failure) and not can_do_without(run, report.host):
        return None
    # A certain fault has no error to compare with those of other hosts.
    error = failure.hang or failure.error or failure.message or describe_exit(failure.exit_code)
    is_certain = not OF_THE_NODE.keys().isdisjoint(failure.xids)
    return report.host, Charge(fault, "" if is_certain else clip(error, MESSAGE_MAX), age_s=0.0, job=run.job)


def _diverged_host(run: Run, report: Report) -> tuple[str, Charge] | None:
    """Return the host of the ranks that differ from most others with its charge; None unless one node has all of them.

    The step is in the error for people: numbers do not count when errors of hosts are compared.
    """
    found = run.durable.divergence
    if found is None or run.spec.on_divergence is not OnDivergence.QUARANTINE:
        return None
    error = f"other parameters or optimizer state than most ranks at step {found.step}"
    is_one_node = [own.node for own in run.durable.nodes_of(found.ranks)] == [report.node]
    return (report.host, Charge(Fault.DIVERGENCE, error, age_s=0.0, job=run.job)) if is_one_node else None


def _lost_host(run: Run) -> tuple[str, Charge] | None:
    """Return the host that the round has lost with its charge; None if it lost none or several, or only a process.

    A host that goes is silent, while a process that ends closes its connection.
    """
    # `losses` are the nodes that the round has lost. `lost` says which host each had, and whether that went silent.
    nodes = {loss.node for loss in run.durable.losses}
    lost = [each for each in run.durable.lost if each.node in nodes and each.round == run.durable.round]
    hosts, are_silent = {each.host for each in lost}, all(each.silent for each in lost)
    return (hosts.pop(), Charge(Fault.LOST, "", age_s=0.0, job=run.job)) if are_silent and len(hosts) == 1 else None
