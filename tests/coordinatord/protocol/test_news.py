"""The marks on the fields of messages: of each field it is said here when a change is sent, and whether it is news."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from coordinatord.protocol.kept_state import Holding, KeptStep, PersistReport, PersistState
from coordinatord.protocol.messages import Desired, Failure, Observed
from coordinatord.protocol.news import Mark, is_news, marked
from tests.support.builders import a_failure, an_observed

MARKS: dict[type[Struct], dict[str, str]] = {
    Observed: {
        "at once": "run round phase port leaving failure check pair",
        "at once, quiet": "killed",
        "quiet": "heard_s beat steps step_age_s stepped_twice idle_s ended cut_off section begun pids digests",
        "": "kept held_up",
    },
    Desired: {
        "at once": "run round goal planned outcome pair halt persist alike",
        "quiet": "heartbeat_s lease_s",
        "": "reason wait_s outage_grace_s assignment report remark resume protected copies",
    },
}
"""A new field has to be thought of."""


def test_of_each_field_it_is_known_when_a_change_is_sent_and_whether_it_is_news() -> None:
    for kind, by_marks in MARKS.items():
        said = {name: marks for marks, names in by_marks.items() for name in names.split()}
        words = {Mark.AT_ONCE: "at once", Mark.QUIET: "quiet"}
        assert said == {
            name: ", ".join(words[mark] for mark in Mark if name in marked(kind, mark))
            for name in kind.__struct_fields__
        }


def test_ages_in_parts_of_a_message_are_no_news_and_all_else_is() -> None:
    assert marked(Failure, Mark.QUIET) == {"age_s", "left"}
    before = an_observed(failure=a_failure())
    assert not is_news(replace(before, heard_s=3.0, failure=replace(a_failure(), age_s=7.0, left=True)), before)
    assert is_news(replace(before, failure=None), before)
    assert is_news(replace(before, failure=replace(a_failure(), message="killed")), before)


def test_bytes_on_the_disk_are_no_news_and_the_state_of_the_write_is() -> None:
    writing = PersistReport(1, 8, PersistState.WRITING, 4_096)
    before = an_observed(kept=Holding((), persisting=writing))
    after = replace(before, kept=Holding((), persisting=replace(writing, bytes=8_192)))
    assert not is_news(after, before)
    assert is_news(replace(after, kept=Holding((), persisting=replace(writing, state=PersistState.WRITTEN))), before)
    assert is_news(replace(after, kept=Holding(())), before)
    assert is_news(KeptStep(1, 8), None)
