"""What a node may claim, and no node finds out, leads to no record that could not be read again."""

from typing import Any

import pytest

from coordinatord.core.rounds.effects import Batch
from coordinatord.core.rounds.values.records import REASON_MAX, RoundEnded, RoundFormed, RoundStarted
from coordinatord.protocol.kept_state import HELD_RANKS_MAX, Holding, KeptParts
from coordinatord.protocol.messages import ColdCause, HangKind, Phase, Section, WhyCold, WorkerStarts
from coordinatord.protocol.schema import SchemaError
from coordinatord.store import row_codec
from coordinatord.store.interface import Entry
from tests.support.builders import a_failure
from tests.support.script import play


def check_readable(batch: Batch) -> None:
    """Check that the records of a batch are as they were when they are read again."""
    for record in batch.records:
        entry = Entry(3.0, record)
        assert row_codec.decode((1, *row_codec.encode(entry))) == entry


@pytest.mark.parametrize("claim", [*({"hang": kind} for kind in HangKind), {"diverged": True}], ids=str)
def test_a_node_that_claims_a_hang_or_a_divergence_has_a_worker_that_failed(claim: dict[str, Any]) -> None:
    stage = play("join n1 min=1 max=1", "running n1")
    check_readable(stage.report("n1", phase=Phase.FAILED, failure=a_failure(message="", **claim)))
    [ended] = stage.records(RoundEnded)
    assert ended.reason.startswith("rank 0 on node n1 failed: exit code 1")
    assert ended.report is not None
    assert (ended.report.failure.hang, ended.report.failure.diverged) == (None, False)


def test_no_more_workers_are_said_to_have_started_than_there_are() -> None:
    stage = play("join n1 n2 min=2 max=2")
    for node in ("n1", "n2"):
        check_readable(stage.report(node, phase=Phase.RUNNING, begun=WorkerStarts(1_000_000, 1_000_000, 0)))
    [started] = stage.records(RoundStarted)
    assert started.begun == WorkerStarts(2, 0, 0)


def test_a_reason_that_quotes_long_texts_of_many_nodes_is_cut() -> None:
    nodes = [f"n{number}{'-' * 126}" for number in range(1, 10)]
    stage = play(f"join {' '.join(nodes)} min=9 max=9 keeps=yes")
    kept = Holding(
        (KeptParts(1, 10, 9, 1, 0, 9, 0, big=True, small=True, pending=False, protected=True),), unkept="u" * 512
    )
    for node in nodes:
        stage.report(node, phase=Phase.RUNNING)
    for node in nodes:
        stage.report(node, phase=Phase.RUNNING, kept=kept, steps=(10,), step_age_s=0.0)
    stage.play(f"ask restart default why={'w' * 512}", f"stopped {' '.join(nodes)}")
    begun = WorkerStarts(1, 0, 0, "y" * 512, WhyCold(ColdCause.IMPORT, "z" * 512))
    for node in nodes:
        check_readable(stage.report(node, phase=Phase.RUNNING, kept=kept, begun=begun))
    lengths = [len(record.reason) for record in stage.records(RoundFormed) + stage.records(RoundStarted)]
    assert max(lengths) == REASON_MAX


def test_the_age_of_a_step_that_no_worker_has_done_is_ignored() -> None:
    stage = play(
        *("join n1 n2 min=2 max=2 restarts=5", "running n1 n2", "step n1 n2 10", "advance 2s", "step n1 n2 20"),
        *("fail n1", "stopped n1 n2"),
    )
    first, second = stage.run.durable.order
    stage.report(second, phase=Phase.RUNNING, steps=(5,), step_age_s=0.0)
    stage.play("advance 2s")
    stage.report(second, phase=Phase.RUNNING, steps=(3,), step_age_s=0.0)
    assert stage.run.progress.pace.counts_anew
    stage.report(first, phase=Phase.RUNNING, steps=(), step_age_s=0.0, section=Section("evaluation", 60.0, 0.0, 0))
    check_readable(stage.report(second, phase=Phase.RUNNING, steps=(3,), step_age_s=1.0))


def test_a_node_cannot_report_parts_of_a_million_ranks() -> None:
    most = KeptParts(1, 1, 1_000_000, 1, 0, HELD_RANKS_MAX, 0, big=True, small=False, pending=False, protected=False)
    assert Holding((most,)).parts == (most,)
    with pytest.raises(SchemaError, match="parts of more than 65536 ranks"):
        Holding((most, most))
