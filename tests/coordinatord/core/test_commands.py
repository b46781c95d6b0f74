"""Nodes of one job that were started with different commands: users are warned, and two scripts are two trainings."""

from typing import Any

import pytest

from coordinatord.core.machine import Coordinator
from coordinatord.core.rounds.effects import Refuse, Send
from coordinatord.core.rounds.events import Connected, Disconnected, Reported
from coordinatord.core.rounds.values.records import NodeJoined
from coordinatord.protocol.messages import Desired, Goal, Outcome, Phase, RefusalCode, Result
from tests.support.builders import a_coordinator, a_join, a_spec, an_observed, an_offer

WARNING = (
    "node n2 was started with another command than node n1, and both are in job default: "
    "if that is not meant, give each training its own --job-id"
)


def connect(
    coordinator: Coordinator, session: int, command: str, now: float = 0.0, **join: Any
) -> tuple[Desired, list[str]]:
    """Connect a node with such a command; return what it is sent, and the reasons for which nodes joined."""
    join = {"spec": a_spec(3, 3), "command": command, **join}
    event = Connected(session, a_join(f"n{session % 10}", **join), f"10.0.0.{session}", "10.0.0.254")
    batch = coordinator.handle(event, now)
    [sent] = [effect.message for effect in batch.effects if isinstance(effect, Send) and effect.session == session]
    return sent, [record.reason for record in batch.records if isinstance(record, NodeJoined)]


def test_a_node_with_another_command_than_the_first_is_let_in_with_a_warning_that_names_both() -> None:
    coordinator = a_coordinator()
    connect(coordinator, 1, "script-1a")
    sent, [reason] = connect(coordinator, 2, "script-1b")
    assert (sent.goal, sent.remark) == (Goal.WAIT, WARNING)
    assert reason == "host host-n2 at 10.0.0.2 with 1 worker; its command differs from that of node n1"


@pytest.mark.parametrize(("first", "second"), [("script-1a", "script-1a"), ("", "script-1a"), ("script-1a", "")])
def test_nothing_is_remarked_on_where_no_difference_is_known(first: str, second: str) -> None:
    coordinator = a_coordinator()
    connect(coordinator, 1, first)
    sent, [reason] = connect(coordinator, 2, second)
    assert (sent.remark, "command" in reason) == ("", False)


def test_the_warning_is_sent_until_the_workers_run_and_again_after_a_reconnect_before_that() -> None:
    coordinator = a_coordinator(reconnect_grace_s=5.0)
    connect(coordinator, 1, "script-1a", spec=a_spec(2, 2))
    sent, _ = connect(coordinator, 2, "script-1b", spec=a_spec(2, 2))
    assert (sent.goal, sent.remark) == (Goal.RUN, WARNING)
    coordinator.handle(Disconnected(2), 1.0)
    sent, _ = connect(coordinator, 12, "script-1b", spec=a_spec(2, 2))
    assert (sent.goal, sent.remark) == (Goal.RUN, WARNING)
    for session in (1, 12):
        running = an_observed(run="e-1", round=1, phase=Phase.RUNNING, beat=True)
        effects = coordinator.handle(Reported(session, running), 2.0).effects
    assert [effect.message.remark for effect in effects if isinstance(effect, Send)] == [""]


def test_a_job_begun_anew_by_another_command_has_both_remarks() -> None:
    coordinator = a_coordinator()
    spec = a_spec(1, 1)
    connect(coordinator, 1, "script-1a", spec=spec)
    coordinator.handle(Reported(1, an_observed(run="e-1", round=1, phase=Phase.SUCCEEDED)), 1.0)
    again, _ = connect(coordinator, 3, "script-1c", 5.0, spec=spec, age_s=0.0)
    other, _ = connect(coordinator, 4, "script-1d", 5.0, spec=spec)
    assert again.remark.endswith("this begins run e-2")
    assert other.remark.startswith(f"{again.remark}; node n4 was started with another command than node n3")


def come(coordinator: Coordinator, command: str, role: str = "default") -> Refuse | None:
    """Bring a second node; return its refusal, if it is refused."""
    join = a_join("n2", command=command, spec=a_spec(1, 1), offer=an_offer("n2", role=role))
    [effect] = coordinator.handle(Connected(2, join, "10.0.0.2", "10.0.0.254"), 1.0).effects
    return effect if isinstance(effect, Refuse) else None


def test_a_node_with_another_script_is_another_training_and_is_refused() -> None:
    coordinator = a_coordinator()
    connect(coordinator, 1, "script-1a", spec=a_spec(1, 1))
    assert (refused := come(coordinator, "script-2a")) is not None
    assert (refused.message.code, refused.message.retry) == (RefusalCode.SPEC_DIFFERS, False)
    assert refused.message.message == (
        "another training runs under job id default, and node n1 of it starts another script: give this one a --job-id"
        " of its own, or end that one first: nodeclient stop default"
    )
    assert come(coordinator, "script-2a", role="server") is None, "nodes of another role may run something else"


def test_a_node_that_is_gone_keeps_out_no_other_script() -> None:
    coordinator = a_coordinator()
    connect(coordinator, 1, "script-1a", spec=a_spec(1, 1))
    coordinator.handle(Disconnected(1), 0.5)
    assert come(coordinator, "script-2a") is None


@pytest.mark.parametrize(
    ("command", "result", "code", "text"),
    [
        ("script-1a", Result.SUCCEEDED, 0, ""),
        ("script-1b", Result.FAILED, 75, ", and its command differs from that of node n1"),
    ],
)
def test_a_spare_says_that_it_ran_nothing_and_succeeds_only_if_its_command_was_the_jobs(
    command: str, result: Result, code: int, text: str
) -> None:
    coordinator = a_coordinator()
    connect(coordinator, 1, "script-1a", spec=a_spec(1, 1))
    connect(coordinator, 2, command, 0.5, spec=a_spec(1, 1))
    succeeded = an_observed(run="e-1", round=1, phase=Phase.SUCCEEDED)
    effects = coordinator.handle(Reported(1, succeeded), 1.0).effects
    outcomes = {effect.session: effect.message.outcome for effect in effects if isinstance(effect, Send)}
    assert outcomes[1] == Outcome(Result.SUCCEEDED, 0, "all workers succeeded")
    assert outcomes[2] == Outcome(result, code, f"all workers succeeded; this node was a spare and ran no worker{text}")
