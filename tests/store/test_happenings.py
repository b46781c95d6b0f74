"""What a store tells people of what happened, and what it forgets of drains and of forgotten jobs."""

from __future__ import annotations

from coordinatord.core.records import NodeDrained, NodeUndrained
from coordinatord.store.database import Database
from coordinatord.store.interface import Happening
from coordinatord.store.pruning import MARKS_KEPT
from tests.support.histories import JOB, RUN, a_forgetting, a_join_of, an_opening


def a_drain(name: str) -> NodeDrained:
    return NodeDrained("", "", f"{name} drained by alice", name)


def an_undrain(name: str) -> NodeUndrained:
    return NodeUndrained("", "", f"{name} undrained by alice", name)


def told(database: Database, job: str | None = None, after: int = 0) -> list[tuple[int, str]]:
    return [(one.number, one.kind) for one in database.happenings(job, after, 1_000)]


def test_the_newest_are_told_oldest_first() -> None:
    database = Database.in_memory()
    database.append([an_opening(), *(a_join_of(f"n{number}") for number in range(10))], 5.0)
    assert told(database, after=9) == [(10, "NodeJoined"), (11, "NodeJoined")]
    assert [one.number for one in database.happenings(JOB, 0, 2)] == [10, 11]
    [first] = database.happenings(JOB, 0, 11)[:1]
    assert first == Happening(1, 5.0, JOB, RUN, "RunOpened", None, None, "opened by node n1")


def test_of_one_job_only_what_is_its_own_is_told() -> None:
    database = Database.in_memory()
    database.append([an_opening("a"), an_opening("b", "e-2"), a_drain("n1")], 0.0)
    assert told(database, "b") == [(2, "RunOpened")]
    assert told(database) == [(1, "RunOpened"), (2, "RunOpened"), (3, "NodeDrained")]


def test_numbers_are_never_given_again_even_if_all_is_forgotten() -> None:
    database = Database.in_memory()
    database.append([an_opening(), a_join_of("n1"), a_forgetting()], 0.0)
    assert told(database) == [(3, "JobForgotten")]
    database.append([an_opening(run="e-2")], 1.0)
    assert told(database, JOB) == [(3, "JobForgotten"), (4, "RunOpened")]
    assert database.runs() == [(JOB, "e-2")]
    assert [entry.record for entry in database.load()] == [an_opening(run="e-2")]


def test_forgotten_jobs_do_not_pile_up() -> None:
    database = Database.in_memory()
    for number in range(MARKS_KEPT + 20):
        job = f"job-{number}"
        database.append([an_opening(job), a_forgetting(job)], 0.0)
    assert database.count() == MARKS_KEPT


def test_drains_that_hold_are_kept_and_others_do_not_pile_up() -> None:
    database = Database.in_memory()
    database.append(
        [a_drain("bad"), a_drain("mended"), an_undrain("mended"), a_drain("again"), an_undrain("again")], 0.0
    )
    database.append([a_drain("again")], 0.0)
    for number in range(MARKS_KEPT):
        database.append([a_drain(f"n{number}"), an_undrain(f"n{number}")], 1.0)
    drained = [entry.record for entry in database.load() if isinstance(entry.record, NodeDrained)]
    left = [record.node for record in drained]
    assert left[:2] == ["bad", "again"]
    assert "mended" not in left
    assert database.count() == MARKS_KEPT + 2
