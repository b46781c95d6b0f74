"""A bug names its table, its state and its stimulus, in whichever machine it is."""

import traceback
from copy import copy

import pytest
from msgspec.structs import replace

from coordinatord.core.machine import WINGS
from coordinatord.core.rounds.events import Event
from coordinatord.core.rounds.events import Tick as CoordinatorTick
from coordinatord.core.rounds.policy import Policy
from coordinatord.core.rounds.queries.desired_state import goal_of
from coordinatord.core.rounds.state.cluster import Cluster
from coordinatord.core.rounds.state.durable import DurableCluster
from coordinatord.core.rounds.state.member import MemberState
from coordinatord.core.rounds.transitions import apply, table
from coordinatord.core.rounds.transitions.decision import Decision
from coordinatord.core.rounds.values.records import JobStopAsked, Record
from coordinatord.protocol.errors import STATE_MAX, InternalError
from coordinatord.protocol.messages import Goal, Phase
from nodeclient.core import agent
from nodeclient.core import table as node_table
from nodeclient.core.agent import Agent
from nodeclient.core.events import Tick as AgentTick
from nodeclient.core.table import Stimulus
from tests.support.bench import Bench
from tests.support.builders import a_coordinator, a_member, a_run


def test_a_stimulus_that_the_agent_s_table_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = copy(node_table.TABLE)  # a row that is put back would be its last one, which a printed table would show
    del rows[Phase.IDLE, Stimulus.RUN_NEXT]
    monkeypatch.setattr(agent, "TABLE", rows)
    bench = Bench()
    bench.open()
    with pytest.raises(InternalError) as caught:
        bench.receive(Goal.RUN, run="e-1", round=1)
    assert caught.value.__notes__ == [f"in phases of a node, state idle, stimulus {Stimulus.RUN_NEXT}"]


def test_a_node_that_can_be_sent_nothing_has_no_goal() -> None:
    silent = a_member()
    silent.state = MemberState.SILENT
    with pytest.raises(InternalError) as caught:
        goal_of(a_run(), silent)
    assert caught.value.__notes__ == ["in goals of a node, state forming, stimulus silent"]


def test_a_bug_in_what_a_record_changes_is_not_taken_for_a_node_that_is_not_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kind: type[Record] = JobStopAsked
    monkeypatch.setitem(apply._CHANGES, kind, lambda run, *_: run.members["n9"])
    cluster = DurableCluster()
    cluster.jobs["mnist"] = a_run().durable
    with pytest.raises(KeyError):
        apply.apply(cluster, JobStopAsked("mnist", "e-1", "asked"), 0.0)


def test_an_event_that_no_machine_has_a_handler_for(monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator, bench = a_coordinator(), Bench()
    kind: type[Event] = CoordinatorTick
    monkeypatch.delitem(coordinator._handlers, kind)
    monkeypatch.delitem(Agent._HANDLERS, AgentTick)
    with pytest.raises(InternalError) as caught:
        coordinator.handle(CoordinatorTick(), 0.0)
    assert caught.value.__notes__ == [f"in events of a coordinator, state None, stimulus {CoordinatorTick}"]
    with pytest.raises(InternalError) as caught:
        bench.submit(AgentTick())
    assert caught.value.__notes__[0] == f"in events of a node, state None, stimulus {AgentTick}"


def test_a_table_that_goes_round_in_circles(monkeypatch: pytest.MonkeyPatch) -> None:
    row = replace(table.ROWS[0], action=lambda *_: None, reason="again")
    monkeypatch.setattr(table, "next_row", lambda _, now: (row, now))
    with pytest.raises(table.TransitionLoopError, match="still moving after 16 steps") as caught:
        table.take_due_rows(a_run(), Decision(Cluster(Policy(), WINGS), 0.0))
    assert caught.value.__notes__[0].startswith("in transitions, state forming, stimulus ")


def test_the_report_of_a_bug_names_all_three_and_bounds_them() -> None:
    bug = InternalError("no row", where="goals", state=Phase.IDLE, stimulus=["x" * STATE_MAX])
    *_, text, shown = traceback.format_exception(bug)
    assert text.endswith("InternalError: no row\n")
    assert shown.startswith("in goals, state idle, stimulus ['xxx")
    assert len(shown) < STATE_MAX + 50
