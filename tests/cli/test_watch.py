"""`nodeclient status --watch`: redrawn in place on a terminal, which is left as it was; else a block at each change."""

import json
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.canned_http import a_job, a_node, canned, in_turn, packed
from tests.support.cluster import Cluster, Coordinator
from tests.support.programs import BIN, Program
from tests.support.screens import OnTerminal, on_terminal

pytestmark = pytest.mark.slow

TITLE = r"127\.0\.0\.1:\d+  \d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ  \(q to end\)"


@contextmanager
def watching(jobs: dict[str, Any], *words: str, columns: int = 80, rows: int = 24) -> Iterator[OnTerminal]:
    """Watch what a coordinator always answers, on a terminal."""
    with (
        canned(packed(jobs)) as (endpoint, _),
        on_terminal(
            BIN / "nodeclient", "status", "--coord", endpoint, "--watch", *words, columns=columns, rows=rows
        ) as terminal,
    ):
        yield terminal


def check_clean(terminal: OnTerminal) -> None:
    """Check that the terminal is as it was before."""
    assert "mnist" not in terminal.screen.text, "it was drawn on a screen of its own"
    assert terminal.screen.modes == {"?25", "?7"}
    assert terminal.settings_now == terminal.settings


def test_a_watch_shows_what_changes_and_leaves_the_terminal_as_it_was(cluster: Cluster) -> None:
    cluster.join("first", "--nnodes", "1:2")
    cluster.await_round(1)
    watch = (BIN / "nodeclient", "status", "--coord", cluster.coordinator.endpoint, "--watch", cluster.job)
    with on_terminal(*watch, columns=90, rows=20) as terminal:
        text = terminal.await_text("running for")
        assert re.match(rf"{TITLE}\n\njob {cluster.job}  running for ", text)
        assert terminal.screen.modes == {"?1049"}, "another screen, without a cursor, and without wrapping"
        second = cluster.join("second", "--nnodes", "1:2")
        terminal.await_text(r"\n  second +\S+ +\S+ +running ")
        second.process.kill()
        text = terminal.await_text(r"round 3, world size 1, ")
        assert re.search(r"\n  second +\S+ +- +lost ", terminal.await_text(r"running for \d"))
        terminal.type("\x03")
        assert terminal.wait() == 130
        check_clean(terminal)


def test_a_watch_fills_the_terminal_and_follows_its_size() -> None:
    job = a_job(*(a_node(f"gpu{number}") for number in range(100)))
    with watching(job, "mnist", rows=12) as terminal:
        lines = terminal.await_text("more nodes").splitlines()
        assert len(lines) == 12
        assert lines[-1] == "  and 94 more nodes: 94 running"
        terminal.resize(60, 30)
        lines = terminal.await_text("and 76 more nodes").splitlines()
        assert len(lines) == 30
        assert max(map(len, lines)) <= 60
        terminal.resize(40, 4)
        assert len(terminal.await_text("and . more lines").splitlines()) == 4
        terminal.type("q")
        assert terminal.wait() == 0
        check_clean(terminal)


@pytest.mark.parametrize("columns", [80, 81])  # words of one letter: one of the two is filled
def test_a_line_as_wide_as_the_terminal_is_seen_to_its_end(columns: int) -> None:
    reason = " ".join("abcdefghijklmnopqrstuvwxyz" * 5)
    with watching(a_job(reason=reason), "mnist", columns=columns) as terminal:
        text = terminal.await_text("no nodes")
        assert reason in re.sub(r"\s+", " ", text)
        terminal.type("q")
        assert terminal.wait() == 0


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP])
def test_a_watch_that_is_ended_by_a_signal_leaves_the_terminal_as_it_was(signum: signal.Signals) -> None:
    with watching(a_job(), "mnist") as terminal:
        terminal.await_text("no nodes")
        terminal.program.signal(signum)
        assert terminal.wait() == 128 + signum
        check_clean(terminal)


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash, whose job control this is about")
def test_a_watch_that_is_put_aside_gives_the_terminal_back_for_so_long(tmp_path: Path) -> None:
    script = tmp_path / "shell"
    with canned(packed(a_job())) as (endpoint, _):
        script.write_text(
            f"set -m\nnodeclient status --coord {endpoint} --watch mnist\necho put aside; read x; fg; exit"
        )
        with on_terminal(shutil.which("bash") or "", "--norc", script) as terminal:
            terminal.await_text("no nodes")
            terminal.type("\x1a")
            assert "no nodes" not in terminal.await_text("put aside")
            assert terminal.screen.modes == {"?25", "?7"}
            terminal.type("\n")
            terminal.await_text("no nodes")
            assert terminal.screen.modes == {"?1049"}
            terminal.type("q")
            terminal.wait()
            assert terminal.screen.modes == {"?25", "?7"}


def test_a_watch_outlives_the_coordinator(own_coordinator: Callable[..., Coordinator], tmp_path: Path) -> None:
    coordinator = own_coordinator(state_dir=tmp_path)
    with Cluster(coordinator, "mnist") as cluster:
        cluster.join("a", "--nnodes", "1")
        cluster.await_round(1)
        with on_terminal(BIN / "nodeclient", "status", "--coord", coordinator.endpoint, "--watch") as terminal:
            terminal.await_text("job mnist  running")
            coordinator.stop()
            text = terminal.await_text(r"^no answer for \d+s: 127\.0\.0\.1:\d+: Connection refused")
            assert "job mnist  running" in text, "what was known is still shown"
            own_coordinator(state_dir=tmp_path, port=coordinator.port)
            terminal.await_text(rf"^{TITLE}\n\njob mnist  running")
            terminal.type("q")
            assert terminal.wait() == 0


@pytest.mark.parametrize("flags", [(), ("--json",)], ids=["text", "json"])
def test_a_watch_in_a_pipe_writes_a_block_at_each_change(flags: tuple[str, ...]) -> None:
    """Ages, steps and paces change each second, and are no reason for another block."""
    jobs = [
        a_job(a_node("a", steps=[step], last_seen_s=step / 10), round=number, state_s=float(step))
        for number, step in ((1, 1), (1, 2), (1, 3), (2, 4))
    ]
    with (
        canned(in_turn(*map(packed, jobs))) as (endpoint, _),
        Program(BIN / "nodeclient", "status", "--coord", endpoint, "--watch", "mnist", *flags) as watch,
    ):
        watch.await_line("round.? ?:? ?2")
        watch.signal(signal.SIGINT)
        assert watch.wait() == 130
    if flags:
        assert [json.loads(line)["jobs"][0]["round"] for line in watch.lines] == [1, 2]
    else:
        blocks = watch.output.strip().split("\n\n")
        assert len(blocks) == 2
        assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ\njob mnist  ", block) for block in blocks)
    assert "\x1b" not in watch.output


def test_jobs_that_have_ended_leave_the_screen_to_those_that_live() -> None:
    ended = [a_job(a_node("gone"), job=f"old{number}", state="failed", state_s=9.0 - number) for number in range(5)]
    live = a_job(*(a_node(f"gpu{number}") for number in range(6)))
    with watching({"jobs": [*ended, live], "drained": []}, columns=100) as terminal:
        text = terminal.await_text("and 3 more jobs that have ended")
        assert re.findall(r"(?m)^job (\S+)", text) == ["mnist", "old4", "old3"]
        assert text.count("\n  gpu") == 6
        terminal.resize(100, 12)
        text = terminal.await_text("and 5 more jobs that have ended")
        assert re.findall(r"(?m)^job (\S+)", text) == ["mnist"]
        assert (text.count("\n  gpu"), len(text.splitlines())) == (4, 12)
        terminal.type("q")
        assert terminal.wait() == 0
