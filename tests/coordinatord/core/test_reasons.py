"""What is said of a round: how its workers were started, which were killed, and never more than a record can hold."""

from typing import Any

import pytest

from coordinatord.core.rounds.effects import Batch
from coordinatord.core.rounds.values.records import REASON_MAX, RoundEnded, RoundFormed, RoundStarted
from coordinatord.core.shown.job_view import whole_view
from coordinatord.protocol.fields import SENTENCE_MAX
from coordinatord.protocol.http.api import JobStatus, WorkerStartsStatus
from coordinatord.protocol.kept_state import HELD_RANKS_MAX, Holding, KeptParts
from coordinatord.protocol.messages import ColdCause, HangKind, Killed, Phase, Section, WhyCold, WorkerStarts
from coordinatord.protocol.schema import SchemaError
from coordinatord.store import row_codec
from coordinatord.store.interface import Entry
from tests.support.builders import a_failure
from tests.support.script import Stage, play

FORMED = " (formed of nodes n1, n2, all that --nnodes allows)"


OPENS_CUDA = WhyCold(ColdCause.GPU, "module x opened CUDA")


@pytest.mark.parametrize(
    ("begun", "said"),
    [
        ((None, None), ""),
        ((WorkerStarts(1, 0, 0), WorkerStarts(0, 1, 0)), ": 1 in place, 1 warm"),
        ((WorkerStarts(1, 0, 0), None), ": 1 in place, 1 cold"),
        (
            (WorkerStarts(1, 0, 0), WorkerStarts(0, 0, 1, "it was not out in time")),
            ": 1 in place, 1 cold; not in place on node n2: it was not out in time",
        ),
        (
            (WorkerStarts(0, 0, 1, "it was not out in time", OPENS_CUDA), WorkerStarts(0, 0, 1, "", OPENS_CUDA)),
            ": 2 cold; not in place on node n1: it was not out in time; cold on node n1: module x opened CUDA",
        ),
    ],
)
def test_the_start_of_a_round_counts_each_way_and_says_why_not_in_place_and_why_cold(
    begun: tuple[WorkerStarts | None, WorkerStarts | None], said: str
) -> None:
    stage = play("join n1 n2 min=2 max=2")
    for name, way in zip(("n1", "n2"), begun, strict=True):
        stage.report(name, phase=Phase.RUNNING, begun=way)
    assert stage.run.durable.reason == f"all workers are started{said}{FORMED}"


def shown(stage: Stage) -> JobStatus:
    """Return what a reader of the job is shown."""
    run = stage.run
    return whole_view(run, run.durable.rounds, stage.now, None)


def test_a_job_its_nodes_and_its_rounds_show_how_workers_were_started() -> None:
    stage = play("join n1 n2 min=2 max=2")
    ways = WorkerStarts(1, 0, 0), WorkerStarts(0, 0, 1, "it was not out in time", OPENS_CUDA)
    for name, way in zip(("n1", "n2"), ways, strict=True):
        assert shown(stage).begun is None
        stage.report(name, phase=Phase.RUNNING, begun=way)
    whole = WorkerStartsStatus(
        in_place=1, warm=0, cold=1, why_not="node n2: it was not out in time", why_cold="node n2: module x opened CUDA"
    )
    view = shown(stage)
    assert view.begun == whole
    assert [round_.begun for round_ in view.rounds] == [whole]
    assert [node.begun for node in view.nodes] == [
        WorkerStartsStatus(in_place=1, warm=0, cold=0, why_not=""),
        WorkerStartsStatus(
            in_place=0, warm=0, cold=1, why_not="it was not out in time", why_cold="module x opened CUDA"
        ),
    ]


def test_how_workers_of_a_round_that_ended_were_started_stays_and_the_next_one_says_nothing_yet() -> None:
    stage = play("join n1 min=1 max=1")
    stage.report("n1", phase=Phase.RUNNING, begun=WorkerStarts(0, 1, 0))
    stage.play("fail n1", "stopped n1")
    view = shown(stage)
    assert view.begun is None
    assert next(iter(view.rounds)).begun == WorkerStartsStatus(in_place=0, warm=1, cold=0, why_not="")


# Workers that were killed before they had saved their state


LOST = "killed, as they had not ended in time, so what they had not saved is lost"


def end(stage: Stage, killed: dict[str, Killed]) -> str:
    """Let the workers of all nodes end, of some of them by force; return the verdict that is recorded."""
    for name in stage.puppets:
        stage.report(name, phase=Phase.STOPPED, killed=killed.get(name))
    [ended] = stage.records(RoundEnded)
    return ended.reason


@pytest.mark.parametrize("asked", ["ask restart default", "ask stop default", "ask drain n2", "leave n1"])
def test_the_end_of_a_round_names_whose_state_is_lost(asked: str) -> None:
    stage = play("join n1 n2 min=2 max=2", "running n1 n2", asked)
    verdict = end(stage, {"n1": Killed((0,), 1, 30.0)})
    lost = f"; {LOST}: rank 0 on node n1 (within 30 s)"
    assert verdict.endswith(lost)
    if asked == "ask stop default":
        stage.play("advance 1s")
        assert stage.run.durable.reason.endswith(lost), "and so does the end of the job"


@pytest.mark.parametrize(("number", "others"), [(3, "1 more node"), (5, "3 more nodes")])
def test_of_many_a_few_are_named_and_all_are_counted(number: int, others: str) -> None:
    nodes = " ".join(f"n{index + 1}" for index in range(number))
    stage = play(f"join {nodes} min={number} max={number}", f"running {nodes}", "ask restart default")
    verdict = end(stage, dict.fromkeys(stage.puppets, Killed(tuple(range(8)), 16, 2.5)))
    named = ", ".join(f"ranks 0, 1, 2, 3, 4, 5, 6, 7 and 8 more on node {name} (within 2.5 s)" for name in ("n1", "n2"))
    assert verdict.endswith(f"; {LOST}: {named} and on {others}")


def test_the_longest_of_such_sentences_can_be_recorded() -> None:
    names = ["a" * 127 + "1", "a" * 127 + "2"]
    stage = play(f"join {' '.join(names)} min=2 max=2", f"running {' '.join(names)}")
    failure = a_failure(message="m" * SENTENCE_MAX, error="e" * SENTENCE_MAX)
    stage.report(names[0], phase=Phase.STOPPING, failure=failure)
    many = Killed(tuple(10**6 - number for number in range(8)), 4_096, 86_400.0)
    verdict = end(stage, dict.fromkeys(names, many))
    assert LOST in verdict
    assert len(verdict) < REASON_MAX / 2, "the next round's reason begins with it"


# What no node finds out, and one may claim


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
