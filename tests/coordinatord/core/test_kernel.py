"""The kernel is complete without its wings."""

import pytest

from coordinatord.core.machine import Coordinator
from coordinatord.core.rounds.events import Compared, Looked
from coordinatord.core.rounds.policy import Policy
from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.state.run import Wings
from coordinatord.core.rounds.state.wings import JudgingWing, KeepingWing, WatchingWing
from coordinatord.core.shown.job_view import job_view
from coordinatord.protocol.messages import Goal
from tests.support.builders import EPOCH
from tests.support.script import Stage

NODES = ("n1", "n2", "n3")
JOIN = "min=2 max=3 keeps=600s"


def bare_stage() -> Stage:
    """Return a stage whose coordinator has no wing."""
    stage = Stage()
    stage.coordinator = Coordinator(Policy(), EPOCH, Wings())
    return stage


def train(stage: Stage, *nodes: str) -> None:
    """Let the workers of these nodes start and do a step; they keep it."""
    stage.play(f"running {' '.join(nodes)}")
    for step, node in enumerate(nodes):
        stage.play(f"keep {node} 1:{step}", f"step {node} {step}")
    stage.play("advance 1s")
    assert stage.state() is State.RUNNING


def test_a_round_forms_again_when_a_worker_fails_and_a_node_is_lost_and_a_run_ends() -> None:
    stage = bare_stage()
    stage.play(f"join n1 n2 n3 {JOIN}")
    train(stage, *NODES)
    stage.play("fail n1", "failed n1", "stopped n2 n3", "advance 3s")
    assert stage.desired("n1").round == 2
    train(stage, *NODES)
    stage.play("drop n3", "advance 30s", "stopped n1 n2", "advance 30s")
    assert (stage.desired("n1").round, stage.desired("n1").resume) == (3, None)
    train(stage, "n1", "n2")
    stage.play("succeed n1 n2")
    assert stage.state() is State.SUCCEEDED
    assert stage.desired("n1").goal is Goal.EXIT


def test_a_node_that_leaves_and_a_run_that_is_stopped_wait_for_nothing() -> None:
    stage = bare_stage()
    stage.play(f"join n1 n2 n3 {JOIN}")
    train(stage, *NODES)
    stage.play("leave n3", "stopped n1 n2 n3", "advance 3s")
    assert [stage.desired(node).goal for node in NODES] == [Goal.RUN, Goal.RUN, Goal.EXIT]
    stage.play("ask stop default", "stopped n1 n2")
    assert stage.state() is State.STOPPED


def test_nothing_follows_from_an_answer_that_nobody_asked_for() -> None:
    stage = bare_stage()
    stage.play("join n1 min=1 max=1 laggards=1.1", "running n1", "advance 1s", "step n1 10", "advance 60s")
    run, before = stage.run, list(stage.past)
    for event in (Looked(run.id, 1, 1, ()), Compared(run.id, 1, ())):
        assert stage.coordinator.handle(event, stage.now).records == ()
    assert (stage.past, job_view(run, stage.now, None).laggard, stage.look) == (before, None, None)


def test_no_host_is_charged_or_tested_and_an_operator_quarantines_one_all_the_same() -> None:
    stage = bare_stage()
    stage.play(f"join n1 n2 n3 {JOIN}")
    for _ in range(2):
        train(stage, *NODES)
        stage.play("fail n1 exit=-11", "failed n1", "stopped n2 n3", "advance 3s")
    assert stage.coordinator.cluster.durable.hosts == {}
    stage.play("ask preflight default", "ask quarantine n3")
    assert [stage.desired(node).pair for node in NODES] == [None] * 3
    assert stage.coordinator.cluster.durable.hosts.keys() == {"host-n3"}


@pytest.mark.parametrize("interface", [KeepingWing, WatchingWing, JudgingWing])
def test_a_wing_answers_each_word_of_its_interface(interface: type) -> None:
    """A word that it lacks, or spells in another way, would do nothing."""
    stage = Stage()
    stage.play("join n1 min=1 max=1")
    run = stage.run
    [wing] = [wing for wing in (run.keeping, run.watching, run.judging) if isinstance(wing, interface)]
    classes = type(wing).__mro__
    own = {name for kind in classes[: classes.index(interface)] for name in vars(kind)} | vars(wing).keys()
    words = {name for name in vars(interface) if not name.startswith("_")} - interface.__annotations__.keys()
    assert words - own == set()
