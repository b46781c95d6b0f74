"""The health checks of a node: when the command of `--health-check` runs, and what its end says about the host."""

from __future__ import annotations

from coordinatord.protocol.exit_codes import describe_exit
from coordinatord.protocol.fields import MESSAGE_MAX
from coordinatord.protocol.messages import CheckResult, HealthCheck
from coordinatord.protocol.text import clip
from nodeclient.core.effects import CheckHealth, Level, Notice
from nodeclient.core.events import HealthChecked

WITHIN_S = 10.0
"""How long the command may run. A tool that asks a broken GPU may never end."""

AGAIN_AFTER_S = 60.0
"""The time from a check that did not pass to the next one on a node without workers: a mended host is let in soon, and
the command costs little."""

_RESULTS = {0: CheckResult.GOOD, 1: CheckResult.WARNING, 2: CheckResult.BAD}
"""The exit codes of Nagios plugins, which Meta's `health_checks` (gpucm) has too. Each other one is `UNKNOWN`, as is 3
there: a check that cannot tell must not cost a host."""

_LEVELS = {
    CheckResult.GOOD: Level.INFO,
    CheckResult.WARNING: Level.WARNING,
    CheckResult.BAD: Level.ERROR,
    CheckResult.UNKNOWN: Level.WARNING,
}


class HealthChecks:
    """The health checks of one node. Nothing waits for them: the last one counts."""

    def __init__(self, *, wanted: bool) -> None:
        """Begin without a check."""
        self._wanted = wanted
        self._runs = False
        self.last: HealthCheck | None = None
        """The last one that has ended."""
        self.again_at: float | None = None
        """When to check again if the node has no workers then; None if that is not needed."""

    def begin(self) -> list[CheckHealth]:
        """Begin a check, if the user wants any and none is under way."""
        if not self._wanted or self._runs:
            return []
        self._runs, self.again_at = True, None
        return [CheckHealth(WITHIN_S)]

    def end(self, event: HealthChecked, now: float) -> list[Notice]:
        """Record the end of a check; return the notice if it says anything new."""
        before, text, result = self.last, event.text, CheckResult.UNKNOWN
        if event.exit_code in _RESULTS:
            result = _RESULTS[event.exit_code]
        elif event.exit_code is not None:
            text = f"{describe_exit(event.exit_code)}{': ' if text else ''}{text}"
        number = 1 if before is None else before.number + 1
        self._runs, self.last = False, HealthCheck(number, result, clip(text, MESSAGE_MAX))
        passes = result in {CheckResult.GOOD, CheckResult.WARNING}
        self.again_at = None if passes else now + AGAIN_AFTER_S
        said = "passes" if before is None else before.says
        text = f"the health check of this host {self.last.says}"
        return [] if self.last.says == said else [Notice(_LEVELS[result], text, "health_checked")]
