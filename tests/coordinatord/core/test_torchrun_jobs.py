"""Jobs whose workers torchrun starts: it counts restarts by itself, and what it gives up is over."""

from coordinatord.core.rounds.state.durable import State
from coordinatord.protocol.fields import COUNTER_MAX
from coordinatord.protocol.http.api import RestartsStatus
from tests.support.script import Stage, play


def failed(nodes_min: int, launcher: str, *, leaves: bool) -> Stage:
    """Let two nodes train, the worker of n2 fail, and n2 perhaps leave of it; then the workers of n1 end."""
    job = f"min={nodes_min} max=2 restarts={COUNTER_MAX} launcher={launcher}"
    stage = play(f"join n1 n2 {job}", "running n1 n2", "fail n2")
    stage.play(*(["leave n2"] if leaves else []), "failed n2", "stopped n1")
    return stage


def test_the_others_go_on_without_it_if_they_are_enough() -> None:
    stage = failed(1, "torchrun", leaves=True)
    assert (stage.state(), list(stage.run.durable.order)) == (State.STARTING, ["n1"])


def test_one_that_has_restarts_left_starts_again_with_the_others() -> None:
    stage = failed(2, "torchrun", leaves=False)
    assert (stage.state(), stage.run.durable.round, stage.view().restarts) == (
        State.STARTING,
        2,
        RestartsStatus(used=1, max=None),
    )


def test_a_nodeclient_that_leaves_after_a_failure_may_be_replaced() -> None:
    assert failed(2, "nodeclient", leaves=True).state() is State.FORMING
