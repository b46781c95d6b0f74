"""What a node may claim, and no node finds out, leads to no record that could not be read again."""

from typing import Any

import pytest

from coordinatord.core.rounds.values.records import RoundEnded
from coordinatord.protocol.messages import HangKind, Phase
from coordinatord.store import row_codec
from coordinatord.store.interface import Entry
from tests.support.builders import a_failure
from tests.support.script import play


@pytest.mark.parametrize("claim", [*({"hang": kind} for kind in HangKind), {"diverged": True}], ids=str)
def test_a_node_that_claims_a_hang_or_a_divergence_has_a_worker_that_failed(claim: dict[str, Any]) -> None:
    stage = play("join n1 min=1 max=1", "running n1")
    for record in stage.report("n1", phase=Phase.FAILED, failure=a_failure(message="", **claim)).records:
        entry = Entry(3.0, record)
        assert row_codec.decode((1, *row_codec.encode(entry))) == entry
    [ended] = stage.records(RoundEnded)
    assert ended.reason.startswith("rank 0 on node n1 failed: exit code 1")
    assert ended.report is not None
    assert (ended.report.failure.hang, ended.report.failure.diverged) == (None, False)
