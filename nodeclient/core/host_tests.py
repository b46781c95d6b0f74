"""The tests of this host: its health checks, and tests with another node, by which the coordinator finds bad hosts.

The built-in check (`host_health`) and the command of `--health-check` make one health check, whose result is the worse
of both. The node only reports the results: the coordinator decides whether rounds do without the host.
"""

from __future__ import annotations

from coordinatord.protocol.exit_codes import describe_exit
from coordinatord.protocol.fields import SENTENCE_MAX
from coordinatord.protocol.messages import CheckResult, Desired, Goal, HealthCheck, Phase
from coordinatord.protocol.pair_messages import PairOrder, PairResult
from coordinatord.protocol.text import clip
from nodeclient.core.effects import CheckHealth, Level, Notice, RunPairTest
from nodeclient.core.events import HealthChecked, PairTested
from nodeclient.core.host_health import HostFacts, conclude, judge, remembered, worst_of

WITHIN_S = 10.0
"""How long a check may take. A tool that asks a broken GPU may never end."""

AGAIN_AFTER_S = 60.0
"""The time from a check that did not pass to the next one on a node without workers: a mended host is let in soon, and
the command costs little."""

_RESULTS = {0: CheckResult.GOOD, 1: CheckResult.WARNING, 2: CheckResult.BAD}
"""The exit codes of Nagios plugins, which Meta's `health_checks` (gpucm) uses too. All others are `UNKNOWN`, as 3 is
there: a check that cannot tell must not cost a host."""

EXIT_CODES = {**{result: code for code, result in _RESULTS.items()}, CheckResult.UNKNOWN: 3}
"""The exit codes of `nodeclient check`, which are the same."""

PASSES = frozenset({CheckResult.GOOD, CheckResult.WARNING})
"""The results of a check that passes: no early check follows, and later facts are compared with those of this check.
`UNKNOWN` is not among them, although the coordinator then goes on to judge the host as before."""

_LEVELS = {
    CheckResult.GOOD: Level.INFO,
    CheckResult.WARNING: Level.WARNING,
    CheckResult.BAD: Level.ERROR,
    CheckResult.UNKNOWN: Level.WARNING,
}


class HostTests:
    """The tests of one host.

    The agent begins a health check when its search for a coordinator begins, when a round has failed here and another
    may follow, and at `check_again_at`. Nothing waits for its end: the last result counts. A test with another node
    runs while the coordinator wants it and no worker lives.
    """

    def __init__(self, *, checks_health: bool) -> None:
        self._checks_health = checks_health
        self._runs = False
        """Whether a check is under way."""
        self._is_idle = True
        """Whether no process of a worker lived when the check began."""
        self._passed: HostFacts | None = None
        """The facts of the last built-in check that passed: a GPU that was there then must still be there."""
        self._failed: HostFacts | None = None
        """The facts of the last built-in check that failed; None if one has passed since."""
        self.last_check: HealthCheck | None = None
        self.check_again_at: float | None = None
        """When to check again if the node has no workers then; None if that is not needed."""
        self._pair: PairOrder | None = None
        """The test with another node that the coordinator wants, which may have ended; None if it wants none."""
        self.last_pair: PairResult | None = None
        """The result of the last test with another node that has ended."""

    def begin_check(self, *, is_idle: bool) -> list[CheckHealth]:
        """Begin a health check, if the user wants any and none is under way.

        `is_idle` says that no process of a worker lives, so that GPU memory in use is nobody's work.
        """
        if not self._checks_health or self._runs:
            return []
        self._runs, self._is_idle, self.check_again_at = True, is_idle, None
        return [CheckHealth(WITHIN_S)]

    def end_check(self, event: HealthChecked, now: float) -> list[Notice]:
        """Record the end of a health check; return the notice if it says anything new."""
        before, (result, text) = self.last_check, _of_command(event)
        if event.facts is not None:
            result, text = self._with_facts(result, text, event.facts)
        number = 1 if before is None else before.number + 1
        self._runs, self.last_check = False, HealthCheck(number, result, clip(text, SENTENCE_MAX))
        self.check_again_at = None if result in PASSES else now + AGAIN_AFTER_S
        said = "passes" if before is None else before.says  # a first check that passes is no news
        if self.last_check.says == said:
            return []
        return [Notice(_LEVELS[result], f"the health check of this host {self.last_check.says}", "health_checked")]

    def _with_facts(self, result: CheckResult, text: str, facts: HostFacts) -> tuple[CheckResult, str]:
        """Return the worse result of the command and the built-in check, with the text of each that is as bad."""
        builtin, said = conclude(judge(facts, self._passed, is_idle=self._is_idle), facts)
        if builtin in PASSES and self._failed and set(facts.unread) - set(self._failed.unread):
            builtin = CheckResult.UNKNOWN  # a fact that cannot be read any more may be the one that was bad
        if builtin in PASSES:
            self._passed, self._failed = remembered(facts, self._passed), None
        elif builtin is CheckResult.BAD:
            self._failed = facts
        worst = worst_of(result, builtin)
        texts = (text if result is worst else "", f"built-in check: {said}" if builtin is worst and said else "")
        return worst, "; ".join(filter(None, texts))

    def pursue_pair(self, desired: Desired | None, phase: Phase) -> list[RunPairTest]:
        """Begin the test with another node that is wanted, and end any other one."""
        waits = desired is not None and desired.goal is Goal.WAIT and not phase.has_workers
        wanted = desired.pair if desired is not None and waits else None
        if wanted == self._pair:
            return []
        self._pair = wanted
        return [RunPairTest(wanted)]

    def end_pair(self, event: PairTested) -> None:
        """Record the result of a test with another node, unless another one is wanted by now."""
        if self._pair is not None and event.result.number == self._pair.number:
            self.last_pair = event.result


def _of_command(event: HealthChecked) -> tuple[CheckResult, str]:
    """Return the result of the user's command, and its text, which names an exit code that has no result."""
    if event.exit_code in _RESULTS:
        return _RESULTS[event.exit_code], event.text
    how = "" if event.exit_code is None else describe_exit(event.exit_code)
    return CheckResult.UNKNOWN, ": ".join(filter(None, (how, event.text)))
