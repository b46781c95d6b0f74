"""Who has a log is worked out from the records of its round, and what cannot be read is said with where it lies."""

from typing import Any

import pytest
from msgspec.structs import replace

from coordinatord.core.rounds.values.records import RoundFormed
from coordinatord.core.shown import log_sources as queries
from coordinatord.core.shown.log_sources import LogChoice, LogSource, LogSources, NoLogError, log_sources
from coordinatord.protocol.log_messages import LogStream
from tests.support.script import Stage, play

ALL = LogChoice()

STDERR = (LogStream.STDERR,)


def joined(more: str = "") -> Stage:
    """Return two nodes of two workers each, in their first round."""
    return play(f"join a b min=2 max=2 workers=2 log_dir=/logs/default {more}")


def sources(stage: Stage, choice: LogChoice = ALL, number: int = 1, **further: Any) -> LogSources:
    """Return who has the chosen logs of a round."""
    records = [record for _, record in stage.past] if number == 1 else []
    return log_sources(stage.run, number, records, choice, **further)


def places(found: LogSources) -> list[tuple[int, str, int | None]]:
    return [(source.rank, source.stream, source.session) for source in found.sources]


def test_all_logs_of_a_round_are_found_by_rank_and_each_at_its_node() -> None:
    found = sources(joined())
    assert places(found) == [
        (rank, stream, session) for rank, session in ((0, 1), (1, 1), (2, 2), (3, 2)) for stream in ("stdout", "stderr")
    ]
    assert found.omitted == 0
    assert found.sources[-1] == LogSource(
        "e-1", 1, 3, LogStream.STDERR, "b", "host-b", "/logs/default/e-1/round_1/3/stderr.log", "b", 2, ""
    )


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (LogChoice(ranks=(range(1, 3),), streams=STDERR), [(1, "stderr", 1), (2, "stderr", 2)]),
        (LogChoice(ranks=(range(3, 9), range(3, 4)), streams=STDERR), [(3, "stderr", 2)]),
        (
            LogChoice(ranks=(range(3, 4), range(1), range(2, 3), range(9, 12)), streams=STDERR),
            [(0, "stderr", 1), (2, "stderr", 2), (3, "stderr", 2)],
        ),
        (LogChoice(nodes=frozenset({"a"}), streams=STDERR), [(0, "stderr", 1), (1, "stderr", 1)]),
        (LogChoice(nodes=frozenset({"host-b"}), streams=STDERR), [(2, "stderr", 2), (3, "stderr", 2)]),
    ],
)
def test_some_are_chosen_by_rank_node_host_and_stream(choice: LogChoice, expected: list[object]) -> None:
    assert places(sources(joined(), choice)) == expected


def test_no_more_are_read_at_once_than_a_person_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "WORKERS_AT_ONCE_MAX", 3)
    found = sources(joined(), LogChoice(streams=STDERR))
    assert ([source.rank for source in found.sources], found.omitted) == ([0, 1, 2], 1)


@pytest.mark.parametrize("ranks", [(), tuple(range(first, 10**12) for first in range(64))])
def test_ranks_are_not_counted_one_by_one(ranks: tuple[range, ...]) -> None:
    stage = joined()
    [formed] = stage.records(RoundFormed)
    wide = replace(formed, nodes=(replace(formed.nodes[0], workers=10**12),))
    stage.past = [(at, wide if record is formed else record) for at, record in stage.past]
    found = sources(stage, LogChoice(ranks=ranks, streams=STDERR))
    assert ([source.rank for source in found.sources], found.omitted) == (list(range(64)), 10**12 - 64)


@pytest.mark.parametrize(
    ("choice", "number", "problem"),
    [
        (LogChoice(), 2, "round 2 of job default is not known: run e-1 has round 1"),
        (LogChoice(nodes=frozenset({"c"})), 1, "round 1 has no such node: it has nodes a, b"),
        (LogChoice(ranks=(range(4, 5),)), 1, "round 1 has no rank 4: it has nodes a (ranks 0 to 1), b (ranks 2 to 3)"),
        (
            LogChoice(ranks=(range(2), range(7, 8)), nodes=frozenset({"b"})),
            1,
            "round 1 has no rank 0-1, 7 on node b (ranks 2 to 3)",
        ),
    ],
)
def test_what_there_is_not_is_said_with_what_there_is(choice: LogChoice, number: int, problem: str) -> None:
    with pytest.raises(NoLogError) as caught:
        sources(joined(), choice, number)
    assert str(caught.value) == problem


def test_of_a_job_that_is_over_the_last_round_is_known() -> None:
    stage = joined()
    stage.play("succeed a b")
    with pytest.raises(NoLogError, match="run e-1 has rounds up to 1, of which the last 50 are kept"):
        sources(stage, LogChoice(), 2)


def test_a_job_without_a_round_has_no_logs() -> None:
    with pytest.raises(NoLogError, match="job default has had no round yet"):
        sources(play("join a b min=3 max=3"), number=0)


def problem_of(stage: Stage) -> str:
    source = sources(stage, LogChoice(ranks=(range(1),), streams=STDERR)).sources[0]
    assert source.session is None
    return source.problem


def test_of_a_node_that_is_gone_the_place_of_its_files_is_said() -> None:
    stage = joined()
    stage.play("running a", "drop a")
    there = "its logs are on host host-a in /logs/default/e-1/round_1"
    assert problem_of(stage) == f"node a is not connected: {there}"
    stage.play("drop b")
    stage.run.members.clear()
    assert problem_of(stage) == f"node a is not connected: {there}"


def test_who_follows_waits_for_a_node_that_may_come_back() -> None:
    stage = joined()
    stage.play("running a", "drop a")
    [source] = sources(stage, LogChoice(ranks=(range(1),), streams=STDERR), follow=True).sources
    assert (source.session, source.problem) == (None, "")


def test_another_node_with_the_logs_in_the_same_place_is_asked_instead() -> None:
    stage = joined("host=gpu1")
    choice = LogChoice(ranks=(range(1),), streams=STDERR)
    stage.play("drop a")
    [source] = sources(stage, choice).sources
    assert (source.node, source.served_by, source.session, source.problem) == ("a", "b", 2, "")
    [source] = sources(stage, choice, earlier="e-0").sources
    assert (source.run, source.file) == ("e-0", "/logs/default/e-0/round_1/0/stderr.log")
    with pytest.raises(NoLogError, match="round 9 of run e-0 is not known"):
        sources(stage, choice, 9, earlier="e-0")


def test_of_a_node_without_files_it_is_said_what_to_do() -> None:
    text = "node a keeps no log files: start its nodeclient with --log-dir DIR, or set NODECLIENT_LOG_DIR"
    assert problem_of(joined("log_dir=")) == text


def test_the_logs_of_torchrun_are_torchrun_s() -> None:
    assert problem_of(joined("launcher=torchrun log_dir=")).startswith("torchrun has started the workers of node a, ")
