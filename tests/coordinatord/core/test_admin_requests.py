"""Operators' requests across lives of the coordinator, and beside failures; the transcripts have the rest."""

import pytest
from msgspec.structs import replace

from coordinatord.core.rounds.effects import Answer, Batch, Refuse
from coordinatord.core.rounds.events import AdminRequested, StoreFailed, StoreRecovered
from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.transitions import admin
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
from coordinatord.protocol.messages import Goal, Phase, RefusalCode, Result
from coordinatord.runtime.object_graph import dump
from tests.coordinatord.core.test_restore import HERE, Life, a_running_pair

JOB = "default"


def ask(life: Life, request: Request) -> Answer:
    """Ask, and return the answer."""
    [answer] = [effect for effect in _asked(life, request).effects if isinstance(effect, Answer)]
    return answer


def _asked(life: Life, request: Request) -> Batch:
    return life._take(AdminRequested(-1, request))


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
@pytest.mark.parametrize(
    "prepare",
    [[], [QuarantineNode("n1", "alice", "")], [DrainNode("host-n1", "alice", "")], [StopJob(JOB, "alice", "")]],
)
@pytest.mark.parametrize("deserted", [False, True])
def test_a_dry_run_says_what_the_request_then_does_and_changes_nothing(
    request_: Request, prepare: list[Request], *, deserted: bool
) -> None:
    life = a_deserted_job() if deserted else a_running_pair()
    for earlier in prepare:
        ask(life, earlier)
    before = dump(life.coordinator.cluster)
    batch = _asked(life, replace(request_, dry_run=True))
    assert (batch.records, len(batch.effects)) == ((), 1)
    assert dump(life.coordinator.cluster) == before
    [dry], done = batch.effects, ask(life, request_)
    assert isinstance(dry, Answer)
    if done.result is AdminResult.DONE:
        assert (dry.result, dry.text) == (AdminResult.NOTHING, f"dry run: {done.text}")
    else:
        assert (dry.result, dry.text) == (done.result, done.text)


def test_a_node_that_is_drained_leaves_though_the_coordinator_starts_again_meanwhile() -> None:
    first = a_running_pair()
    assert ask(first, DrainNode("n2", "alice", "")).result is AdminResult.DONE
    assert first.run.durable.state is State.STOPPING
    second = first.next_life()
    assert second.coordinator.cluster.durable.drained == {"n2": "n2 drained by alice"}
    for number in (1, 2):
        second.connect(number, **HERE)
        assert second.sent[number].goal is Goal.STOP
    for number in (1, 2):
        second.report(number, run="e-1", round=1, phase=Phase.STOPPED)
    assert (outcome := second.sent[2].outcome) is not None
    assert (outcome.result, outcome.summary) == (Result.LEFT, "left the job: n2 drained by alice")
    assert second.sent[1].goal is Goal.WAIT


def test_a_drained_node_is_kept_out_by_the_next_coordinator_as_well() -> None:
    first = a_running_pair()
    ask(first, DrainNode("host-n3", "alice", "broken", ahead=True))
    second = first.next_life()
    [refuse] = second.connect(3).effects
    assert isinstance(refuse, Refuse)
    assert (refuse.message.code, refuse.message.retry) == (RefusalCode.DRAINED, True)
    assert refuse.message.message == "host-n3 drained by alice: broken; to let it in: nodeclient undrain host-n3"
    ask(second, UndrainNode("host-n3", "alice", ""))
    third = second.next_life()
    third.connect(3)
    assert "n3" in third.run.members


def test_a_node_that_comes_back_to_a_stopped_run_hears_how_it_ended() -> None:
    life = a_running_pair()
    life.drop(2)
    life.tick_until(life.now + 2.0)  # lost
    ask(life, StopJob(JOB, "alice", ""))
    life.report(1, run="e-1", round=1, phase=Phase.STOPPED)
    assert life.run.durable.state is State.STOPPED
    ask(life, DrainNode("n2", "alice", ""))
    life.connect(2, run="e-1", round=1, phase=Phase.STOPPED)
    assert (outcome := life.sent[2].outcome) is not None
    assert outcome.result is Result.STOPPED


def test_nothing_is_done_while_nothing_can_be_recorded() -> None:
    life = a_running_pair()
    life._take(StoreFailed("the disk is full"))
    batch = _asked(life, StopJob(JOB, "alice", ""))
    [answer] = [effect for effect in batch.effects if isinstance(effect, Answer)]
    assert (answer.result, batch.records, batch.at_once) == (AdminResult.DEGRADED, (), True)
    assert "the disk is full" in answer.text
    life._take(StoreRecovered())
    assert life.run.durable.state is State.RUNNING
    assert ask(life, StopJob(JOB, "alice", "")).result is AdminResult.DONE


def a_deserted_job() -> Life:
    """Return a life with a run that no node is left of, and which is not over yet."""
    life = a_running_pair()
    life.drop(2)
    life.tick_until(life.now + 2.0)  # lost
    life.report(1, run="e-1", round=1, phase=Phase.STOPPED)
    life.drop(1)
    life.tick_until(life.now + 2.0)
    assert (life.run.durable.state, life.run.members) == (State.FORMING, {})
    return life


def test_a_job_is_not_forgotten_while_its_nodes_may_be_back_with_their_workers() -> None:
    life = a_running_pair()
    for number in (1, 2):
        life.drop(number)
    life.tick_until(life.now + 10.0)
    assert life.run.roll.all_silent
    assert ask(life, ForgetJob(JOB, "alice", "")).result is AdminResult.REFUSED
    assert ask(life, StopJob(JOB, "alice", "")).result is AdminResult.DONE
    assert ask(life, ForgetJob(JOB, "alice", "")).result is AdminResult.DONE


def test_a_job_that_is_forgotten_leaves_nothing_behind() -> None:
    life = a_deserted_job()
    assert ask(life, ForgetJob(JOB, "alice", "")).result is AdminResult.DONE
    assert (life.coordinator.jobs, life.coordinator.registry.live) == ({}, {})
    assert life.coordinator.next_deadline() is None
    assert life.next_life().coordinator.jobs == {}


def test_a_node_that_comes_back_to_a_forgotten_run_does_not_begin_the_job_anew() -> None:
    first = a_deserted_job()
    ask(first, ForgetJob(JOB, "alice", ""))
    for life in (first, first.next_life()):
        [refuse] = life.connect(1, **HERE).effects
        assert isinstance(refuse, Refuse)
        assert (refuse.message.code, refuse.message.retry) == (RefusalCode.FORGOTTEN, False)
        assert refuse.message.message.endswith("is over, and was forgotten by alice")
        assert life.coordinator.jobs == {}
    first.connect(2, incarnation=2)
    assert list(first.coordinator.jobs) == [JOB], "a nodeclient that is started again begins anew"


def test_workers_that_an_operators_stop_reaches_late_get_their_time_as_well() -> None:
    life = a_running_pair()
    life.drop(2)
    life.tick_until(life.now + 2.0)  # lost, though it lives
    life.report(1, run="e-1", round=1, phase=Phase.STOPPED)
    ask(life, StopJob(JOB, "alice", ""))
    assert life.run.durable.state is State.STOPPED
    life.connect(2, **HERE)
    assert (life.sent[2].goal, life.sent[2].planned) == (Goal.EXIT, True)


def test_what_a_drain_says_is_so_also_where_the_host_is_drained_already() -> None:
    life = a_running_pair()
    ask(life, DrainNode("host-n1", "alice", ""))
    assert ask(life, DrainNode("n1", "alice", "")).text.startswith("node n1 will leave job default")
    undrained = ask(life, UndrainNode("n1", "alice", ""))
    assert undrained.text == "n1 is no longer drained under this name, but still kept out: host-n1 drained by alice"


@pytest.mark.parametrize("names", [("n1", "n2"), ("host-n2", "n2", "n1")])
def test_a_dry_run_of_several_drains_says_what_they_then_do(names: tuple[str, ...]) -> None:
    life = a_running_pair()
    dry = [
        ask(life, DrainNode(name, "alice", "", dry_run=True, after=names[:number])).text
        for number, name in enumerate(names)
    ]
    done = [ask(life, DrainNode(name, "alice", "")).text for name in names]
    assert dry == [f"dry run: {text}" for text in done]
    assert done[-1].endswith("no node is left then, so the job ends")


def test_a_name_that_no_node_has_is_taken_for_a_slip() -> None:
    life = a_running_pair()
    answer = ask(life, DrainNode("host-n11", "alice", ""))
    how = "To keep out one that is to come later, drain it ahead of time"
    assert answer.result is AdminResult.UNKNOWN_NODE
    assert answer.text == f"no job has a node or a host 'host-n11'; did you mean host-n1? {how}"
    assert ask(life, DrainNode("elsewhere", "alice", "")).text == f"no job has a node or a host 'elsewhere'. {how}"
    assert life.coordinator.cluster.durable.drained == {}


def test_the_name_of_a_node_that_has_left_is_no_slip() -> None:
    life = a_running_pair()
    ask(life, DrainNode("n2", "alice", ""))
    for number in (1, 2):
        life.report(number, run="e-1", round=1, phase=Phase.STOPPED)
    ask(life, UndrainNode("n2", "alice", ""))
    assert (
        ask(life, DrainNode("n2", "alice", "")).text == "n2 is in no job, and no job lets it in until it is undrained"
    )


def test_one_name_too_many_is_not_drained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "DRAINED_MAX", 2)
    life = a_running_pair()
    for name in ("x", "y"):
        assert ask(life, DrainNode(name, "alice", "", ahead=True)).result is AdminResult.DONE
    answer = ask(life, DrainNode("n1", "alice", ""))
    assert (answer.result, answer.text.partition(":")[0]) == (AdminResult.REFUSED, "2 names are drained, the limit")
    assert "n1" not in life.coordinator.cluster.durable.drained
    assert life.run.durable.state is State.RUNNING
