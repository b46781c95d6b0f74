"""The kernel without the wing that looks at workers."""

from msgspec.structs import replace

from coordinatord.core.machine import WINGS, Coordinator
from coordinatord.core.rounds.events import Compared, Looked
from coordinatord.core.rounds.policy import Policy
from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.state.wings import WatchingWing
from coordinatord.core.rounds.values.records import RoundFormed
from coordinatord.core.shown.job_view import job_view
from tests.support.builders import EPOCH
from tests.support.running_job import state_of
from tests.support.script import Stage


def _unwatched() -> Stage:
    stage = Stage()
    stage.coordinator = Coordinator(Policy(), EPOCH, replace(WINGS, watching=WatchingWing))
    return stage


def test_a_job_at_which_nobody_looks_trains_loses_a_worker_and_a_node_and_ends() -> None:
    stage = _unwatched()
    stage.play("join n1 min=2 max=2", "join n2 min=2 max=2", "running n1 n2", "advance 1s", "step n1 10", "step n2 10")
    stage.play("advance 60s", "fail n1", "stopped n1 n2", "running n1 n2", "advance 1s")
    stage.play("drop n2", "advance 20s", "stopped n1", "join n3 min=2 max=2", "running n1 n3", "succeed n1 n3")
    rounds = [[own.node for own in record.nodes] for _, record in stage.past if isinstance(record, RoundFormed)]
    assert (rounds, state_of(stage)) == ([["n1", "n2"], ["n1", "n2"], ["n1", "n3"]], State.SUCCEEDED)
    assert stage.look is None


def test_nothing_follows_from_an_answer_that_nobody_asked_for() -> None:
    stage = _unwatched()
    stage.play("join n1 min=1 max=1 laggards=1.1", "running n1", "advance 1s", "step n1 10", "advance 60s")
    run, before = stage.coordinator.jobs["default"], list(stage.past)
    for event in (Looked(run.id, 1, 1, ()), Compared(run.id, 1, ())):
        assert stage.coordinator.handle(event, stage.now).records == ()
    assert (stage.past, job_view(run, stage.now, None).laggard) == (before, None)
