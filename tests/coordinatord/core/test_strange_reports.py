"""What a node may claim, and no node finds out, leads to no record that could not be read again."""

from typing import Any

import pytest

from coordinatord.core.rounds.events import Connected, Reported
from coordinatord.core.rounds.values.records import RoundEnded
from coordinatord.protocol.messages import HangKind, Phase
from coordinatord.store import row_codec
from coordinatord.store.interface import Entry
from tests.support.builders import a_coordinator, a_failure, a_join, a_spec, an_observed


@pytest.mark.parametrize("claim", [*({"hang": kind} for kind in HangKind), {"diverged": True}], ids=str)
def test_a_node_that_claims_a_hang_or_a_divergence_has_a_worker_that_failed(claim: dict[str, Any]) -> None:
    coordinator = a_coordinator()
    coordinator.handle(Connected(1, a_join("n1", spec=a_spec(1, 1)), "10.0.0.1", "10.0.0.254"), 0.0)
    coordinator.handle(Reported(1, an_observed(run="e-1", round=1, phase=Phase.RUNNING)), 1.0)
    failed = an_observed(run="e-1", round=1, phase=Phase.FAILED, failure=a_failure(message="", **claim))
    records = coordinator.handle(Reported(1, failed), 2.0).records
    for record in records:
        entry = Entry(3.0, record)
        assert row_codec.decode((1, *row_codec.encode(entry))) == entry
    [ended] = [record for record in records if isinstance(record, RoundEnded)]
    assert ended.reason.startswith("rank 0 on node n1 failed: exit code 1")
    assert ended.report is not None
    assert (ended.report.failure.hang, ended.report.failure.diverged) == (None, False)
