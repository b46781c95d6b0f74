"""Jobs on a stage whose first round runs: their state, the desired states of their nodes, and workers that may hang."""

from collections.abc import Sequence

from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.state.run import Run
from coordinatord.core.rounds.values.records import RoundStopped
from coordinatord.core.shown.job_view import job_view
from coordinatord.protocol.kept_state import PersistOrder
from coordinatord.protocol.messages import Desired
from tests.support.script import Stage


def running_job(nodes: Sequence[str], options: str, spares: Sequence[str] = ()) -> Stage:
    """Return a stage where these nodes have joined with these options, and all of them run but the spares."""
    stage = Stage()
    for node in (*nodes, *spares):
        stage.play(f"join {node} {options}")
    stage.play(f"running {' '.join(nodes)}")
    return stage


def state_of(stage: Stage) -> State:
    """Return the state of the job."""
    return stage.coordinator.jobs["default"].durable.state


def desired_of(stage: Stage, node: str) -> Desired:
    """Return the last desired state of a node."""
    desired = stage.puppets[node].desired
    assert desired is not None
    return desired


def order(stage: Stage, node: str) -> PersistOrder | None:
    """Return a node's order to write to the disk."""
    return desired_of(stage, node).persist


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
