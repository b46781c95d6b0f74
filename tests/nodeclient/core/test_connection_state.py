"""The waits of a node that is not let in, and the changes that a node reports before its next heartbeat."""

from typing import Any

import pytest
from msgspec.structs import replace

from coordinatord.protocol.kept_state import Holding, StateDigest
from coordinatord.protocol.messages import (
    CheckResult,
    Ended,
    HealthCheck,
    Killed,
    Observed,
    Phase,
    RefusalCode,
    Refused,
    Section,
    WorkerStarts,
)
from coordinatord.protocol.news import Mark, marked
from coordinatord.protocol.pair_messages import PairResult
from nodeclient.core.connection_state import ConnectionState
from nodeclient.core.effects import Notice, Waiting
from nodeclient.core.events import TurnedAway
from tests.support.bench import SETTINGS, Bench
from tests.support.builders import a_failure, an_observed

OTHERS: dict[str, Any] = {
    "run": "e-2",
    "round": 2,
    "phase": Phase.STOPPED,
    "port": 40_002,
    "leaving": True,
    "failure": a_failure(),
    "heard_s": 1.0,
    "beat": True,
    "steps": (1,),
    "step_age_s": 1.0,
    "stepped_twice": True,
    "idle_s": 1.0,
    "ended": (Ended(0, 1.0),),
    "killed": Killed((0,), 1, 30.0),
    "cut_off": True,
    "kept": Holding(()),
    "section": Section("evaluation", 60.0, 0.0, 0),
    "begun": WorkerStarts(0, 0, 1),
    "pids": (4_711,),
    "held_up": "memory of GPU 0 is in use",
    "check": HealthCheck(1, CheckResult.UNKNOWN),
    "pair": PairResult(1, 50.0, 1_000.0),
    "digests": (StateDigest(1, 0, 7),),
}
"""Another value of each field of a report."""

AT_ONCE = marked(Observed, Mark.AT_ONCE) | {"beat"}
"""The fields that are sent when they have changed."""


@pytest.mark.parametrize("name", Observed.__struct_fields__)
def test_a_change_is_sent_before_the_next_heartbeat_only_if_a_decision_waits_for_it(name: str) -> None:
    before, connection = an_observed(run="e-1", round=1, phase=Phase.RUNNING), ConnectionState(0.0)
    connection.open("c1", before, 0.0)
    assert connection.record_report(replace(before, **{name: OTHERS[name]}), 0.0) is (name in AT_ONCE)


def test_a_node_whose_token_may_become_right_says_how_long_that_takes_at_most() -> None:
    bench = Bench()
    bench.submit(TurnedAway(Refused(RefusalCode.FORBIDDEN, "the token is not known here", retry=True), 4.0))
    assert bench.last(Waiting).until == bench.now + 4.0
    bench.close("Connection refused")
    assert bench.last(Waiting).until == bench.now + SETTINGS.join_timeout_s


def test_reasons_that_are_never_the_same_do_not_fill_a_log() -> None:
    bench = Bench()
    for number in range(1000):
        bench.close(f"error {number}")
    assert bench.count(Notice) + bench.count(Waiting) < 100
