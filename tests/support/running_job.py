"""Jobs on a stage whose first round runs, and whose workers may hang."""

from collections.abc import Sequence

from coordinatord.core.rounds.values.records import RoundStopped
from coordinatord.protocol.kept_state import PersistOrder
from tests.support.script import Stage, play


def running_job(nodes: Sequence[str], options: str, spares: Sequence[str] = ()) -> Stage:
    """Return a stage where these nodes have joined with these options, and all of them run but the spares."""
    return play(f"join {' '.join((*nodes, *spares))} {options}", f"running {' '.join(nodes)}")


def order(stage: Stage, node: str) -> PersistOrder | None:
    """Return a node's order to write to the disk."""
    return stage.desired(node).persist


def to_write(stage: Stage, node: str) -> int | None:
    """Return the step that a node is to write to the disk."""
    return None if (asked := order(stage, node)) is None else asked.step


class Job(Stage):
    """Two nodes that train, and stand since their last step, after 1 s."""

    def __init__(self, settings: str = "", trained_s: int = 1, heartbeat_s: float = 1.0) -> None:
        super().__init__(heartbeat_s=heartbeat_s)
        self.play(f"join n1 n2 min=2 max=2 {settings}", "running n1 n2")
        for second in range(1, trained_s + 1):
            self.play("advance 1s", f"step n1 n2 {10 * second}")

    def looks(self, *lines: str) -> int:
        """Play some lines; return how often the workers were looked at."""
        return sum("looks at" in text for text in self.play(*lines))

    @property
    def stops(self) -> list[str]:
        """Return the conditions under which rounds were stopped."""
        return [record.condition for record in self.records(RoundStopped)]

    @property
    def reason(self) -> str:
        """Return the reason in the status."""
        return self.view().reason
