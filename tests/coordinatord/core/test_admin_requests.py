"""Operators' requests across lives of the coordinator, and beside failures; the transcripts have the rest."""

import pytest
from msgspec.structs import replace

from coordinatord.core import admin
from coordinatord.core.rounds.effects import Answer, Batch
from coordinatord.core.rounds.events import AdminRequested, StoreFailed, StoreRecovered
from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.state.gathering import REFUSED_MAX
from coordinatord.core.rounds.values.admin_requests import (
    AdminResult,
    DrainNode,
    ForgetJob,
    PardonNode,
    QuarantineNode,
    Request,
    RestartJob,
    StopJob,
    UndrainNode,
)
from coordinatord.core.shown.job_view import job_view
from coordinatord.protocol.messages import Goal, Result
from coordinatord.runtime.object_graph import dump
from tests.support.script import Stage, play

JOB = "default"

PAIR = ("join n1 n2 min=2 max=2", "running n1 n2")

DESERTED = (*PAIR, "drop n2", "advance 2s", "stopped n1", "drop n1", "advance 2s")
"""No node is left of the run, which is not over yet."""


def ask(stage: Stage, request: Request) -> Answer:
    """Ask, and return the answer."""
    [answer] = [effect for effect in asked(stage, request).effects if isinstance(effect, Answer)]
    return answer


def asked(stage: Stage, request: Request) -> Batch:
    return stage.handle(AdminRequested(-1, request))


@pytest.mark.parametrize(
    "request_",
    [
        StopJob(JOB, "alice", ""),
        RestartJob(JOB, "alice", ""),
        ForgetJob(JOB, "alice", ""),
        DrainNode("n2", "alice", ""),
        DrainNode("n7", "alice", "", ahead=True),
        UndrainNode("host-n1", "alice", ""),
        UndrainNode("n2", "alice", ""),
        QuarantineNode("n2", "alice", ""),
        PardonNode("host-n1", "alice", ""),
    ],
)
@pytest.mark.parametrize("earlier", ["", "ask quarantine n1", "ask drain host-n1", "ask stop default"])
@pytest.mark.parametrize("lines", [PAIR, DESERTED], ids=["running", "deserted"])
def test_a_dry_run_says_what_the_request_then_does_and_changes_nothing(
    request_: Request, earlier: str, lines: tuple[str, ...]
) -> None:
    stage = play(*lines, earlier)
    before = dump(stage.coordinator.cluster)
    batch = asked(stage, replace(request_, dry_run=True))
    assert (batch.records, len(batch.effects)) == ((), 1)
    assert dump(stage.coordinator.cluster) == before
    [dry], done = batch.effects, ask(stage, request_)
    assert isinstance(dry, Answer)
    if done.result is AdminResult.DONE:
        assert (dry.result, dry.text) == (AdminResult.NOTHING, f"dry run: {done.text}")
    else:
        assert (dry.result, dry.text) == (done.result, done.text)


def test_a_node_that_is_drained_leaves_though_the_coordinator_starts_again_meanwhile() -> None:
    stage = play(*PAIR, "ask drain n2")
    assert stage.state() is State.STOPPING
    stage.play("die 100s")
    assert stage.coordinator.cluster.durable.drained == {"n2": {"": "n2 drained by alice"}}
    stage.play("reconnect n1 n2")
    assert [stage.desired(node).goal for node in ("n1", "n2")] == [Goal.STOP] * 2
    stage.play("stopped n1 n2")
    assert (outcome := stage.desired("n2").outcome) is not None
    assert (outcome.result, outcome.summary) == (
        Result.LEFT,
        "left the job: n2 drained by alice; to let it in again: nodeclient undrain n2, and start it",
    )
    assert stage.desired("n1").goal is Goal.WAIT


def test_a_drained_node_is_kept_out_by_the_next_coordinator_as_well() -> None:
    third = "join n3 min=2 max=2"
    stage = play(*PAIR, "ask drain host-n3 why=broken ahead=yes", "die 100s")
    why = "host-n3 drained by alice: broken; to let it in: nodeclient undrain host-n3"
    assert stage.play(third)[0].endswith(f"-> n3: refused may retry (drained): {why}")
    stage.play("ask undrain host-n3", "die 100s", third)
    assert "n3" in stage.run.members


def test_a_drained_node_that_asks_to_be_let_in_is_shown_until_it_is_or_has_given_up() -> None:
    third = "join n3 min=2 max=2"

    def refused() -> list[tuple[str, str, float]]:
        shown = job_view(stage.run, stage.now, None).refused
        return [(each.node, each.reason, each.refused_s) for each in shown]

    stage = play(*PAIR, "ask drain host-n3 ahead=yes", third, "advance 5s")
    why = "host-n3 drained by alice; to let it in: nodeclient undrain host-n3"
    assert refused() == [("n3", why, 5.0)]
    stage.play("advance 5s", third)
    assert refused() == [("n3", why, 0.0)]
    stage.play("advance 61s")
    assert refused() == []
    stage.play(third, "ask undrain host-n3", third)
    assert refused() == []


def test_a_run_remembers_a_limited_number_of_nodes_that_it_has_refused() -> None:
    stage = play(*PAIR, *(f"ask drain host-m{number} ahead=yes" for number in range(REFUSED_MAX + 1)))
    stage.play(*(f"join m{number} min=2 max=2" for number in range(REFUSED_MAX + 1)))
    assert [*stage.run.gathering.refused] == [f"m{number}" for number in range(1, REFUSED_MAX + 1)]


def test_a_node_that_comes_back_to_a_stopped_run_hears_how_it_ended() -> None:
    stage = play(*PAIR, "drop n2", "advance 2s", "ask stop default", "stopped n1")
    assert stage.state() is State.STOPPED
    stage.play("ask drain n2", "reconnect n2 phase=stopped")
    assert (outcome := stage.desired("n2").outcome) is not None
    assert outcome.result is Result.STOPPED


def test_nothing_is_done_while_nothing_can_be_recorded() -> None:
    stage = play(*PAIR)
    stage.handle(StoreFailed("the disk is full"))
    batch = asked(stage, StopJob(JOB, "alice", ""))
    [answer] = [effect for effect in batch.effects if isinstance(effect, Answer)]
    assert (answer.result, batch.records, batch.at_once) == (AdminResult.CANNOT_RECORD, (), True)
    assert "the disk is full" in answer.text
    stage.handle(StoreRecovered())
    assert stage.state() is State.RUNNING
    assert ask(stage, StopJob(JOB, "alice", "")).result is AdminResult.DONE


def test_a_job_is_not_forgotten_while_its_nodes_may_be_back_with_their_workers() -> None:
    stage = play(*PAIR, "drop n1 n2", "advance 10s")
    assert stage.run.roll.all_silent
    assert ask(stage, ForgetJob(JOB, "alice", "")).result is AdminResult.REFUSED
    assert ask(stage, StopJob(JOB, "alice", "")).result is AdminResult.DONE
    assert ask(stage, ForgetJob(JOB, "alice", "")).result is AdminResult.DONE


def test_a_job_that_is_forgotten_leaves_nothing_behind() -> None:
    stage = play(*DESERTED)
    assert (stage.state(), stage.run.members) == (State.FORMING, {})
    assert ask(stage, ForgetJob(JOB, "alice", "")).result is AdminResult.DONE
    assert (stage.coordinator.jobs, stage.coordinator.registry.runs) == ({}, {})
    assert stage.coordinator.next_deadline() is None
    stage.play("die 100s")
    assert stage.coordinator.jobs == {}


def test_a_node_that_comes_back_to_a_forgotten_run_does_not_begin_the_job_anew() -> None:
    stage = play(*DESERTED, "ask forget default")
    for lines in ((), ("die 100s",)):
        stage.play(*lines)
        [refused] = stage.play("reconnect n1 phase=running")
        assert "-> n1: refused for good (forgotten): " in refused
        assert refused.endswith("is over, and was forgotten by alice")
        assert stage.coordinator.jobs == {}
    stage.play("join n2 min=2 max=2 incarnation=2")
    assert list(stage.coordinator.jobs) == [JOB], "a nodeclient that is started again begins anew"


def test_workers_that_an_operators_stop_reaches_late_get_their_time_as_well() -> None:
    stage = play(*PAIR, "drop n2", "advance 2s", "stopped n1", "ask stop default")
    assert stage.state() is State.STOPPED
    stage.play("reconnect n2")  # it was lost, though it lives
    assert (stage.desired("n2").goal, stage.desired("n2").planned) == (Goal.EXIT, True)


def test_what_a_drain_says_is_so_also_where_the_host_is_drained_already() -> None:
    stage = play(*PAIR, "ask drain host-n1")
    assert ask(stage, DrainNode("n1", "alice", "")).text.startswith("node n1 will leave job default")
    undrained = ask(stage, UndrainNode("n1", "alice", ""))
    assert undrained.text == "n1 is no longer drained under this name, but still kept out: host-n1 drained by alice"


@pytest.mark.parametrize("names", [("n1", "n2"), ("host-n2", "n2", "n1")])
def test_a_dry_run_of_several_drains_says_what_they_then_do(names: tuple[str, ...]) -> None:
    stage = play(*PAIR)
    dry = [
        ask(stage, DrainNode(name, "alice", "", dry_run=True, after=names[:number])).text
        for number, name in enumerate(names)
    ]
    done = [ask(stage, DrainNode(name, "alice", "")).text for name in names]
    assert dry == [f"dry run: {text}" for text in done]
    assert done[-1].endswith("no node is left then, so the job ends")


def test_a_name_that_no_node_has_is_taken_for_a_slip() -> None:
    stage = play(*PAIR)
    answer = ask(stage, DrainNode("host-n11", "alice", ""))
    how = "To keep out one that is to come later, drain it ahead of time"
    assert answer.result is AdminResult.UNKNOWN_NODE
    assert answer.text == f"no job has a node or a host 'host-n11'; did you mean host-n1? {how}"
    assert ask(stage, DrainNode("elsewhere", "alice", "")).text == f"no job has a node or a host 'elsewhere'. {how}"
    assert stage.coordinator.cluster.durable.drained == {}


def test_the_name_of_a_node_that_has_left_is_no_slip() -> None:
    stage = play(*PAIR, "ask drain n2", "stopped n1 n2", "ask undrain n2")
    answer = ask(stage, DrainNode("n2", "alice", ""))
    assert answer.text == "n2 is in no job, and no job lets it in until it is undrained"


def test_one_name_too_many_is_not_drained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "DRAINED_MAX", 2)
    stage = play(*PAIR)
    for name in ("x", "y"):
        assert ask(stage, DrainNode(name, "alice", "", ahead=True)).result is AdminResult.DONE
    answer = ask(stage, DrainNode("n1", "alice", ""))
    assert (answer.result, answer.text.partition(":")[0]) == (AdminResult.REFUSED, "2 names are drained, the limit")
    assert "n1" not in stage.coordinator.cluster.durable.drained
    assert stage.state() is State.RUNNING


def test_the_host_of_a_name_is_judged_and_not_that_of_a_namesake() -> None:
    stage = play("join n1 host=b min=1 max=1", "join b job=other host=a", "join n1 job=third host=c")
    assert ask(stage, QuarantineNode("b", "alice", "")).result is AdminResult.DONE
    assert stage.coordinator.cluster.durable.hosts.keys() == {"b"}
    answer = ask(stage, QuarantineNode("n1", "alice", ""))
    text = "nodes n1 of several jobs are on different hosts: name one of b, c"
    assert answer == Answer(-1, AdminResult.REFUSED, text)
    stage.play("ask stop default", "stopped n1")
    assert ask(stage, PardonNode("b", "alice", "")).result is AdminResult.DONE
    assert not stage.coordinator.cluster.durable.hosts, "its charges stay on record when it is in no job any more"
