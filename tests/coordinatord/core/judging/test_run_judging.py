"""A preflight as the coordinator plays it: which nodes it tests, what ends it, and whose hosts it quarantines."""

from typing import Any

import pytest
from msgspec.structs import replace

from coordinatord.core.judging.run_judging import DELAY_S, GRACE_S, IDLE_FOR_S, RETEST_AFTER_S, RunJudging
from coordinatord.core.rounds.effects import Answer
from coordinatord.core.rounds.events import AdminRequested, Compared, Connected, Reported
from coordinatord.core.rounds.policy import Policy, PreflightWhen
from coordinatord.core.rounds.queries.reasons import Reasons
from coordinatord.core.rounds.values.admin_requests import AdminResult, DrainNode, PreflightJob, StopJob
from coordinatord.core.rounds.values.records import HostJudged
from coordinatord.core.rounds.values.round_history import RoundHistory
from coordinatord.core.shown.job_view import whole_view
from coordinatord.core.watching.lateness_watch import AGREEING_MIN
from coordinatord.protocol.fields import COUNTER_MAX
from coordinatord.protocol.http.api import PreflightStatus
from coordinatord.protocol.messages import Goal, Launcher, Phase
from coordinatord.protocol.pair_messages import PairOrder, PairResult
from tests.support.builders import a_join, a_spec, an_observed, an_offer
from tests.support.host_job import HostJob
from tests.support.looks import arrived
from tests.support.script import play

GFLOPS, MB_S = 50.0, 1000.0


class Job(HostJob):
    """A job whose round is at work, on one node unless its size says otherwise; it and its spares have a host each."""

    def __init__(
        self, spares: int = 4, launcher: Launcher = Launcher.NODECLIENT, *, size: int = 1, **policy: Any
    ) -> None:
        policy = {"heartbeat_s": 1_000.0, "retry_pause_s": 0.0} | policy
        spec = replace(a_spec(1, size, max_restarts=10), launcher=launcher, max_futile_rounds=0)
        super().__init__(spares + size, spec, replace(Policy(), **policy))
        self.wait(3.0)
        self.work()
        self.spares = [name for name in self.names if name not in self.inside]

    def ask(self, *, dry_run: bool = False) -> tuple[AdminResult, str]:
        """Have an operator ask for a preflight; return the answer."""
        request = PreflightJob("default", "alice", "new switch", dry_run)
        batch = self.coordinator.handle(AdminRequested(-1, request), self.now)
        [answer] = [effect for effect in batch.effects if isinstance(effect, Answer)]
        return answer.result, answer.text

    def orders(self) -> dict[str, PairOrder]:
        """Return the test that each node was told to run."""
        sent = {name: member.session.sent for name, member in self.run.members.items()}
        return {name: message.pair for name, message in sent.items() if message is not None and message.pair}

    def end_test(self, name: str, **measured: Any) -> None:
        """Have a node report the result of the test that it was told to run."""
        order = self.orders()[name]
        result = replace(PairResult(order.number, GFLOPS, MB_S), **measured)
        said = replace(self.run.members[name].observed, pair=result)
        self.handle(Reported(self.sessions[name], said))

    def end_turn(self, *slow: str) -> None:
        """Have all nodes report their results, of which some are those of slow hosts."""
        for name in self.orders():
            self.end_test(name, **({"gflops": GFLOPS / 5} if name in slow else {}))

    def end_search(self, *slow: str) -> None:
        """Have all turns end."""
        while self.orders():
            self.end_turn(*slow)

    @property
    def shown(self) -> PreflightStatus:
        """The preflight as it is shown."""
        shown = whole_view(self.run, RoundHistory(), self.now, None).preflight
        assert shown is not None
        return shown

    @property
    def verdicts(self) -> dict[str, str]:
        """The verdict on each node."""
        return {node.node: node.verdict for node in self.shown.nodes}


def reasons(job: Job) -> list[str]:
    """Return what was recorded about hosts."""
    return [record.reason for _, record in job.past if isinstance(record, HostJudged)]


def test_a_slow_node_is_quarantined_with_its_figures_and_let_in_by_the_next_preflight_that_finds_it_good() -> None:
    job = Job(spares=8)
    job.ask()
    job.end_search("n3")
    assert job.quarantined == {"host-n3"}
    assert job.run.members["n3"].state == "quarantined"
    assert reasons(job) == [
        "host host-n3 is quarantined: a preflight has found that its node n3 computes 10 GFLOP/s, and 50 are usual"
    ]
    job.ask()
    assert "n3" in job.orders()
    job.end_turn()
    assert job.quarantined == set()
    assert reasons(job)[1:] == ["host host-n3 is let in again: a preflight has found it good"]


def test_a_silent_node_of_sixteen_is_named_in_two_turns_of_ten_seconds_and_its_host_is_not_quarantined() -> None:
    job = Job(spares=16)
    silent, began = "n3", job.now
    job.ask()
    for _ in range(2):
        order = job.orders()[silent]
        for name in job.orders():
            if name != silent:
                job.end_test(name)
        job.wait(job.policy.pair_timeout_s + GRACE_S - 0.1)
        assert job.orders()[silent] == order, "it is waited for"
        job.wait(0.1)
    assert job.now - began == pytest.approx(20.0)
    assert job.orders() == {}
    assert job.verdicts == dict.fromkeys(job.spares, "good") | {silent: "no answer"}
    assert job.quarantined == set(), "a host that only gave no answer is not quarantined"


def test_a_node_that_goes_is_not_waited_for() -> None:
    job = Job()
    job.ask()
    gone, *others = job.orders()
    for name in others:
        job.end_test(name)
    before = {order.number for order in job.orders().values()}
    job.leave(gone)
    job.wait(6.0 * job.policy.heartbeat_s)
    assert gone not in job.orders()
    assert {order.number for order in job.orders().values()}.isdisjoint(before)


def test_a_younger_node_of_the_same_name_is_not_taken_for_the_one_under_test() -> None:
    job = Job(spares=8)
    job.ask()
    name = "n3"
    job.end_test(name, gflops=GFLOPS / 5)
    job.incarnations[name] += 1
    job.join(name)
    for other in job.spares:
        if other != name:
            job.end_test(other)
    assert name not in job.orders()
    job.end_search(name)
    assert job.quarantined == set()


def test_a_result_of_an_earlier_test_does_not_count() -> None:
    job = Job()
    job.ask()
    name, *_ = job.orders()
    number = job.orders()[name].number
    job.end_test(name, number=number - 1, gflops=1.0)
    job.end_turn()
    assert set(job.verdicts.values()) == {"good"}
    job.ask()
    assert min(order.number for order in job.orders().values()) > number


def test_a_result_of_a_preflight_that_was_stopped_does_not_count_in_the_next_one() -> None:
    job = Job()
    job.ask()
    before = {order.number for order in job.orders().values()}
    [working] = job.inside
    job.handle(AdminRequested(-1, DrainNode(working, "alice", "")))
    job.report(working, Phase.STOPPED)
    job.wait(3.0)
    assert job.shown.stopped == "round 2 of job default was formed on its hosts"
    assert job.ask()[0] is AdminResult.DONE
    assert {order.number for order in job.orders().values()}.isdisjoint(before)


def test_a_node_with_the_highest_number_of_all_does_not_spoil_the_orders_of_others() -> None:
    job = Job()
    name = job.spares[0]
    said = replace(job.run.members[name].observed, pair=PairResult(COUNTER_MAX, GFLOPS, MB_S))
    job.handle(Reported(job.sessions[name], said))
    job.ask()
    assert all(0 < order.number <= COUNTER_MAX for order in job.orders().values())
    job.end_turn()
    assert set(job.verdicts.values()) == {"good"}


def test_a_round_that_takes_a_node_ends_the_preflight() -> None:
    job = Job()
    job.ask()
    [working] = job.inside
    job.leave(working)
    job.wait(6.0 * job.policy.heartbeat_s)
    job.wait(3.0)
    [taken] = job.inside
    assert taken in job.spares
    assert job.orders() == {}
    assert job.shown.is_over
    assert job.shown.stopped == "round 2 of job default was formed on its hosts"
    sent = job.run.members[taken].session.sent
    assert sent is not None
    assert sent.goal is Goal.RUN


def test_the_end_of_the_job_ends_the_preflight() -> None:
    job = Job()
    job.ask()
    job.handle(AdminRequested(-1, StopJob("default", "alice", "")))
    for name in job.inside:
        job.report(name, Phase.STOPPED)
    assert job.orders() == {}
    assert job.shown.stopped == "the job is over"


def test_a_dry_run_tests_nothing() -> None:
    job = Job()
    assert job.ask(dry_run=True) == (AdminResult.NOTHING, "dry run: 4 nodes of job default are tested in pairs")
    assert job.orders() == {}


@pytest.mark.parametrize(
    ("spares", "launcher", "why"),
    [
        (1, Launcher.NODECLIENT, "it needs two nodes without workers, such as spares"),
        (4, Launcher.TORCHRUN, "torchrun starts the workers of its nodes, and tests none"),
    ],
)
def test_a_preflight_that_could_test_nothing_is_refused(spares: int, launcher: Launcher, why: str) -> None:
    job = Job(spares, launcher)
    assert job.ask() == (AdminResult.REFUSED, f"job default cannot have a preflight now: {why}")


def test_a_job_that_has_ended_is_not_tested() -> None:
    stage = play(*(f"join {node} min=1 max=1" for node in ("n1", "n2", "n3")), "running n1", "ask stop default")
    stage.play("stopped n1")
    assert stage.play("ask preflight default")[0].endswith("refused: job default has ended: stopped by alice")


def test_nodes_of_one_host_are_not_judged_by_themselves() -> None:
    job = Job(spares=4)
    for member in job.run.members.values():
        member.offer = replace(member.offer, host="box", host_id="box")
    job.ask()
    job.end_search("n3")
    assert job.verdicts["n3"] == "slow"
    assert job.quarantined == set()


@pytest.mark.parametrize(("measured", "is_judged"), [({"gflops": 1.0}, False), ({"wrong": True}, True)])
def test_a_host_on_which_workers_run_is_not_quarantined_for_a_slow_test(
    measured: dict[str, Any], *, is_judged: bool
) -> None:
    job = Job(spares=8)
    [working] = job.inside
    members, host = job.run.members, job.run.members[working].offer.host
    members["n3"].offer = replace(members["n3"].offer, host=host)
    job.ask()
    while job.orders():
        for name in job.orders():
            job.end_test(name, **(measured if name == "n3" else {}))
    assert job.verdicts["n3"] != "good"
    assert job.quarantined == ({host} if is_judged else set())


def test_by_default_no_node_is_tested_unasked() -> None:
    job = Job()
    job.wait(2 * RETEST_AFTER_S)
    assert job.orders() == {}


def test_idle_nodes_are_tested_once_after_a_while_and_each_new_one_later() -> None:
    job = Job(preflight=PreflightWhen.IDLE)
    job.wait(IDLE_FOR_S - 4.0)
    assert job.orders() == {}
    job.wait(4.0)
    assert sorted(job.orders()) == job.spares
    job.end_turn()
    assert job.shown.reason == "nodes wait on hosts without workers"
    job.wait(2 * RETEST_AFTER_S)
    assert job.orders() == {}
    job.join("n9")
    job.wait(IDLE_FOR_S)
    assert "n9" in job.orders()


def test_a_mended_host_is_let_in_by_the_next_test_of_idle_nodes() -> None:
    job = Job(spares=8, preflight=PreflightWhen.IDLE)
    job.wait(IDLE_FOR_S)
    job.end_search("n3")
    assert job.quarantined == {"host-n3"}
    job.wait(RETEST_AFTER_S)
    assert job.orders() == {}
    job.wait(job.policy.pair_timeout_s + GRACE_S)
    job.end_turn()
    assert job.quarantined == set()


def test_idle_nodes_are_not_tested_beside_workers_and_not_on_one_host() -> None:
    job = Job(spares=3, preflight=PreflightWhen.IDLE)
    beside, *others = job.spares
    [working] = job.inside
    members = job.run.members
    members[beside].offer = replace(members[beside].offer, host=members[working].offer.host)
    job.wait(IDLE_FOR_S)
    assert sorted(job.orders()) == others
    job.end_turn()
    for name in job.spares:
        members[name].offer = replace(members[name].offer, host="box")
    job.wait(2 * RETEST_AFTER_S)
    assert job.orders() == {}


def begin_other(job: Job, host: str, session: int = 999) -> None:
    """Have another job train on a host, on a node of its own."""
    offer = replace(an_offer("other"), host=host, host_id=host)
    join = a_join("other", job=f"other-{host}", spec=a_spec(1, 1), offer=offer)
    job.handle(Connected(session, join, "10.0.0.99", "10.0.1.1"))
    job.wait(job.policy.settle_s)


def test_idle_nodes_are_not_tested_beside_workers_of_another_job_until_these_are_gone() -> None:
    job = Job(spares=3, preflight=PreflightWhen.IDLE)
    beside, *others = job.spares
    begin_other(job, job.run.members[beside].offer.host)
    other = job.coordinator.jobs["other-host-n1"]
    job.wait(IDLE_FOR_S)
    assert sorted(job.orders()) == others
    job.end_turn()
    job.wait(2 * RETEST_AFTER_S)
    assert job.orders() == {}, "nobody is tested again for the sake of the one beside workers"
    job.handle(AdminRequested(-1, StopJob(other.job, "alice", "")))
    job.handle(Reported(999, an_observed(run=other.id, round=1, phase=Phase.STOPPED)))
    assert isinstance(job.run.judging, RunJudging)
    assert job.now < job.run.judging.idle_at <= job.now + IDLE_FOR_S
    job.wait(job.run.judging.idle_at - job.now)
    assert beside in job.orders()


def test_a_round_of_another_job_ends_the_tests_on_its_hosts() -> None:
    job = Job()
    job.ask()
    begin_other(job, "host-of-its-own")
    assert job.orders()
    begin_other(job, "host-n1", session=998)
    assert job.orders() == {}
    assert job.shown.stopped == "round 1 of job other-host-n1 was formed on its hosts"


NETWORK = {"error": "RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.2]:34567"}


def fail(job: Job, **failed: Any) -> None:
    """Have the round fail, once its workers run."""
    job.fail(job.inside[0], 1.0, **failed)


def fail_twice(job: Job) -> None:
    """Have two rounds in a row fail by the network."""
    for _ in range(2):
        fail(job, **NETWORK)
        job.wait(3.0)


def test_a_round_waits_for_a_preflight_only_for_a_while() -> None:
    job = Job(spares=3, preflight=PreflightWhen.SUSPICION)
    fail_twice(job)
    assert job.inside == []
    job.wait(DELAY_S)
    assert job.inside
    assert job.shown.stopped == "round 3 of job default was formed on its hosts"


def test_tests_that_follow_the_pause_after_the_same_error_are_what_the_round_waits_for() -> None:
    job = Job(spares=3, preflight=PreflightWhen.SUSPICION, retry_pause_s=4.0)
    fail_twice(job)
    assert Reasons(job.run).waiting_for.startswith("waiting 4 s before round 3: ")
    job.wait(1.0)
    assert sorted(job.orders()) == job.names
    assert Reasons(job.run).waiting_for.startswith("nodes are tested in pairs before round 3: ")


def test_other_failures_and_planned_stops_between_two_are_no_reason_for_a_preflight() -> None:
    job = Job(spares=3, preflight=PreflightWhen.SUSPICION)
    for failed in (NETWORK, {"error": "ValueError: bad data"}, NETWORK):
        fail(job, **failed)
        job.wait(3.0)
        assert job.orders() == {}
        assert job.inside


def test_a_node_that_is_found_slow_on_suspicion_is_not_in_the_next_round() -> None:
    job = Job(spares=7, preflight=PreflightWhen.SUSPICION)
    fail_twice(job)
    bad = min(job.orders())
    job.end_search(bad)
    assert job.quarantined == {f"host-{bad}"}
    assert job.inside
    assert bad not in job.inside


def find_late(job: Job, late: str, times: int = AGREEING_MIN) -> None:
    """Have comparisons of the round find that a node comes late to collectives."""
    for _ in range(times):
        ranks = job.run.durable.order.values()
        answers = tuple(arrived(own.node, own.first_rank, job.now, 1.0, 0.3 * (own.node == late)) for own in ranks)
        job.handle(Compared(job.run.id, job.run.durable.round, answers))


def test_a_node_that_was_late_is_tested_with_all_others_before_the_next_round() -> None:
    job = Job(spares=6, size=2, preflight=PreflightWhen.SUSPICION)
    late = job.inside[1]
    find_late(job, late)
    assert job.orders() == {}, "no round is ended for it"
    fail(job, error="ValueError: bad data")
    job.wait(3.0)
    assert sorted(job.orders()) == job.names
    assert job.shown.reason == f"in the last round, rank 1 on node {late} is last in 100 % of collectives, by 300 ms"
    job.end_search(late)
    assert job.quarantined == {f"host-{late}"}
    assert len(job.inside) == 2
    assert late not in job.inside


def test_a_late_node_that_was_tested_good_is_not_tested_again_for_a_while() -> None:
    job = Job(spares=2, size=2, preflight=PreflightWhen.SUSPICION)
    for pause_s, is_tested in ((0.0, True), (0.0, False), (2 * RETEST_AFTER_S, True)):
        job.wait(pause_s)
        job.work()
        find_late(job, job.inside[1])
        fail(job, error="ValueError: bad data")
        job.wait(3.0)
        assert bool(job.orders()) is is_tested
        job.end_turn()
        assert job.inside


@pytest.mark.parametrize("times", [AGREEING_MIN - 1, AGREEING_MIN])
def test_a_node_that_was_late_by_chance_or_leaves_is_no_reason_for_a_preflight(times: int) -> None:
    job = Job(spares=2, size=2, preflight=PreflightWhen.SUSPICION)
    late = job.inside[1]
    find_late(job, late, times)
    if times == AGREEING_MIN:
        job.handle(AdminRequested(-1, DrainNode(late, "alice", "")))
    fail(job, error="ValueError: bad data")
    job.wait(3.0)
    assert job.orders() == {}
    assert job.inside
