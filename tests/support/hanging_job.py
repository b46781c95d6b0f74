"""A job of two nodes whose workers may hang, for tests of the alarm."""

from __future__ import annotations

from coordinatord.core.queries.job_view import job_view
from coordinatord.core.state.run import Run
from coordinatord.core.values.records import RoundStopped
from tests.support.script import Stage


class Job:
    """Two nodes that train, and stand since their last step, after 1 s."""

    def __init__(self, settings: str = "", trained_s: int = 1, heartbeat_s: float = 1.0) -> None:
        self.stage = Stage(heartbeat_s=heartbeat_s)
        self.play(f"join n1 min=2 max=2 {settings}", f"join n2 min=2 max=2 {settings}", "running n1 n2")
        for second in range(1, trained_s + 1):
            self.play("advance 1s", f"step n1 {10 * second}", f"step n2 {10 * second}")

    def play(self, *lines: str) -> list[str]:
        """Play some lines; return the answers."""
        return self.stage.play(*lines)

    def looks(self, *lines: str) -> int:
        """Play some lines; return how often the workers were looked at."""
        return sum("looks at" in text for text in self.play(*lines))

    @property
    def run(self) -> Run:
        """Return the run."""
        return self.stage.coordinator.jobs["default"]

    @property
    def stops(self) -> list[str]:
        """Return the conditions under which rounds were stopped."""
        return [record.condition for _, record in self.stage.past if isinstance(record, RoundStopped)]

    @property
    def reason(self) -> str:
        """Return the reason in the status."""
        return job_view(self.run, self.stage.now, None).reason
