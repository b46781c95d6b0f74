"""A coordinator that starts again on what an earlier one has recorded."""

from __future__ import annotations

from typing import Any

import pytest

from coordinatord.core.machine import Coordinator
from coordinatord.core.rounds.effects import Answer, Batch, Send
from coordinatord.core.rounds.events import AdminRequested, Connected, Disconnected, Reported, Tick
from coordinatord.core.rounds.policy import Policy
from coordinatord.core.rounds.queries.reasons import Reasons
from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.state.run import Run
from coordinatord.core.rounds.transitions.apply import HistoryError
from coordinatord.core.rounds.values.admin_requests import StopJob
from coordinatord.core.rounds.values.records import (
    NodeJoined,
    NodeLeftBehind,
    NodeLost,
    NodesSilent,
    Record,
    RoundEnded,
    RunEnded,
    RunOpened,
)
from coordinatord.protocol.messages import Desired, Goal, Phase
from tests.support.builders import a_coordinator, a_failure, a_join, a_spec, an_observed

PAIR = a_spec(2, 2, max_restarts=2)

AWAY_S = 100.0
"""How long nobody coordinates, in these tests."""


class Life:
    """A coordinator whose records outlive it."""

    def __init__(self, past: list[tuple[float, Record]] | None = None, now: float = 0.0, **policy: Any) -> None:
        self.past = past or []
        self.now = now
        self.coordinator = a_coordinator(**policy)
        self.coordinator.restore(self.past, now)
        self.sent: dict[int, Desired] = {}

    def next_life(self, **policy: Any) -> Life:
        """Return the coordinator that is started after this one was killed."""
        return Life(list(self.past), self.now + AWAY_S, **policy)

    @property
    def run(self) -> Run:
        """Return the run of the only job."""
        return self.coordinator.jobs["default"]

    def connect(self, number: int, incarnation: int = 1, spec: Any = PAIR, **observed: Any) -> Batch:
        """Connect node n`number`, in a session of the same number."""
        join = a_join(f"n{number}", spec=spec, incarnation=incarnation, observed=an_observed(**observed))
        return self._take(Connected(number, join, f"10.0.0.{number}", "10.0.0.254"))

    def report(self, number: int, **observed: Any) -> Batch:
        """Have a node report something."""
        return self._take(Reported(number, an_observed(**observed)))

    def drop(self, number: int) -> Batch:
        """Close a node's connection."""
        return self._take(Disconnected(number))

    def stop(self) -> Batch:
        """Have an operator stop the job."""
        return self._take(AdminRequested(-1, StopJob("default", "alice", "")))

    def tick_until(self, end: float) -> list[Record]:
        """Let time pass; return the records."""
        records: list[Record] = []
        while (due := self.coordinator.next_deadline()) is not None and due <= end:
            self.now = due
            records += self._take(Tick()).records
        self.now = end
        return records

    def _take(self, event: Any) -> Batch:
        batch = self.coordinator.handle(event, self.now)
        self.past += [(self.now, record) for record in batch.records]
        self.sent |= {effect.session: effect.message for effect in batch.effects if isinstance(effect, Send)}
        return batch


def a_running_pair() -> Life:
    """Return a life in which n1 and n2 run their first round."""
    life = Life()
    for number in (1, 2):
        life.connect(number)
    for number in (1, 2):
        life.report(number, run="e-1", round=1, phase=Phase.RUNNING)
    assert life.run.durable.state is State.RUNNING
    return life


HERE: dict[str, Any] = {"run": "e-1", "round": 1, "phase": Phase.RUNNING}


def test_nobody_is_lost_before_a_full_grace_has_passed_and_then_in_the_ordinary_way() -> None:
    life = a_running_pair().next_life()
    grace = life.coordinator.policy.restart_grace_s
    started = life.now
    life.connect(1, **HERE)
    for second in range(1, int(grace)):
        life.now = started + second
        assert life.tick_until(life.now) == []
        assert life.report(1, **HERE, beat=True).records == ()
    life.now = started + grace
    lost = [record for record in life.tick_until(life.now) if isinstance(record, NodeLost)]
    assert [record.node for record in lost] == ["n2"]
    assert life.sent[1].goal is Goal.STOP


def test_a_run_of_which_nobody_comes_back_stands_until_its_nodes_have_given_up_and_is_then_over() -> None:
    life = a_running_pair().next_life()
    policy = life.coordinator.policy
    offer = next(iter(life.run.members.values())).offer
    end = life.now + policy.restart_grace_s + policy.outage_grace_s + offer.stop_timeout_s + offer.join_timeout_s
    assert [type(record) for record in life.tick_until(end - 0.1)] == [NodesSilent]
    assert [type(record) for record in life.tick_until(end + 0.1)] == [RunEnded]


def test_a_run_of_which_nobody_comes_back_is_said_to_be_unheard_since_the_start_and_to_end_then() -> None:
    life = a_running_pair().next_life()
    life.tick_until(life.now + 90.0)
    assert Reasons(life.run).situation(life.now) == (
        "not heard since this coordinator was started 90 s ago: they may have ended meanwhile; given up in 4 min 55 s"
    )
    answer = life.stop().effects[-1]
    assert isinstance(answer, Answer)
    assert answer.text == "job default is over: no node of it is heard, and one that comes back ends its workers"


@pytest.mark.parametrize("others_live", [False, True])
def test_the_coordinators_network_is_only_suspected_while_no_node_of_any_job_is_heard(others_live: bool) -> None:
    life = a_running_pair()
    if others_live:
        life._take(Connected(9, a_join("n9", job="other"), "10.0.0.9", "10.0.0.254"))
    for number in (1, 2):
        life.drop(number)
    life.tick_until(life.now + 2.0)
    why = "they may have ended, or their own network is cut, since nodes of other jobs are heard"
    why = why if others_live else "the coordinator's own network may be cut"
    assert Reasons(life.run).situation(life.now) == f"every node is silent: {why}; given up in 6 min 9 s"


@pytest.mark.parametrize("culprit_comes_back", [True, False])
def test_a_failure_that_stopped_the_round_is_charged_by_the_next_life(culprit_comes_back: bool) -> None:
    first = a_running_pair()
    first.report(1, run="e-1", round=1, phase=Phase.STOPPING, failure=a_failure(exit_code=3))
    assert first.run.durable.state is State.STOPPING
    second = first.next_life()
    if culprit_comes_back:
        second.connect(1, run="e-1", round=1, phase=Phase.FAILED, failure=a_failure(exit_code=3, age_s=AWAY_S))
    second.connect(2, run="e-1", round=1, phase=Phase.STOPPED)
    for _ in range(20):
        second.now += 1.0
        second.tick_until(second.now)
        second.report(2, run="e-1", round=1, phase=Phase.STOPPED, beat=True)
    [ended] = [record for _, record in second.past if isinstance(record, RoundEnded)]
    assert (ended.charged, ended.restarts_used) == (True, 1)
    assert "exit code 3" in ended.reason


def test_the_end_of_a_run_without_a_round_is_no_older_than_what_its_nodes_know() -> None:
    first = Life()
    first.connect(1, run="lost", round=7)
    first.stop()
    second = first.next_life()
    second.connect(1, run="e-1", round=7)
    assert first.sent[1].round == second.sent[1].round == 7, "a node ignores a message of an earlier round"


def test_a_node_that_was_let_go_receives_that_from_the_next_life() -> None:
    first = Life()
    first.connect(1, leaving=False)
    first.report(1, leaving=True)
    second = first.next_life()
    second.connect(1, leaving=True)
    assert second.sent[1].goal is Goal.EXIT


def test_a_nodeclient_that_was_restarted_meanwhile_is_another() -> None:
    life = a_running_pair().next_life()
    life.connect(1, **HERE)
    records = life.connect(2, incarnation=2).records
    assert [type(record) for record in records[:2]] == [NodeLost, NodeJoined]
    assert life.sent[1].goal is Goal.STOP


def test_survivors_that_come_back_to_a_forming_round_do_not_wait_for_a_settle_window() -> None:
    spec = a_spec(1, 3, max_restarts=2)
    first = Life(settle_s=2.0)
    for number in (1, 2):
        first.connect(number, spec=spec)
    first.tick_until(2.0)
    for number in (1, 2):
        first.report(number, **HERE)
    first.report(1, run="e-1", round=1, phase=Phase.FAILED, failure=a_failure())
    first.report(2, run="e-1", round=1, phase=Phase.STOPPED)
    last = max(index for index, (_, record) in enumerate(first.past) if isinstance(record, RoundEnded))
    first.past = first.past[: last + 1]  # killed before the next round was recorded
    second = first.next_life(settle_s=2.0)
    assert second.run.durable.state is State.FORMING
    second.connect(1, spec=spec, run="e-1", round=1, phase=Phase.FAILED)
    assert second.run.durable.state is State.FORMING, "the other may come back yet"
    second.connect(2, spec=spec, run="e-1", round=1, phase=Phase.STOPPED)
    assert (second.run.durable.state, second.run.durable.round) == (State.STARTING, 2)


def test_a_stall_right_after_the_start_condemns_nobody_and_forgives_no_more_than_itself() -> None:
    life = a_running_pair().next_life()
    grace = life.coordinator.policy.restart_grace_s
    life.now += grace + 3.0
    assert life.coordinator.handle(Tick(), life.now).records == ()
    life.connect(1, **HERE)
    records: list[Record] = []
    for _ in range(int(grace) + 4):
        records += life.tick_until(life.now + 1.0)
        life.report(1, **HERE, beat=True)
    assert [record.node for record in records if isinstance(record, NodeLost)] == ["n2"]


def test_a_round_that_was_being_stopped_has_its_whole_time_after_a_start() -> None:
    first = a_running_pair()
    first.report(1, run="e-1", round=1, phase=Phase.STOPPING, failure=a_failure())
    overdue_in = first.run.evidence.stop_overdue_at - first.now
    later = first.now + overdue_in - 1.0  # the disk failed until then, so that nodes heard of the stop no earlier
    second = Life([*first.past, (later, RunOpened("another", "e-9", "opened by node x", "x", PAIR))], later + AWAY_S)
    assert second.run.evidence.stop_overdue_at - second.now == overdue_in


def test_after_a_start_nobody_is_left_behind_before_it_could_be_back() -> None:
    first = a_running_pair()
    first.report(1, run="e-1", round=1, phase=Phase.STOPPING, failure=a_failure())
    first.now = first.run.evidence.stop_overdue_at - 1.0
    first.past.append((first.now, RunOpened("another", "e-9", "opened by node x", "x", PAIR)))
    second = Life(list(first.past), first.now + 1.5)
    early = second.tick_until(second.now + second.coordinator.policy.restart_grace_s - 0.1)
    assert not any(isinstance(record, NodeLost | NodeLeftBehind) for record in early)
    second.connect(1, run="e-1", round=1, phase=Phase.FAILED, failure=a_failure(age_s=60.0))
    records = second.connect(2, run="e-1", round=1, phase=Phase.STOPPED).records
    assert [record.charged for record in records if isinstance(record, RoundEnded)] == [True]


def test_a_run_that_was_empty_once_is_over_when_its_last_node_leaves() -> None:
    life = Life()
    life.connect(1, spec=a_spec(1, 1))
    life.report(1, **HERE)
    life.drop(1)
    life.connect(1, incarnation=2, spec=a_spec(1, 1))
    life.report(1, run="e-1", round=2, phase=Phase.RUNNING)
    life.report(1, run="e-1", round=2, phase=Phase.RUNNING, leaving=True)
    life.report(1, run="e-1", round=2, phase=Phase.STOPPED, leaving=True)
    assert life.run.durable.state is State.LEFT


def test_a_run_that_lost_all_its_nodes_waits_for_them_anew() -> None:
    first = a_running_pair()
    first.drop(2)
    first.tick_until(1.0)
    first.report(1, run="e-1", round=1, phase=Phase.STOPPED)
    first.drop(1)
    first.tick_until(3.0)
    assert not first.run.members
    second = first.next_life()
    gone_s = second.coordinator.policy.outage_grace_s + second.run.durable.stop_timeout_s
    assert second.tick_until(second.now + gone_s - 1.0) == []
    assert [type(record) for record in second.tick_until(second.now + 2.0)] == [RunEnded]


def test_a_node_that_left_and_came_again_is_one_member_in_any_life() -> None:
    first = Life()
    first.connect(2)
    first.connect(1)
    for number in (1, 2):
        first.report(number, run="e-1", round=1, phase=Phase.RUNNING)
    first.connect(3)
    first.report(3, leaving=True)
    first.drop(3)
    first.connect(3, incarnation=2)
    second = first.next_life()
    for life in (first, second):
        assert (life.run.roll.workers, life.run.roll.unreleased, sorted(life.run.members)) == (3, 3, ["n1", "n2", "n3"])


def test_a_younger_nodeclient_in_the_place_of_one_that_was_let_go_is_no_loss() -> None:
    life = Life()
    life.connect(1)
    life.connect(2)
    life.connect(3)
    life.report(3, leaving=True)
    assert [type(record) for record in life.connect(3, incarnation=2).records] == [NodeJoined]


def test_records_that_do_not_fit_each_other_are_refused() -> None:
    lost = NodeLost("default", "e-1", "silent", "n9", 1, 0.0, leaving=False)
    past = [*a_running_pair().past, (0.0, lost)]
    with pytest.raises(HistoryError, match="run e-1 of job default knows no node 'n9'"):
        Coordinator(Policy(), "f").restore(past, 1.0)
    with pytest.raises(HistoryError, match="is not its current run"):
        Coordinator(Policy(), "f").restore([(0.0, lost)], 1.0)


def test_what_failed_in_a_planned_stop_is_free_even_if_the_clock_was_set_back_while_nobody_coordinated() -> None:
    life = a_running_pair()
    life.report(1, **HERE, leaving=True)
    assert life.run.durable.state is State.STOPPING
    # All of it was only a moment ago, by the clock of the next life.
    second = Life([(life.now + AWAY_S, record) for _, record in life.past], life.now + AWAY_S)
    stopped: dict[str, Any] = {"run": "e-1", "round": 1, "phase": Phase.STOPPED}
    second.connect(1, **stopped, leaving=True)
    batch = second.connect(2, **stopped, failure=a_failure(age_s=AWAY_S))
    [ended] = [record for record in batch.records if isinstance(record, RoundEnded)]
    assert not ended.charged


def test_whether_a_process_ran_when_the_job_succeeded_is_known_after_a_start_as_well() -> None:
    first = a_running_pair()
    for number in (1, 2):
        first.report(number, run="e-1", round=1, phase=Phase.SUCCEEDED)
    for age_s, goal in ((AWAY_S + 1.0, Goal.EXIT), (AWAY_S - 1.0, Goal.WAIT)):
        second = first.next_life()
        join = a_join("n3", spec=PAIR, age_s=age_s)
        second._take(Connected(3, join, "10.0.0.3", "10.0.0.254"))
        assert second.sent[3].goal is goal


def test_an_end_that_lies_ahead_of_a_clock_that_was_set_back_may_be_long_ago() -> None:
    life = a_running_pair()
    for number in (1, 2):
        life.report(number, run="e-1", round=1, phase=Phase.SUCCEEDED)
    second = Life([(life.now + AWAY_S, record) for _, record in life.past], life.now + AWAY_S)
    second._take(Connected(3, a_join("n3", spec=PAIR, age_s=30.0), "10.0.0.3", "10.0.0.254"))
    assert second.sent[3].goal is Goal.WAIT, "it had waited for this coordinator, perhaps"
