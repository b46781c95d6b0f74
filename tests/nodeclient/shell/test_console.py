"""A node's display: on a terminal with a live line, in a file without, and for machines as JSON alone."""

import json
import logging
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from nodeclient.core.effects import Level, Waiting
from nodeclient.output.output import Terminal
from nodeclient.shell.console import Console
from tests.support.builders import a_failure, a_report

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Screen(Terminal):
    """A terminal or a file that keeps what it shows."""

    def __init__(self, *, is_live: bool) -> None:
        self._is_live = is_live
        self.lines: list[str] = []
        self.drawn: list[str] = []

    @property
    def is_live(self) -> bool:
        """Whether it has a live line."""
        return self._is_live

    def columns(self) -> int:
        """Return the width."""
        return 80

    def write_lines(self, text: str) -> None:
        """Keep lines."""
        self.lines += text.split("\n")

    def draw(self, text: str) -> None:
        """Keep what the live line showed."""
        self.drawn.append(text)

    @property
    def objects(self) -> list[dict[str, Any]]:
        """Read each line as JSON."""
        return [json.loads(line) for line in self.lines]


@pytest.fixture(autouse=True)
def _root() -> Iterator[None]:
    logger = logging.getLogger()
    handlers, level = logger.handlers[:], logger.level
    yield
    logging.captureWarnings(False)
    logger.handlers[:], logger.level = handlers, level


def a_console(form: str, screen: Screen, level: str = "info") -> Console:
    return Console(level, form, lambda: {"job": "j", "node": "a", "round": None}, screen)


def test_on_a_terminal_what_is_waited_for_is_drawn_and_elsewhere_it_is_a_line() -> None:
    live, file = Screen(is_live=True), Screen(is_live=False)
    console = a_console("text", live)
    console.show_wait(Waiting("waiting for nodes", 65.0), 0.0)
    assert console.redraw(1.0)
    assert (live.lines, live.drawn[-1]) == ([], "waiting for nodes (1 min 4 s left)")
    a_console("text", file).show_wait(Waiting("waiting for nodes", 65.0), 0.0)
    assert file.lines[0].endswith("INFO    nodeclient: waiting for nodes (for at most 65 s) job=j node=a")


def test_wide_characters_take_no_more_than_one_row() -> None:
    screen = Screen(is_live=True)
    a_console("text", screen).show_wait(Waiting("等" * 100, 65.0), 0.0)
    limit = " (1 min 5 s left)"
    assert screen.drawn == ["等" * ((80 - 1 - len(limit)) // 2) + limit]


def test_what_is_waited_for_no_more_is_erased_also_by_a_line_that_is_not_written() -> None:
    screen = Screen(is_live=True)
    console = a_console("text", screen, level="error")
    console.show_wait(Waiting("waiting for nodes", None), 0.0)
    console.notify(Level.INFO, "starting round 1", "round_starting")
    assert (screen.drawn, screen.lines) == (["waiting for nodes", ""], [])
    assert not console.redraw(1.0), "workers write there now"


def test_where_the_workers_go_on_meanwhile_it_says_when_they_stop() -> None:
    live, file = Screen(is_live=True), Screen(is_live=False)
    looking = Waiting("looking for the coordinator: no answer", 298.0, working=True)
    a_console("text", live).show_wait(looking, 0.0)
    assert live.drawn[-1] == "looking for the coordinator: no answer (workers stop in 4 min 58 s)"
    a_console("text", file).show_wait(looking, 0.0)
    assert "no answer; the workers go on, and stop in 298 s if it is not back job=j" in file.lines[0]


def test_for_machines_nothing_is_drawn_even_on_a_terminal() -> None:
    screen = Screen(is_live=True)
    console = a_console("json", screen)
    console.show_wait(Waiting("waiting for nodes", None), 0.0)
    assert not console.redraw(1.0)
    assert screen.drawn == []
    [event] = screen.objects
    assert (event["event"], event["message"], event["job"], event["node"]) == ("waiting", "waiting for nodes", "j", "a")


def test_what_only_machines_want_is_not_in_the_text() -> None:
    text, objects = Screen(is_live=False), Screen(is_live=False)
    for form, screen in (("text", text), ("json", objects)):
        a_console(form, screen).notify(Level.ERROR, "no more", "ended", exit_code=3)
    assert text.lines[0].endswith("ERROR   nodeclient: no more job=j node=a")
    assert (objects.objects[0]["event"], objects.objects[0]["exit_code"]) == ("ended", 3)


def test_a_report_is_a_block_for_people_and_one_object_for_machines() -> None:
    report = a_report(failure=a_failure(log="/logs/stderr.log"))
    text, objects = Screen(is_live=False), Screen(is_live=False)
    a_console("text", text).show(report, NOON)
    a_console("json", objects).show(report, NOON)
    assert len(text.lines) > 3
    [event] = objects.objects
    assert (event["event"], event["level"], event["round"]) == ("round_failed", "error", report.round)
    assert (event["rank"], event["failed_node"], event["failed_host"]) == (
        report.failure.rank,
        report.node,
        report.host,
    )
    assert event["exit_code"] == report.failure.exit_code
    assert event["stderr_log"] == "/logs/stderr.log"


def test_levels_below_the_one_that_was_asked_for_are_not_written() -> None:
    screen = Screen(is_live=False)
    console = a_console("json", screen, level="error")
    console.notify(Level.WARNING, "hm", "trouble")
    console.notify(Level.ERROR, "oh", "trouble")
    assert [line["message"] for line in screen.objects] == ["oh"]


def test_why_a_round_failed_is_an_error_for_the_journal(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    del capfd  # its files are in the place of this process's own
    found = os.fstat(2)
    monkeypatch.setenv("JOURNAL_STREAM", f"{found.st_dev}:{found.st_ino}")
    screen = Screen(is_live=False)
    a_console("text", screen).show(a_report(), NOON)
    assert screen.lines
    assert all(line.startswith("<3>") for line in screen.lines)
