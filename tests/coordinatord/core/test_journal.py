"""Persist, then send: which effects wait for which records, and which wait for none."""

import pytest

from coordinatord.core.journal import GROUP_RECORDS, Journal
from coordinatord.core.rounds.effects import Batch, Close, Effect, ReportDegraded, Send
from coordinatord.core.rounds.values.records import Record, RoundStarted
from coordinatord.core.rounds.values.time_ledger import Spent
from coordinatord.protocol.messages import Degraded, Goal
from tests.support.builders import a_desired


def a_record(number: int) -> Record:
    return RoundStarted("job", "run", "all workers are started", number, steps_awaited=False, spent=Spent())


def a_send(session: int, reason: str = "as it is") -> Send:
    return Send(session, a_desired(Goal.WAIT, reason=reason))


def a_batch(*effects: Effect, records: int = 0) -> Batch:
    return Batch(tuple(a_record(number) for number in range(records)), effects)


def test_what_rests_on_a_record_is_said_when_that_is_durable_and_all_else_at_once() -> None:
    journal = Journal()
    assert journal.add(a_batch(a_send(1), Close(2)), 0.0) == (a_send(1), Close(2))
    assert journal.begin() == ()
    assert journal.add(a_batch(a_send(1), records=1), 0.0) == ()
    assert journal.begin() == ((0.0, a_record(0)),)
    assert journal.finish() == (a_send(1),)
    assert journal.add(a_batch(a_send(1)), 0.0) == (a_send(1),)


@pytest.mark.parametrize("is_writing", [False, True])
def test_what_adds_no_record_waits_for_those_before_it(is_writing: bool) -> None:
    journal = Journal()
    journal.add(a_batch(records=1), 0.0)
    if is_writing:
        journal.begin()
    assert journal.add(a_batch(a_send(1)), 0.0) == ()
    assert (journal.begin() == ()) is is_writing
    assert journal.finish() == (a_send(1),)


def test_all_that_comes_during_a_write_is_written_next_in_one_go_with_the_times_of_the_decisions() -> None:
    journal = Journal()
    journal.add(a_batch(records=1), 5.0)
    journal.begin()
    journal.add(a_batch(a_send(1), records=1), 7.0)
    journal.add(a_batch(a_send(2)), 7.5)
    journal.add(a_batch(a_send(3), records=2), 8.0)
    assert journal.begin() == ()
    assert journal.finish() == ()
    assert journal.begin() == ((7.0, a_record(0)), (8.0, a_record(0)), (8.0, a_record(1)))
    assert journal.finish() == (a_send(1), a_send(2), a_send(3))
    assert journal.begin() == ()


def test_a_group_that_has_enough_records_takes_no_more() -> None:
    journal = Journal()
    for session in range(GROUP_RECORDS + 1):
        assert journal.add(a_batch(a_send(session), records=1), 0.0) == ()
    assert journal.add(a_batch(a_send(0, "new")), 0.0) == ()
    assert journal.add(Batch((), (a_send(1),), repeats=True), 0.0) == ()
    assert len(journal.begin()) == GROUP_RECORDS
    assert journal.finish() == tuple(a_send(session) for session in range(GROUP_RECORDS))
    assert len(journal.begin()) == 1
    assert journal.finish() == (a_send(GROUP_RECORDS), a_send(0, "new"))
    assert journal.begin() == ()


def test_the_records_of_one_event_are_written_together() -> None:
    journal = Journal()
    journal.add(a_batch(records=GROUP_RECORDS - 1), 0.0)
    journal.add(a_batch(records=2), 0.0)
    journal.add(a_batch(records=1), 0.0)
    written = []
    while records := journal.begin():
        written.append(len(records))
        journal.finish()
    assert written == [GROUP_RECORDS + 1, 1]


def test_of_all_words_to_a_session_that_wait_only_the_last_is_said() -> None:
    journal = Journal()
    journal.add(a_batch(a_send(1, "old"), a_send(2), records=1), 0.0)
    journal.add(a_batch(a_send(1, "new")), 0.0)
    journal.add(a_batch(Close(2)), 0.0)
    journal.begin()
    assert journal.finish() == (a_send(1, "new"), Close(2))


@pytest.mark.parametrize(
    "batch",
    [
        Batch((), (ReportDegraded(1, Degraded("the disk is full")),), at_once=True),
        Batch((), (a_send(2),), repeats=True),
    ],
    ids=["that the coordinator lives", "what the session was sent before"],
)
def test_some_messages_do_not_wait_for_a_write(batch: Batch) -> None:
    journal = Journal()
    journal.add(a_batch(a_send(1), records=1), 0.0)
    journal.begin()
    assert journal.add(batch, 0.0) == batch.effects
    assert journal.finish() == (a_send(1),)


def test_what_still_waits_to_be_said_is_not_said_again_before_that() -> None:
    journal = Journal()
    journal.add(a_batch(a_send(1), records=1), 0.0)
    assert journal.add(Batch((), (a_send(1),), repeats=True), 0.0) == ()
    journal.begin()
    journal.add(a_batch(a_send(2), records=1), 0.0)
    for session in (1, 2):
        assert journal.add(Batch((), (a_send(session),), repeats=True), 0.0) == ()
    assert journal.finish() == (a_send(1),)
    assert journal.add(Batch((), (a_send(1),), repeats=True), 0.0) == (a_send(1),)
    journal.begin()
    assert journal.finish() == (a_send(2),)


def test_a_newer_repetition_takes_the_place_of_what_waits() -> None:
    journal = Journal()
    journal.add(a_batch(a_send(1, "old"), a_send(2), records=1), 0.0)
    journal.begin()
    assert journal.add(Batch((), (a_send(1, "new"),), repeats=True), 0.0) == ()
    assert journal.finish() == (a_send(1, "new"), a_send(2))


def test_a_repetition_of_what_a_later_group_led_to_waits_for_that_group() -> None:
    journal = Journal()
    journal.add(a_batch(a_send(1, "first"), records=1), 0.0)
    journal.begin()
    journal.add(a_batch(a_send(1, "second"), records=1), 0.0)
    assert journal.add(Batch((), (a_send(1, "second again"),), repeats=True), 0.0) == ()
    assert journal.finish() == (a_send(1, "first"),)
    journal.begin()
    assert journal.finish() == (a_send(1, "second again"),)
