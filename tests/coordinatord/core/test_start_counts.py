"""Each answer about a round that runs says how its workers were begun, and why not in place or warm."""

import pytest

from coordinatord.core.shown.job_view import whole_view
from coordinatord.protocol.http.api import JobStatus, WorkerStartsStatus
from coordinatord.protocol.messages import ColdCause, Phase, WhyCold, WorkerStarts
from tests.support.script import Stage, play

FORMED = " (formed of nodes n1, n2, all that --nnodes allows)"


OPENS_CUDA = WhyCold(ColdCause.GPU, "module x opened CUDA")


@pytest.mark.parametrize(
    ("begun", "said"),
    [
        ((None, None), ""),
        ((WorkerStarts(1, 0, 0), WorkerStarts(0, 1, 0)), ": 1 in place, 1 warm"),
        ((WorkerStarts(1, 0, 0), None), ": 1 in place, 1 cold"),
        (
            (WorkerStarts(1, 0, 0), WorkerStarts(0, 0, 1, "it was not out in time")),
            ": 1 in place, 1 cold; not in place on node n2: it was not out in time",
        ),
        (
            (WorkerStarts(0, 0, 1, "it was not out in time", OPENS_CUDA), WorkerStarts(0, 0, 1, "", OPENS_CUDA)),
            ": 2 cold; not in place on node n1: it was not out in time; cold on node n1: module x opened CUDA",
        ),
    ],
)
def test_it_counts_each_way_and_says_why_not_in_place_and_why_cold(
    begun: tuple[WorkerStarts | None, WorkerStarts | None], said: str
) -> None:
    stage = play("join n1 n2 min=2 max=2")
    for name, way in zip(("n1", "n2"), begun, strict=True):
        stage.report(name, phase=Phase.RUNNING, begun=way)
    assert stage.run.durable.reason == f"all workers are started{said}{FORMED}"


def shown(stage: Stage) -> JobStatus:
    """Return what a reader of the job is shown."""
    run = stage.run
    return whole_view(run, run.durable.rounds, stage.now, None)


def test_a_job_its_nodes_and_its_rounds_say_it_in_a_field_of_its_own() -> None:
    stage = play("join n1 n2 min=2 max=2")
    ways = WorkerStarts(1, 0, 0), WorkerStarts(0, 0, 1, "it was not out in time", OPENS_CUDA)
    for name, way in zip(("n1", "n2"), ways, strict=True):
        assert shown(stage).begun is None
        stage.report(name, phase=Phase.RUNNING, begun=way)
    whole = WorkerStartsStatus(
        in_place=1, warm=0, cold=1, why_not="node n2: it was not out in time", why_cold="node n2: module x opened CUDA"
    )
    view = shown(stage)
    assert view.begun == whole
    assert [round_.begun for round_ in view.rounds] == [whole]
    assert [node.begun for node in view.nodes] == [
        WorkerStartsStatus(in_place=1, warm=0, cold=0, why_not=""),
        WorkerStartsStatus(
            in_place=0, warm=0, cold=1, why_not="it was not out in time", why_cold="module x opened CUDA"
        ),
    ]


def test_what_is_said_of_a_round_that_ended_stays_and_the_next_one_says_nothing_yet() -> None:
    stage = play("join n1 min=1 max=1")
    stage.report("n1", phase=Phase.RUNNING, begun=WorkerStarts(0, 1, 0))
    stage.play("fail n1", "stopped n1")
    view = shown(stage)
    assert view.begun is None
    assert next(iter(view.rounds)).begun == WorkerStartsStatus(in_place=0, warm=1, cold=0, why_not="")
