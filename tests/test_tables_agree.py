"""The two tables agree: whatever the coordinator can want of a node, the node knows what to do about it."""

import inspect
import itertools

import pytest

from coordinatord.core.keeping import table as keeping
from coordinatord.core.rounds.policy import Policy
from coordinatord.core.rounds.queries.desired_state import GOALS
from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.state.member import MemberState
from coordinatord.core.rounds.transitions.actions import advance_keeping
from coordinatord.core.rounds.transitions.table import ROWS
from coordinatord.protocol.messages import Goal, Phase
from nodeclient.core import table as node
from nodeclient.core.connection_state import PROBE_LEASES
from nodeclient.core.table import ALIVE, TABLE, Act, EndStage, Place, Stimulus
from tests.support.builders import a_desired

SENT = sorted(set(GOALS.values()))
"""Every goal that the coordinator can send."""

UNREACHABLE = {MemberState.DISCONNECTED, MemberState.SILENT, MemberState.RELEASED}
"""Member states in which a node cannot receive anything, or receives its own outcome."""

IN_ROUND = {
    MemberState.ASSIGNED,
    MemberState.RUNNING,
    MemberState.STOPPING,
    MemberState.STOPPED,
    MemberState.SUCCEEDED,
    MemberState.SILENT,
}

PLACES = (*(phase for phase in Phase if phase is not Phase.STOPPING), *EndStage)

HERE = ("e-1", 3)
"""The round that the node is in."""

ROUNDS = [HERE, ("e-1", 4), ("e-2", 1)]


def stimulus_of(goal: Goal, round_: tuple[str, int]) -> Stimulus:
    """Classify a goal as the agent does."""
    return node.stimulus_of(a_desired(goal, run=round_[0], round=round_[1]), *HERE)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("round_", ROUNDS, ids=str)
@pytest.mark.parametrize("goal", SENT)
def test_a_node_has_a_row_for_each_goal_in_each_phase(goal: Goal, round_: tuple[str, int], place: Place) -> None:
    assert (place, stimulus_of(goal, round_)) in TABLE


def test_the_coordinator_sends_every_goal_that_the_protocol_has() -> None:
    assert set(SENT) == set(Goal)


def test_each_stimulus_by_which_a_node_knows_a_goal_can_come_from_the_coordinator() -> None:
    assert {stimulus_of(goal, round_) for goal in SENT for round_ in ROUNDS} == set(node.GOALS)


def test_a_node_that_is_prepared_and_has_no_workers_starts_them_only_for_a_round_that_it_is_not_in() -> None:
    probes = {key for key, row in TABLE.items() if row.act is Act.PROBE}
    starts = {key for key, row in TABLE.items() if row.act is Act.START}
    assert starts == {(Phase.STARTING, Stimulus.REACHED)}
    assert probes == {
        (phase, Stimulus.RUN_NEXT) for phase in Phase if not phase.has_workers and phase is not Phase.PREPARING
    }


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("stimulus", [Stimulus.WAIT, Stimulus.STOP, Stimulus.STOP_NEXT, Stimulus.EXIT])
def test_no_goal_but_run_leaves_workers_alone(place: Place, stimulus: Stimulus) -> None:
    row = TABLE[place, stimulus]
    if place in node.WORKING:
        assert (row.act, row.to) == (Act.STOP, EndStage.HALTING)
    elif isinstance(place, EndStage):
        assert row.to is place
    else:
        assert isinstance(row.to, Phase)
        assert not row.to.has_workers


def test_every_phase_leads_on_and_every_phase_can_be_come_to() -> None:
    targets = {row.to for row in TABLE.values()} | {Phase.STOPPED, Phase.SUCCEEDED, Phase.FAILED}  # by `settle`
    assert targets - {None} == set(PLACES)
    assert {place for place, _ in TABLE} == set(PLACES)


def test_the_end_of_workers_goes_through_its_stages_in_their_order_and_ends_whatever_the_workers_do() -> None:
    for (place, _), row in TABLE.items():
        if isinstance(place, EndStage) and isinstance(row.to, EndStage):
            assert [*EndStage].index(row.to) >= [*EndStage].index(place)
    later = {stage: TABLE[stage, Stimulus.STAGE_EXPIRED].to for stage in ALIVE if stage is not EndStage.KILLED}
    assert all(stage is not after for stage, after in later.items())
    assert all(TABLE[stage, Stimulus.DEAD].to is EndStage.SWEEPING for stage in ALIVE)


def test_every_act_and_every_stimulus_of_the_node_is_in_its_table() -> None:
    assert {row.act for row in TABLE.values()} == set(Act)
    assert {stimulus for _, stimulus in TABLE} == set(Stimulus)


def test_every_row_has_a_reason_if_its_action_records_one() -> None:
    for row in ROWS:
        assert bool(row.reason) is ("reason" in inspect.signature(row.action).parameters), row
    assert all(row.reason for row in TABLE.values())


@pytest.mark.parametrize("state", State)
def test_a_state_of_a_run_has_rows_or_is_an_end(state: State) -> None:
    assert any(row.source is state for row in ROWS) != state.ended


@pytest.mark.parametrize("state", State)
def test_a_state_of_a_run_can_be_come_to(state: State) -> None:
    assert state is State.FORMING or any(row.target is state for row in ROWS)


def test_no_two_rows_of_a_run_are_the_same_transition() -> None:
    keys = [(row.source, row.when) for row in ROWS]
    assert len(keys) == len(set(keys))


def test_the_kernel_has_a_row_for_what_nodes_keep_in_each_state_of_that_table() -> None:
    assert {row.source for row in ROWS if row.action is advance_keeping} == keeping.ROWS.keys()


@pytest.mark.parametrize(("state", "member_state"), [*itertools.product(State, MemberState)])
def test_a_node_that_can_be_sent_something_has_a_goal(state: State, member_state: MemberState) -> None:
    if state.ended:
        expected = Goal.EXIT
    elif member_state in UNREACHABLE or (state is State.FORMING and member_state in IN_ROUND):
        expected = None
    elif member_state in {MemberState.PREPARING, MemberState.READY, MemberState.QUARANTINED, MemberState.HANDING_OVER}:
        expected = Goal.WAIT
    elif member_state is MemberState.STALE or state is State.STOPPING:
        expected = Goal.STOP
    else:
        expected = Goal.RUN
    assert GOALS.get((state, member_state)) == expected


def test_a_node_looks_for_the_master_of_a_round_for_longer_than_any_lease_lasts() -> None:
    assert Policy().lease_stretch_max < PROBE_LEASES, "a master that is gone has to be lost, not called unreachable"
