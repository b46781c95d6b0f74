"""Messages and machines with sensible values, of which a test names only what it is about."""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from coordinatord.core.machine import WINGS, Coordinator
from coordinatord.core.rounds.events import Tick
from coordinatord.core.rounds.policy import Policy
from coordinatord.core.rounds.state.durable import DurableMember, DurableRun
from coordinatord.core.rounds.state.member import Member
from coordinatord.core.rounds.state.run import Run
from coordinatord.core.rounds.values.records import Record
from coordinatord.core.rounds.values.time_ledger import Ledger
from coordinatord.hints.match import cause_of
from coordinatord.protocol.messages import (
    PROTOCOL_VERSION,
    Assignment,
    Desired,
    Failure,
    Follower,
    Goal,
    JobSpec,
    Join,
    NodeOffer,
    Observed,
    Outcome,
    Phase,
    Report,
    Result,
)
from nodeclient.core.events import Diagnosis

OUTAGE_GRACE_S = 30.0
"""The outage grace of nodes here."""

LOST_PEER = "RuntimeError: [/gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.9]:31044"
"""What a worker writes when its collective fails because a peer's process has ended."""

EPOCH = "e"
"""Names this life of the coordinator, so runs are e-1, e-2, ..."""


def a_coordinator(**policy: Any) -> Coordinator:
    """Build a coordinator without jobs."""
    return Coordinator(Policy(**policy), EPOCH)


def let_pass(coordinator: Coordinator, until: float) -> list[Record]:
    """Let time pass as it does for a coordinator that is awake; return what it records."""
    records: list[Record] = []
    while (due := coordinator.next_deadline()) is not None and due <= until:
        records += coordinator.handle(Tick(), due).records
    return records


def a_spec(nodes_min: int = 1, nodes_max: int = 4, max_restarts: int = 3) -> JobSpec:
    """Build the spec of a run."""
    return JobSpec(nodes_min, nodes_max, max_restarts)


def given_spec(nodes_min: int, nodes_max: int, max_restarts: int) -> JobSpec:
    """Build the spec that the flags --nnodes and --max-restarts lead to."""
    return JobSpec(nodes_min, nodes_max, max_restarts, max_futile_rounds=3)


def an_offer(node: str = "n1", **values: Any) -> NodeOffer:
    """Build the offer of a node on a host of its own."""
    plain = NodeOffer(
        host=f"host-{node}",
        host_id=f"boot-{node}",
        workers=1,
        role="default",
        topology="",
        group_rank=None,
        advertise_address=None,
        routable_address=None,
        probe_port=50_001,
        join_timeout_s=60,
        stop_timeout_s=10,
    )
    return replace(plain, **values)


def an_observed(**values: Any) -> Observed:
    """Build the report of a node that has just come and has no workers."""
    plain = Observed(
        run="", round=0, phase=Phase.IDLE, port=40_001, leaving=False, failure=None, heard_s=0.0, beat=False
    )
    return replace(plain, **values)


def a_join(node: str = "n1", **values: Any) -> Join:
    """Build the first message of a node."""
    plain = Join(
        version=PROTOCOL_VERSION,
        job="default",
        node=node,
        incarnation=1,
        spec=a_spec(),
        offer=an_offer(node),
        observed=an_observed(),
    )
    return replace(plain, **values)


def a_failure(**values: Any) -> Failure:
    """Build the failure of a worker of rank 0."""
    plain = Failure(
        rank=0, local_rank=0, exit_code=1, pid=4_711, message="", error="", last_lines=(), followers=(), age_s=0.0
    )
    return replace(plain, **values)


def an_end(options: Mapping[str, str]) -> dict[str, Any]:
    """Read how a worker ended, and the next one of its node: `exit=3`, or `of=peer` and `follower=same` or `other`.

    `final=yes` for an error that no restart mends.
    """
    follower = options.get("follower")
    return {
        "exit_code": int(options.get("exit", 1)),
        "error": LOST_PEER if options.get("of") == "peer" else "",
        "followers": () if follower is None else (Follower(1, 1, follower == "same"),),
        "final": "final" in options,
    }


def a_report(*, age_s: float = 0.0, **values: Any) -> Report:
    """Build the report on a round that one worker failed, by default with the class of its cause."""
    plain = Report(
        round=1,
        nodes=2,
        node="n1",
        host="host-n1",
        failure=a_failure(age_s=age_s),
        consequences=(),
        consequences_count=0,
    )
    report = replace(plain, **values)
    return report if "cause" in values else replace(report, cause=cause_of(report.failure))


def a_diagnosis(**values: Any) -> Diagnosis:
    """Build the diagnosis of a worker that ended without much output."""
    return Diagnosis(**({"pid": 4_711} | values))


def an_assignment(**values: Any) -> Assignment:
    """Build the part of the only node of a round."""
    plain = Assignment(
        group_rank=0,
        group_world_size=1,
        first_rank=0,
        world_size=1,
        first_role_rank=0,
        role_world_size=1,
        master_node="n1",
        master_address="10.0.0.1",
        master_port=40_001,
        master_probe_port=50_001,
        restarts_used=0,
        max_restarts=3,
    )
    return replace(plain, **values)


def a_desired(goal: Goal, **values: Any) -> Desired:
    """Build a desired state, with what belongs to the goal."""
    plain = Desired(
        run="e-1",
        round=1,
        goal=goal,
        reason="as the test wants it",
        wait_s=None,
        heartbeat_s=1.0,
        lease_s=5.0,
        outage_grace_s=OUTAGE_GRACE_S,
        planned=False,
        assignment=an_assignment() if goal is Goal.RUN else None,
        outcome=Outcome(Result.SUCCEEDED, 0, "all workers succeeded") if goal is Goal.EXIT else None,
        report=None,
    )
    return replace(plain, **values)


def a_member(node: str = "n1", *, peer: str = "10.0.0.1", local: str = "10.0.0.9", **offer: Any) -> Member:
    """Build a member as the coordinator knows it."""
    durable = DurableMember(node, 1, an_offer(node, **offer), peer, local, joined_at=0.0)
    member = Member(durable, an_observed())
    member.session.id = 1
    return member


def a_run(spec: JobSpec | None = None) -> Run:
    """Build a run without nodes, as the coordinator knows it."""
    durable = DurableRun("mnist", "e-1", spec or a_spec(), "first", entered_at=0.0, ledger=Ledger(0.0))
    return Run(durable, Policy(), WINGS)
