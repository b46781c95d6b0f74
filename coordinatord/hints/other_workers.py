"""Describes the other workers of a failed round: which failed too, had ended before, or were behind. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from coordinatord.hints.match import rule_for
from coordinatord.protocol.exit_codes import describe_exit
from coordinatord.protocol.fields import CONSEQUENCES_MAX
from coordinatord.protocol.messages import Report, SecondaryFailure

NAMED_MAX = 3
"""The most workers that a sentence about early ends or stragglers names."""


def consequences(report: Report) -> str:
    """Return which workers failed too, with the same error or in consequence; empty if none did."""
    number, same = report.consequences_count, report.same_error_count
    if not number:
        return ""
    others = "another worker" if number == 1 else f"{number} other workers"
    others = f"{others} {_did(report.consequences, number)}"
    if not same:
        return f"{others} in consequence: {_named(report.consequences, number)}"
    if same == number:
        return f"{others} with the same error: {_named(report.consequences, number)}"
    with_same_error = [failure for failure in report.consequences if failure.same_error]
    in_consequence = [failure for failure in report.consequences if not failure.same_error]
    return (
        f"{others}, {same} of them with the same error: {_named(with_same_error, same)}; "
        f"and in consequence: {_named(in_consequence, number - same)}"
    )


def early(report: Report) -> str:
    """Return which workers had ended with 0 by then; empty if none had."""
    ends = [f"rank {end.rank} on {end.node} had ended with 0, {_age(end.before_s)} before" for end in report.early]
    return _first_of(ends)


def stragglers(report: Report) -> str:
    """Return which workers were behind, if the failed one waited for others; empty if none was."""
    cause = rule_for(report)
    if cause is None or not cause.waits or not report.stragglers:
        return ""
    named = [f"rank {straggler.rank} on {straggler.node} at step {straggler.step}" for straggler in report.stragglers]
    return f"{_first_of(named)}, while others had reported step {report.step}"


def _first_of(texts: Sequence[str]) -> str:
    more = len(texts) - NAMED_MAX
    if more <= 0:
        return ", ".join(texts)
    least = "at least " if len(texts) == CONSEQUENCES_MAX else ""
    return ", ".join([*texts[:NAMED_MAX], f"{least}{more} more"])


def _did(failures: Sequence[SecondaryFailure], number: int) -> str:
    """Say whether `number` workers failed or left the round, by those of them that the report names."""
    left = sum(failure.left for failure in failures)
    return "failed" if not left else "left the round" if left == number else "failed or left the round"


def _named(failures: Iterable[SecondaryFailure], number: int) -> str:
    """Name the workers of these failures, and count the rest of `number`."""
    names = [
        f"rank {failure.rank} on {failure.node} ({describe_exit(failure.exit_code, left=failure.left)})"
        for failure in failures
    ]
    more = number - len(names)
    return ", ".join([*names, f"{more} more"] if more > 0 else names)


def _age(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"  # noqa: PLR2004  # two digits
