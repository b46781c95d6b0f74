"""Hosts that end rounds: which are charged, which are quarantined, and who is let in again."""

from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from coordinatord.core.judging.judgements import charged_host, is_same_charge, weight
from coordinatord.core.machine import Coordinator
from coordinatord.core.rounds.effects import Answer
from coordinatord.core.rounds.events import AdminRequested, Connected, Event, Reported
from coordinatord.core.rounds.policy import Policy
from coordinatord.core.rounds.queries.next_round import can_do_without
from coordinatord.core.rounds.queries.reasons import Reasons
from coordinatord.core.rounds.state.cluster import HOSTS_MAX
from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.values.admin_requests import DrainNode, PardonNode, QuarantineNode
from coordinatord.core.rounds.values.judged_host import Charge, Fault, Judge, JudgedHost
from coordinatord.core.rounds.values.records import HostJudged
from coordinatord.core.shown.job_view import job_view
from coordinatord.protocol.messages import CheckResult, Failure, HangKind, HealthCheck, Phase
from tests.support.builders import a_failure, a_join, a_report, a_spec, an_observed, an_offer
from tests.support.host_job import HostJob

HOUR = 3_600.0
GOOD = HealthCheck(1, CheckResult.GOOD)


class Job(HostJob):
    """A job of several hosts with a node each, of which a test makes some fail."""

    def __init__(self, nodes: int = 8, nodes_min: int = 2, **policy: Any) -> None:
        self.checks: dict[str, HealthCheck] = {}
        """The last health check of each node."""
        policy = {"retry_pause_s": 0.0, "heartbeat_s": 1_000.0} | policy
        super().__init__(nodes, a_spec(nodes_min, nodes, max_restarts=1_000), replace(Policy(), **policy))
        self.wait(3.0)

    def join(self, name: str, **observed: Any) -> None:
        """Connect a node, with its last health check."""
        super().join(name, **{"check": self.checks.get(name)} | observed)

    def report(self, name: str, phase: Phase, failure: Failure | None = None, **observed: Any) -> None:
        """Have a node report on the present round, with its last health check."""
        super().report(name, phase, failure, **{"check": self.checks.get(name)} | observed)

    def check(self, name: str, result: CheckResult, text: str = "GPU 3") -> None:
        """Have a node report the end of a health check."""
        before, observed = self.checks.get(name), self.run.members[name].observed
        check = self.checks[name] = HealthCheck(1 if before is None else before.number + 1, result, text)
        for _ in range(2):  # a heartbeat follows
            self.handle(Reported(self.sessions[name], replace(observed, beat=True, check=check)))

    def fail(self, name: str, after_s: float = HOUR, **failed: Any) -> None:
        """Have a worker of this node fail as in any job; the next round forms."""
        super().fail(name, after_s, **failed)
        self.wait(3.0)

    def next_life(self, first: Event | None = None) -> None:
        """Start another coordinator with the records of this one; all nodes come back, after the `first` event."""
        self.coordinator = Coordinator(self.policy, "f")
        self.coordinator.restore(self.past, self.now)
        if first is not None:
            self.handle(first)
        for name in self.names:
            self.join(name)


def device(number: int = 79) -> dict[str, Any]:
    """Return a failure of a GPU."""
    return {"error": "torch.AcceleratorError: CUDA error: unspecified launch failure", "xids": (number,)}


def crash(number: int = 0) -> dict[str, Any]:
    """Return a failure without a known cause, of one of several kinds."""
    return {"exit_code": -11, "message": "abcdefghij"[number]}


def test_if_no_host_can_be_added_those_on_record_are_still_charged() -> None:
    job = Job()
    job.fail("n3", **crash())
    hosts = job.coordinator.cluster.durable.hosts
    others = {f"other{number}": JudgedHost(quarantined="broken", at=job.now) for number in range(HOSTS_MAX - 1)}
    hosts.update(others)
    job.fail("n4", **crash(1))
    job.fail("n3", **crash())
    assert "host-n4" not in hosts
    assert job.quarantined == {"host-n3", *others}


def test_charges_that_weigh_almost_nothing_are_forgotten() -> None:
    job = Job()
    job.fail("n3", **crash())
    job.fail("n4", **device())
    job.fail("n5", after_s=100 * 24 * HOUR, **crash(1))
    assert list(job.coordinator.cluster.durable.hosts) == ["host-n4", "host-n5"]


@pytest.mark.parametrize(
    "failed",
    [
        {"error": "ValueError: bad data"},
        {"error": "torch.OutOfMemoryError: CUDA out of memory"},
        {"exit_code": -9},
        {"exit_code": -6, "error": "[Rank 3] Watchdog caught collective operation timeout: Work(OpType=ALLREDUCE)"},
    ],
    ids=["script", "memory", "signal", "a worker that waited for others"],
)
def test_what_may_be_no_fault_of_a_host_charges_none(failed: dict[str, Any]) -> None:
    job = Job()
    for _ in range(4):
        job.fail("n3", **failed)
    assert job.coordinator.cluster.durable.hosts == {}


@pytest.mark.parametrize(
    ("nodes_min", "frame", "is_charged"),
    [
        (8, "loop (train.py:9)", False),
        (8, "wait (torch/distributed/distributed_c10d.py:3252)", True),
        (7, "loop (train.py:9)", True),
    ],
    ids=["where all hosts are needed", "in native code of torch", "where a round can do without the host"],
)
def test_a_hang_in_the_script_is_charged_where_another_host_can_show_whose_it_is(
    nodes_min: int, frame: str, is_charged: bool
) -> None:
    failure = a_failure(rank=3, exit_code=124, hang=HangKind.STUCK, last_lines=(frame, "<module> (train.py:70)"))
    report = a_report(node="n3", host="host-n3", failure=failure)
    assert (charged_host(Job(nodes_min=nodes_min).run, report) is not None) == is_charged


def test_a_round_does_without_a_host_by_nodes_that_stay() -> None:
    job = Job(nodes_min=7)
    assert can_do_without(job.run, "host-n3")
    job.report("n5", Phase.RUNNING, leaving=True)
    assert not can_do_without(job.run, "host-n3")


@pytest.mark.parametrize("xids", [(), (31,)], ids=["", "with an Xid of the program"])
def test_a_script_that_fails_on_each_host_it_visits_quarantines_none(xids: tuple[int, ...]) -> None:
    job = Job(nodes=64)
    for number in range(6):
        job.fail(f"n{number}", **crash(), xids=xids)
        job.fail(f"n{number}", **crash(), xids=xids)
    assert job.quarantined == set()


@pytest.mark.parametrize("own", [device(), crash(1)], ids=["broken GPU", "other crashes"])
def test_a_quarantine_stays_that_does_not_rest_on_the_dropped_charges(own: dict[str, Any]) -> None:
    job = Job()
    job.fail("n3", **crash())
    job.fail("n3", **own)
    job.fail("n3", **own)
    job.wait(30 * HOUR)
    job.fail("n5", **crash())
    assert job.quarantined == {"host-n3"}


def test_bad_hosts_that_crash_alike_are_quarantined_as_long_as_they_are_few() -> None:
    job = Job(nodes=64)
    for name in ("n3", "n4", "n5", "n3", "n4", "n5"):
        job.fail(name, **crash())
    assert job.quarantined == {"host-n3", "host-n4", "host-n5"}
    job.fail("n6", **crash())
    assert job.quarantined == set()


def test_a_quarantine_that_other_charges_would_have_brought_about_stays() -> None:
    job = Job()
    job.fail("n3", **crash())
    job.fail("n3", **device())
    job.fail("n4", **crash())
    assert job.quarantined == {"host-n3"}


def test_an_error_that_came_on_other_hosts_long_ago_counts() -> None:
    job = Job(nodes=4)
    job.fail("n3", **crash())
    job.fail("n2", after_s=5 * 24 * HOUR, **crash())
    job.fail("n2", **crash())
    assert job.quarantined == {"host-n2"}


def test_at_most_a_quarter_of_the_hosts_is_quarantined() -> None:
    job = Job(nodes=8)
    for number in range(4):
        job.fail(f"n{number}", **device())
    assert job.quarantined == {"host-n0", "host-n1"}


def test_no_host_is_charged_with_a_crash_that_came_on_several_in_one_round() -> None:
    job = Job()
    for _ in range(3):
        job.work()
        job.now += HOUR
        job.report("n3", Phase.STOPPING, a_failure(exit_code=-11))
        for name in job.names:
            job.report(name, Phase.FAILED, a_failure(exit_code=-11, age_s=0.1 if name == "n3" else 0.0))
        job.wait(3.0)
    assert not job.coordinator.cluster.durable.hosts


def quarantining(*hosts: str, nodes: int, nodes_min: int) -> Job:
    """Return a job to which no node has come yet, and for which an operator has quarantined these hosts."""
    job = Job(nodes, nodes_min)
    job.past = [(0.0, HostJudged("", "", "slow", host, quarantined="slow", by=Judge.OPERATOR)) for host in hosts]
    job.names = []
    job.next_life()
    return job


def test_a_quarantined_node_that_is_the_first_to_come_waits_for_others() -> None:
    job = quarantining("host-n0", nodes=2, nodes_min=2)
    for name in ("n0", "n1", "n2"):
        job.join(name)
        assert name != "n0" or Reasons(job.run).waiting_for == "waiting for nodes: 1 of 2 joined (node n0)"
        job.wait(1.0)
    assert job.inside == ["n1", "n2"]


def test_a_node_that_prepares_takes_the_place_of_a_quarantined_one_that_was_needed_before_it_came() -> None:
    job = Job(nodes=2, nodes_min=2, retry_pause_s=10.0)
    job.fail("n1", **crash())
    job.fail("n1", after_s=1.0, **crash())
    assert job.inside == []
    job.join("n2", phase=Phase.PREPARING)
    job.wait(12.0)
    assert job.inside == []
    job.report("n2", Phase.IDLE)
    assert job.inside == ["n0", "n2"]


def test_a_quarantined_node_that_prepares_is_not_awaited() -> None:
    job = quarantining("host-n0", "host-n1", nodes=2, nodes_min=1)
    job.join("n0")
    job.join("n1", phase=Phase.PREPARING)
    job.wait(3.0)
    assert job.inside == ["n0"]


def test_a_quarantined_node_waits_a_moment_before_it_is_a_round_by_itself() -> None:
    job = quarantining("host-n0", nodes=2, nodes_min=1)
    job.join("n0")
    job.wait(1.9)
    assert job.inside == []
    job.wait(0.1)
    assert job.inside == ["n0"]


def short_job() -> Job:
    """Return a job of three to four nodes without a round: two are quarantined, of which one is needed."""
    job = quarantining("host-n0", "host-n1", nodes=4, nodes_min=3)
    for name in ("n0", "n1", "n2"):
        job.join(name)
    job.join("n3", phase=Phase.PREPARING)
    job.wait(12.0)
    assert job.inside == []
    return job


def test_no_more_quarantined_nodes_are_taken_than_are_needed_beside_one_that_prepares() -> None:
    job = short_job()
    job.report("n3", Phase.IDLE)
    job.wait(3.0)
    assert job.inside == ["n0", "n2", "n3"]


def test_a_quarantined_node_that_is_no_longer_needed_does_not_make_a_round_full() -> None:
    job = short_job()
    job.join("n4")
    job.report("n3", Phase.IDLE)
    assert job.inside == []
    job.join("n5")
    assert job.inside == ["n2", "n3", "n4", "n5"]


def test_several_hosts_that_are_lost_at_once_are_not_charged() -> None:
    job = Job()
    job.work()
    job.leave("n2")
    job.leave("n3")
    job.wait(3.0)
    for each in job.inside:
        job.report(each, Phase.STOPPED)
    job.wait(3.0)
    assert job.coordinator.cluster.durable.hosts == {}


def judgements(job: Job) -> Iterator[HostJudged]:
    """Iterate over what was recorded about hosts."""
    return (record for _, record in job.past if isinstance(record, HostJudged))


def test_a_quarantine_outlives_the_coordinator_and_ends_with_a_pardon() -> None:
    job = Job()
    job.fail("n3", **device())
    job.next_life()
    assert job.quarantined == {"host-n3"}
    assert job.run.members["n3"].state == "quarantined"
    job.handle(AdminRequested(-1, PardonNode("n3", "alice", "GPU replaced")))
    assert job.coordinator.cluster.durable.hosts == {}
    *_, last = judgements(job)
    assert last.reason == "host host-n3 is pardoned by alice: GPU replaced"
    job.wait(3.0)
    assert job.run.durable.state is State.STOPPING, "the node is let in again"


def test_a_quarantine_by_an_operator_ends_only_with_a_pardon() -> None:
    job = Job()
    job.handle(AdminRequested(-1, QuarantineNode("n3", "alice", "slow")))
    job.report("n3", Phase.RUNNING)
    [n3] = [node for node in job_view(job.run, job.now, None).nodes if node.node == "n3"]
    assert n3.reason == "its workers are running; its host is quarantined by alice: slow"
    job.fail("n3", **crash())
    job.fail("n4", **crash())
    assert job.quarantined == {"host-n3"}
    *_, last = (record for record in judgements(job) if record.node == "host-n3")
    assert last.by is Judge.OPERATOR


def test_a_failed_health_check_quarantines_a_host_at_once_and_one_that_passes_lets_it_in() -> None:
    job = Job()
    job.check("n3", CheckResult.BAD)
    assert job.quarantined == {"host-n3"}
    assert job.run.durable.state is not State.STOPPING, "the round goes on"
    job.fail("n4")
    assert "n3" not in job.inside
    job.next_life()
    job.check("n3", CheckResult.UNKNOWN)
    assert job.quarantined == {"host-n3"}
    job.check("n3", CheckResult.WARNING, "hot")
    assert [record.reason for record in judgements(job)] == [
        "host host-n3 is quarantined: its health check failed: GPU 3",
        "host host-n3 is let in again: its health check warns: hot",
    ]
    assert job.coordinator.cluster.durable.hosts == {}


@pytest.mark.parametrize("result", [CheckResult.GOOD, CheckResult.WARNING, CheckResult.UNKNOWN])
def test_a_check_that_has_not_failed_changes_nothing(result: CheckResult) -> None:
    job = Job()
    job.check("n3", result)
    assert not [*judgements(job)]


def test_a_check_that_passes_ends_no_quarantine_for_charges_or_by_an_operator() -> None:
    job = Job()
    job.handle(AdminRequested(-1, QuarantineNode("n3", "alice", "slow")))
    job.check("n4", CheckResult.BAD)
    job.fail("n4", **device())
    for name in ("n3", "n4"):
        job.check(name, CheckResult.BAD)
        job.check(name, CheckResult.GOOD)
    assert job.quarantined == {"host-n3", "host-n4"}


def test_a_check_of_another_node_does_not_let_a_host_in_whose_check_fails() -> None:
    job = Job()
    job.check("n3", CheckResult.BAD)
    stranger = a_join("m3", job="other", offer=an_offer("n3"), observed=an_observed(check=GOOD))
    job.handle(Connected(100, stranger, "10.0.0.3", "10.0.1.1"))
    assert job.quarantined == {"host-n3"}
    job.next_life(first=Connected(101, stranger, "10.0.0.3", "10.0.1.1"))
    assert job.quarantined == {"host-n3"}
    job.leave("n3")
    job.handle(Reported(101, replace(stranger.observed, check=replace(GOOD, number=2))))
    assert job.quarantined == set(), "the node whose check failed may be gone for good"


def test_failed_checks_quarantine_at_most_a_quarter_of_the_hosts_and_each_is_judged_anew() -> None:
    job = Job(nodes=8)
    for number in range(4):
        job.check(f"n{number}", CheckResult.BAD)
    assert job.quarantined == {"host-n0", "host-n1"}
    job.check("n0", CheckResult.GOOD)
    job.check("n3", CheckResult.BAD)
    assert job.quarantined == {"host-n1", "host-n3"}


def test_a_pardon_counts_until_the_next_check() -> None:
    job = Job()
    job.check("n3", CheckResult.BAD)
    job.handle(AdminRequested(-1, PardonNode("n3", "alice", "it is the check")))
    job.report("n3", Phase.RUNNING)
    assert job.quarantined == set()
    job.check("n3", CheckResult.BAD)
    assert job.quarantined == {"host-n3"}


def test_a_node_of_a_quarantined_host_that_leaves_is_shown_as_leaving() -> None:
    job = Job()
    job.handle(AdminRequested(-1, QuarantineNode("n3", "alice", "slow")))
    sent = an_observed(run=job.run.id, round=1, phase=Phase.RUNNING, leaving=True)
    job.handle(Reported(4, sent))
    shown = {node.node: node.reason for node in job_view(job.run, job.now, None).nodes}
    assert shown["n3"] == "leaving"


def test_a_drain_counts_on_the_quarantined_nodes_that_stay() -> None:
    job = Job(nodes=2, nodes_min=1)
    job.fail("n1", **device())
    [answer] = job.coordinator.handle(AdminRequested(-1, DrainNode("n0", "alice", "", dry_run=True)), job.now).effects
    assert isinstance(answer, Answer)
    assert answer.text.endswith("round 2 is being stopped, its workers save their state")


def test_nothing_is_quarantined_where_that_is_switched_off() -> None:
    job = Job(quarantine_at=0.0)
    job.check("n3", CheckResult.BAD)
    for _ in range(3):
        job.fail("n3", **device())
    assert job.quarantined == set()


def test_an_error_of_another_job_does_not_make_a_charge_that_of_many_hosts() -> None:
    charge = Charge(Fault.CRASH, "killed by SIGABRT", 0.0, "mnist")
    assert is_same_charge(charge, charge)
    assert not is_same_charge(charge, replace(charge, job="other"))


def test_a_charge_weighs_half_after_each_half_life() -> None:
    faults = ((Fault.HANG, 0.0), (Fault.HANG, HOUR), (Fault.LOST, 2 * HOUR))
    charges = [Charge(fault, "", age_s, "mnist") for fault, age_s in faults]
    assert weight(charges, HOUR, 1.5) == pytest.approx(1 + 0.5 + 0.25)
