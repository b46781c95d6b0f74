"""Finds the class of a failure's cause, which decides who is charged, and advice for people about it. Pure.

Most causes are found by the text of the failure, in the tables of known causes (`RULES`). The advice about a hang
depends on its kind.
"""

from __future__ import annotations

import re
from functools import lru_cache

from coordinatord.hints.launch import GPUS, LAUNCHING
from coordinatord.hints.network import NETWORK
from coordinatord.hints.resource import LIMITS, MEMORY, SIGNALS
from coordinatord.hints.rule import HintRule
from coordinatord.hints.xid import OF_THE_NODE
from coordinatord.protocol.exit_codes import signal_behind
from coordinatord.protocol.messages import Cause, Failure, HangKind, Report

_HANGS = {
    HangKind.ABSENT: (
        "nothing shows what it did: `nodeclient events` says whether its node was cut off, and the log of its round "
        "what it wrote last"
    ),
    HangKind.STUCK: (
        "its stack shows where it stood: look for what it waited for there, such as data, a lock or a file system of "
        "{host}, or for an exception that it caught while the others went on. If that place may take long, put it into "
        "`with ctx.section(name, limit=SECONDS):`; `--hang-timeout` sets another time for all, and `off` none"
    ),
    HangKind.BUSY: (
        "it computed for longer than --hang-timeout allows. If it is an evaluation, put that into `with "
        "ctx.section(name, limit=SECONDS):`. If not, its stack shows where it loops. Without --hang-timeout, a worker "
        "may compute for ever"
    ),
    HangKind.MISMATCHED: (
        "the ranks came to different collectives: look for one in a branch that not all take, for loops of different "
        "lengths, and for sizes that differ. With TORCH_DISTRIBUTED_DEBUG=DETAIL torch itself fails at the first one "
        "that differs. A rank that is behind in NCCL may have a GPU that failed: look for Xid in the log of its kernel"
    ),
    HangKind.NETWORK: (
        "no worker is to blame: look for a link or a firewall that drops what the workers send each other, and whether "
        "they use the right interface (GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME; NCCL_DEBUG=INFO shows it)"
    ),
}

_STOPPED = (
    "a signal (SIGSTOP, SIGTSTP) has stopped it on {host}. Schedulers suspend jobs in that way (`scontrol suspend`), "
    "and so do people. This one was ended with its round. `kill -CONT PID` lets a stopped process go on; with "
    "`--hang-timeout off` no round is ended because of one, and the others wait"
)

_DISK = (
    "its disk or network file system has not answered for minutes: the kernel log of {host} (`dmesg`) may name it. "
    "The next round may wait for it again. If a disk may take that long, put this into `with ctx.section(name, "
    "limit=SECONDS):`"
)

_OUTSIDE = (
    "what it waits for is no part of the job, and has not come for minutes: see what it does on {host}. If it may "
    "take that long, put this into `with ctx.section(name, limit=SECONDS):`"
)

_STUCK_IN_ANOTHER_WAY = {
    r" ha(?:s|ve) been stopped by a signal\b": (_STOPPED, Cause.SIGNAL),
    r" waits? for a disk\b": (_DISK, Cause.HANG),
    r" waits? for ": (_OUTSIDE, Cause.HANG),
}
"""Advice and class of cause for stuck workers whose stack does not show why, by a pattern of their verdict
(`hang_sentences`). The first pattern that matches counts."""


def _judge_hang(kind: HangKind, failure: Failure) -> tuple[str, Cause]:
    """Return advice about a worker that hung, as a template for `str.format` ({host}), and the class of its cause."""
    if kind is HangKind.STUCK:
        for pattern, judged in _STUCK_IN_ANOTHER_WAY.items():
            if re.search(pattern, failure.message):
                return judged
    return _HANGS[kind], Cause.HANG


RULES = (*MEMORY, *LAUNCHING, *GPUS, *NETWORK, *LIMITS, *SIGNALS)
"""The known causes in the order of matching: each row before those that would match more failures."""

CACHED_MAX = 1_000
"""The size of a cache of failures: enough for the last failure of each of a thousand jobs."""

_FINAL = "no restart mends this error, so the run ended at once: correct the script, and start the nodes again"

_DIVERGED = (
    "a GPU may silently compute wrong values, or the script lets a rank train by itself. `nodeclient quarantine HOST` "
    "keeps a host out at once. With --on-divergence quarantine, that happens by itself when its ranks differ again"
)


def hint(report: Report) -> str | None:
    """Return one or two sentences of advice about the root cause; None if the cause is not known."""
    if report.failure.hang is not None:
        return _judge_hang(report.failure.hang, report.failure)[0].format(host=report.host)
    if report.failure.final:
        return _FINAL
    if report.failure.diverged:
        return _DIVERGED
    rule = rule_for(report)
    return None if rule is None else _advice(rule, report)


@lru_cache(maxsize=CACHED_MAX)
def cause_of(failure: Failure) -> Cause:
    """Return the class of a failure's cause, by the report of its own node.

    So rules that depend on other nodes do not count here. An exception of Python without a known cause is an error of
    the script. A broken GPU (Xid) explains any error, even a `final` one. The failure of a hang or a divergence is made
    by the coordinator, so it has no Xid and is not final.
    """
    if not OF_THE_NODE.keys().isdisjoint(failure.xids):
        return Cause.DEVICE
    if failure.hang is not None:
        return _judge_hang(failure.hang, failure)[1]
    if failure.diverged:
        return Cause.DIVERGENCE
    if failure.final:
        return Cause.USER_CODE
    rule = _rule_of_node(failure)
    if rule is not None:
        return rule.cause
    return Cause.USER_CODE if failure.error else Cause.UNKNOWN


def timed_out(failure: Failure) -> bool:
    """Whether a worker failed because others did not come to a collective within torch's timeout."""
    rule = _rule_of_node(failure)
    return rule is not None and rule.waits


def _rule_of_node(failure: Failure) -> HintRule | None:
    """Return the rule of a failure's known cause, by the report of its own node."""
    return next((rule for rule in RULES if not (rule.alone or rule.early) and _found(rule, failure)), None)


_ERROR_OF_TORCH = re.compile(r"torch\.distributed|Dist\w+Error|gloo/|NCCL|nccl")
"""Matches exceptions of collectives and of torch's store."""


def needed_others(failure: Failure) -> bool:
    """Whether workers that had exited with 0 before explain a failure; the caller has found some.

    They do if the first rule that matches is for this case (`HintRule.early`), unless a GPU is broken or the exception
    is not torch's. An exception of another kind is itself the cause, even if the last lines match the rule: workers
    that exit leave warnings of torch in the last lines of others.
    """
    if cause_of(failure) is Cause.DEVICE or (failure.error and not _ERROR_OF_TORCH.search(failure.error)):
        return False
    rule = next((rule for rule in RULES if not rule.alone and _found(rule, failure)), None)
    return rule is not None and rule.early


def rule_for(report: Report) -> HintRule | None:
    """Return the rule of a failure's known cause; None without one, and for a hang or a divergence."""
    if report.failure.hang is not None or report.failure.diverged:
        return None
    return next((rule for rule in RULES if _advice(rule, report) is not None), None)


def _advice(rule: HintRule, report: Report) -> str | None:
    """Return the advice of this rule for a failure; None if the rule does not match it."""
    failure = report.failure
    if (rule.alone and not _is_alone(report)) or (rule.early and not report.early):
        return None
    values = {"host": report.host, "local_rank": failure.local_rank, "pid": failure.pid}
    found = _found(rule, failure)
    return None if found is None else rule.advice.format(**values, **found.groupdict())


def _found(rule: HintRule, failure: Failure) -> re.Match[str] | None:
    """Return where this rule matches the texts of a failure; None if the texts, or how it ended, do not match."""
    if rule.signals and signal_behind(failure.exit_code) not in rule.signals:
        return None
    if rule.exit_codes and failure.exit_code not in rule.exit_codes:
        return None
    texts = [failure.error, failure.message]
    if rule.anywhere or not failure.error:
        texts += failure.last_lines
    return re.search(rule.pattern or "", "\n".join(texts))


def _is_alone(report: Report) -> bool:
    """Whether there are other nodes, and no worker of theirs is known to have failed."""
    are_all_named = report.consequences_count == len(report.consequences)
    return report.nodes > 1 and are_all_named and all(each.node == report.node for each in report.consequences)
