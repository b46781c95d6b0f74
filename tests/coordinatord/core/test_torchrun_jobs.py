"""Jobs whose workers torchrun starts: it counts restarts by itself, and what it gives up is over."""

from msgspec import structs

from coordinatord.core.machine import Coordinator
from coordinatord.core.rounds.events import Connected, Reported
from coordinatord.core.rounds.state.durable import State
from coordinatord.core.shown.job_view import job_view
from coordinatord.protocol.fields import COUNTER_MAX
from coordinatord.protocol.http.api import RestartsStatus
from coordinatord.protocol.messages import Launcher, Phase
from tests.support.builders import a_coordinator, a_failure, a_join, a_spec, an_observed


def running(nodes_min: int, launcher: Launcher = Launcher.TORCHRUN) -> Coordinator:
    """Bring two nodes to where their workers run."""
    coordinator = a_coordinator()
    spec = structs.replace(a_spec(nodes_min, 2, COUNTER_MAX), launcher=launcher)
    for session, node in ((1, "a"), (2, "b")):
        coordinator.handle(Connected(session, a_join(node, spec=spec), "10.0.0.1", "10.0.0.9"), 0.0)
    for session in (1, 2):
        coordinator.handle(Reported(session, an_observed(run="e-1", round=1, phase=Phase.RUNNING)), 1.0)
    return coordinator


def fail(coordinator: Coordinator, *, leaving: bool) -> None:
    """Let node b's worker fail, and perhaps b leave of it; then a's workers end."""
    failed = an_observed(run="e-1", round=1, phase=Phase.FAILED, failure=a_failure(), leaving=leaving)
    coordinator.handle(Reported(2, failed), 2.0)
    coordinator.handle(Reported(1, an_observed(run="e-1", round=1, phase=Phase.STOPPED)), 3.0)


def test_the_others_go_on_without_it_if_they_are_enough() -> None:
    coordinator = running(nodes_min=1)
    fail(coordinator, leaving=True)
    run = coordinator.jobs["default"]
    assert (run.durable.state, list(run.durable.order)) == (State.STARTING, ["a"])


def test_one_that_has_restarts_left_starts_again_with_the_others() -> None:
    coordinator = running(nodes_min=2)
    fail(coordinator, leaving=False)
    run = coordinator.jobs["default"]
    assert (run.durable.state, run.durable.round, run.durable.restarts_used) == (State.STARTING, 2, 1)
    assert job_view(run, 3.0, None).restarts == RestartsStatus(used=1, max=None)


def test_a_nodeclient_that_leaves_after_a_failure_may_be_replaced() -> None:
    coordinator = running(2, Launcher.NODECLIENT)
    fail(coordinator, leaving=True)
    assert coordinator.jobs["default"].durable.state is State.FORMING
