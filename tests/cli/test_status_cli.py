"""`nodeclient status`: the shape that programs build on, the tables for people, errors, and `--watch`.

A watch is redrawn in place on a terminal, which is left as it was; else it writes a block at each change.
"""

import json
import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgpack
import pytest

from coordinatord.runtime import __version__
from tests.support.canned_http import a_job, a_node, body, canned, in_turn, packed
from tests.support.cluster import Cluster, Coordinator
from tests.support.commands import command_at
from tests.support.programs import BIN, Program, run
from tests.support.screens import OnTerminal, Screen, on_terminal

pytestmark = pytest.mark.slow

TITLES = ["JOB", "NODE", "HOST", "ADDRESS", "STATE", "RANKS", "STEP", "STEPPED", "LATE", "SEEN", "VERSION", "PIDS"]


def status(coordinator: Coordinator, *arguments: str) -> str:
    ended = run(BIN / "nodeclient", "status", "--coord", coordinator.endpoint, *arguments)
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout


Here = Callable[..., tuple[int, str, str]]


@pytest.fixture
def here(capsys: pytest.CaptureFixture[str]) -> Here:
    """Run `nodeclient status` within this process; return its exit code, output and errors."""

    def ask(endpoint: str, *arguments: str) -> tuple[int, str, str]:
        return (command_at(endpoint, "status", *arguments), *capsys.readouterr())

    return ask


@pytest.fixture
def printed(here: Here) -> Callable[..., str]:
    """Return what `nodeclient status` prints of jobs, into a pipe."""

    def show(*jobs: dict[str, Any]) -> str:
        with canned({"GET /v1/jobs": packed({"jobs": jobs, "drained": []})}) as (endpoint, _):
            code, text, errors = here(endpoint)
        assert (code, errors) == (0, "")
        return text

    return show


def test_status_for_programs_has_the_promised_shape(cluster: Cluster) -> None:
    cluster.join("a", "--nnodes", "1", "--nproc-per-node", "2", "--max-restarts", "3")
    cluster.await_round(2)
    cluster.await_state(state="running")
    shown = json.loads(status(cluster.coordinator, cluster.job, "--json"))
    assert shown.keys() == {"jobs"}
    [job] = shown["jobs"]
    promised = {"job", "run", "state", "reason", "round", "world_size", "restarts", "failure", "nodes"}
    assert job.keys() >= promised | {"opened_s", "state_s", "spares", "missing", "progress", "ledger", "rounds"}
    assert (job["job"], job["state"], job["round"], job["world_size"]) == (cluster.job, "running", 1, 2)
    assert job["restarts"] == {"used": 0, "max": 3, "window_s": None}
    [node] = job["nodes"]
    promised = {"node", "host", "address", "state", "reason", "group_rank", "ranks", "last_seen_s"}
    promised |= {"pids", "steps", "step_age_s", "behind", "log_dir", "drained"}
    promised |= {"release", "protocol", "kept", "late", "begun"}
    assert node.keys() == promised
    assert (node["node"], node["group_rank"], node["ranks"], node["state"]) == ("a", 0, [0, 1], "running")
    assert isinstance(node["last_seen_s"], float)
    every = json.loads(status(cluster.coordinator, "--json"))
    assert every.keys() == {"jobs", "drained", "charged", "insecure", "shared"}
    assert job["run"] in [listed["run"] for listed in every["jobs"]]


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"state": "succeeded", "round": 4}, "run r-1, last round 4, restarts 0 of 3\n"),
        (
            {"state": "forming", "round": 4},
            "run r-1, no round now, the last was 4, restarts 0 of 3, 0 nodes\n  no nodes\n",
        ),
        ({"state": "forming", "round": 0}, "run r-1, no round yet, restarts 0 of 3, 0 nodes\n  no nodes\n"),
    ],
)
def test_where_there_is_no_round_none_is_shown(facts: dict[str, Any], said: str, printed: Callable[..., str]) -> None:
    assert printed(a_job(world_size=0, **facts)).endswith(said)


def test_of_ended_jobs_among_others_a_pipe_gets_the_titles(here: Here) -> None:
    ends = [a_job(a_node("a"), job=f"old{n}", state="failed", reason="r", state_s=90.0 * n) for n in (2, 1)]
    jobs = {"jobs": [*ends, a_job(a_node("a"))], "drained": []}
    with canned({"GET /v1/jobs": packed(jobs)}) as (endpoint, _):
        _, text, _ = here(endpoint)
        _, whole, _ = here(endpoint, "--all")
    assert text.endswith("\n\njob old1  failed 1m30s ago: r\njob old2  failed 3m00s ago: r\n")
    assert text.count("restarts ") == 1
    assert whole.count("restarts ") == 3


def test_charges_are_shown_with_what_they_weigh_by_now(here: Here) -> None:
    charge = {"fault": "hang", "error": "stuck", "age_s": 500_000}
    host = {"host": "gpu7", "quarantined": "", "weight": 0.019, "charges": [charge]}
    drained = [{"node": "gpu2", "reason": "gpu2 drained by alice"}]
    with canned({"GET /v1/jobs": packed({"jobs": [], "drained": drained, "charged": [host]})}) as (endpoint, _):
        _, text, _ = here(endpoint)
    assert "\nkept out of jobs; to let one in: nodeclient undrain NAME\n  gpu2: drained by alice\n" in text
    assert "charged with failures; to clear one: nodeclient pardon HOST\n  gpu7: charged with hang (stuck) 5d" in text
    assert "ago, which weighs 0.019 by now" in text


def test_status_in_a_pipe_is_a_table_with_a_line_for_each_node(cluster: Cluster) -> None:
    cluster.join("node-with-a-long-name", "--nnodes", "1", "--nproc-per-node", "2")
    round_ = cluster.await_round(2)
    cluster.await_state(state="running")
    title, facts, *others, header, row = status(cluster.coordinator, cluster.job).splitlines()
    assert re.match(rf"job {cluster.job}  running for \d+s in round 1: all workers are started", title)
    assert re.fullmatch(r"  run \S+, round 1, world size 2, restarts 0 of 0, 1 node", facts)
    assert all(line.startswith("  ") for line in others)
    assert header.split() == [*TITLES, "REASON"]
    assert row.split(maxsplit=12)[:2] == [cluster.job, "node-with-a-long-name"]
    *shown, seen, version, pids, reason = row.split(maxsplit=12)[4:]
    assert pids == ",".join(str(worker.pid) for worker in round_.workers)
    assert (shown, version, reason) == (["running", "0-1", "-", "-", "-"], __version__, "its workers are running")
    assert re.fullmatch(r"\d+s", seen), "on a busy machine a heartbeat may be a second old"
    assert header.index("ADDRESS") == row.index("127.0.0.1")


@pytest.mark.parametrize("job", ["team/mnist", "..", "%2F", "ä", "my job"])
def test_status_finds_a_job_of_any_name(job: str, here: Here) -> None:
    path = {"team/mnist": "team%2Fmnist", "..": "%2E%2E", "%2F": "%252F", "ä": "%C3%A4", "my job": "my%20job"}[job]
    with canned({f"GET /v1/jobs/{path}": packed(a_job(job=job))}) as (endpoint, _):
        _, shown, _ = here(endpoint, job, "--json")
    assert [listed["job"] for listed in json.loads(shown)["jobs"]] == [job]


def test_the_next_address_is_asked_where_one_is_no_coordinator(coordinator: Coordinator, here: Here) -> None:
    with canned(body(b"<html>", 404)) as (strange, asked):
        code, shown, errors = here(f"127.0.0.1:1,{strange},{coordinator.endpoint}", "--json")
    assert (code, errors, asked) == (0, "", ["GET /healthz"])
    assert "jobs" in json.loads(shown)


@pytest.mark.parametrize("arguments", [(), ("mnist",)])
@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"<html>",
        json.dumps({"jobs": [1]}).encode(),
        msgpack.packb({"jobs": [1]}),
        msgpack.packb({"jobs": 1}),
        msgpack.packb([1]),
        msgpack.packb({"jobs": [{"job": "mnist"}]}),
        msgpack.packb({"jobs": [{"job": "mnist", "restarts": 3}]}),
        msgpack.packb({"jobs": [a_job(a_node("a", last_seen_s=float("nan")))]}),
        msgpack.packb({"jobs": [a_job(round=-1)]}),
        msgpack.packb({"jobs": [a_job(a_node("a", ranks=["0"]))]}),
        b"\x91" * 5_000,
    ],
    ids=lambda answer: repr(answer)[:30],
)
def test_an_answer_that_is_no_list_of_jobs_is_said_in_one_line(
    answer: bytes, arguments: tuple[str, ...], here: Here
) -> None:
    with canned(body(answer)) as (endpoint, _):
        code, shown, errors = here(endpoint, *arguments)
    assert (code, shown, errors.count("\n")) == (69, "", 1), errors
    assert errors.startswith("nodeclient: ")
    assert "coordinatord" in errors


def test_what_a_coordinator_says_cannot_move_the_cursor(here: Here) -> None:
    evil = "a\x1b[2J\x1b]0;owned\x07\r\nroot\u202e"
    job = a_job(a_node(evil, reason=evil, host=evil), reason=evil, missing={"count": 1, "nodes": [evil]})
    said = {"jobs": [job], "drained": [{"node": evil, "reason": evil}]}
    refusal = {"error": "no", "message": evil}
    with canned({"GET /v1/jobs": packed(said), "GET /v1/jobs/mnist": packed(refusal, 409)}) as (endpoint, _):
        for arguments in ((), ("mnist",)):
            code, shown, errors = here(endpoint, *arguments)
            assert (code, shown, errors[:-1].isprintable()) == (69, "", True)


def test_status_whose_reader_has_gone_ends_without_a_word(coordinator: Coordinator) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    program = Program(BIN / "nodeclient", "status", "--coord", coordinator.endpoint, stdout=writing, stderr=-1)
    try:
        errors = program.process.stderr
        assert errors is not None
        assert program.wait() == 141
        with errors:
            assert errors.read() == ""
    finally:
        os.close(writing)
        program.close()


def a_large_job(**facts: Any) -> dict[str, Any]:
    """Return a job of 1,000 nodes of which one is behind, one is silent and one is drained."""
    nodes = [
        a_node(f"gpu{number}", ranks=list(range(8 * number, 8 * number + 8)), steps=[90]) for number in range(1_000)
    ]
    nodes[500] |= {"steps": [90, 70], "step_age_s": 30.0, "behind": 20}
    nodes[600] |= {"state": "silent", "reason": "disconnected"}
    nodes[700]["drained"] = True
    return a_job(*nodes, **facts)


def test_of_a_thousand_nodes_those_come_first_on_a_terminal_that_want_a_look(printed: Callable[..., str]) -> None:
    lines = on_screen(a_large_job(), columns=100, rows=40).text.splitlines()
    assert len(lines) < 40
    assert lines[2].split() == ["NODE", "ADDRESS", "STATE", "RANKS", "STEP", "STEPPED", "SEEN", "REASON"]
    assert [line.split()[0] for line in lines[3:7]] == ["gpu500", "gpu600", "gpu700", "gpu0"]
    assert lines[3].split()[4] == "70-90(-20)"
    assert lines[4].split()[2] == "silent"
    assert lines[5].split()[2] == "running,drained"
    assert lines[-1] == "  and 976 more nodes: 976 running (--all shows them)"
    with (
        canned({"GET /v1/jobs": packed({"jobs": [a_large_job()], "drained": []})}) as (endpoint, _),
        on_terminal(BIN / "nodeclient", "status", "--coord", endpoint, "--all", columns=100, rows=40) as terminal,
    ):
        assert "gpu999" in terminal.await_text("gpu999")
        assert terminal.wait() == 0
    assert len(printed(a_large_job()).splitlines()) == 1_003


def on_screen(*jobs: dict[str, Any], flags: tuple[str, ...] = (), **terminal_facts: Any) -> Screen:
    """Return the screen of a terminal after `nodeclient status` with these jobs."""
    with (
        canned({"GET /v1/jobs": packed({"jobs": jobs, "drained": []})}) as (endpoint, _),
        on_terminal(BIN / "nodeclient", "status", "--coord", endpoint, *flags, **terminal_facts) as terminal,
    ):
        assert terminal.wait() == 0
    return terminal.screen


@pytest.mark.parametrize(
    ("nodes", "title", "flags", "cells"),
    [
        ([{"release": None, "protocol": 4}, {"release": "0.2.0"}], "VERSION", (), ["protocol-4", "0.2.0"]),
        ([{"release": "0.2.0"}, {"release": "0.2.0"}], "VERSION", (), None),
        ([{"pids": [4_711, 0]}, {}], "PIDS", ("--all",), ["4711,0", "-"]),
        ([{"pids": [4_711, 0]}, {}], "PIDS", (), None),
    ],
)
def test_versions_are_shown_where_they_differ_and_pids_on_request(
    nodes: list[dict[str, Any]], title: str, flags: tuple[str, ...], cells: list[str] | None
) -> None:
    job = a_job(*(a_node(name, **facts) for name, facts in zip("ab", nodes, strict=True)))
    titles, *rows = [line.split() for line in on_screen(job, flags=flags, columns=120).text.splitlines()[2:] if line]
    assert (title in titles) == (cells is not None)
    assert cells is None or [row[titles.index(title)] for row in rows] == cells


def test_a_straggler_comes_first_with_what_it_lacks() -> None:
    job = a_large_job(progress={"step": 70, "steps_per_s": 3.0})
    job["nodes"][400] |= {"steps": [53], "behind": 37}
    lines = on_screen(job, columns=120, rows=40).text.splitlines()
    first = next(index for index, line in enumerate(lines) if line.split()[0] == "NODE")
    assert [line.split()[0] for line in lines[first + 1 : first + 3]] == ["gpu400", "gpu500"]
    assert "53(-37)" in lines[first + 1]


def test_in_a_pipe_each_cell_but_the_reason_is_one_word(here: Here) -> None:
    late = {"rank": 0, "last": 0.3, "late_s": 0.00107}
    node = a_node("a", steps=[53], step_age_s=1.0, behind=37, late=late, drained=True, release="0.2.0", pids=[4_711, 0])
    with canned(packed({"jobs": [a_job(node)]})) as (endpoint, _):
        _, shown, _ = here(endpoint)
    titles, row = (line.split(maxsplit=len(TITLES)) for line in shown.splitlines()[-2:])
    cells = dict(zip(titles, row, strict=True))
    assert (cells["STEP"], cells["LATE"], cells["PIDS"]) == ("53(-37)", "30%,1.07ms", "4711,0")
    assert cells["REASON"] == "its workers are running"


LEDGER = {"seconds": {"training": 80.0, "redone": 12.0}, "total": 100.0, "goodput": 0.8}
RESUMED = {"step": 60, "resumed": 40, "resumed_from": "node b's memory", "redone": 3, "redone_at_least": True}
ON_DISK = "stopped by ann@gpu1; step 4,660 is on the disk"
BEGUN = {"in_place": 0, "warm": 2, "cold": 0, "why_not": "", "why_cold": ""}
STARTED = "all workers are started: 2 warm (formed of nodes b, a; resumes at step 40 from node b's memory)"
REFUSED = "node a: cudaHostRegister has refused 1.0 GB: out of memory"
SAVED = {"interval_steps": 128, "save_s": 0.0125}

FACTS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "steps done again": (
        {"ledger": LEDGER, "kept": RESUMED, "opened_s": 100.0},
        [
            "80.0 % of the run's 1m40s spent training, 12s went into steps done again",
            "resumed at step 40 from node b's memory, at least 3 steps redone; step 60 is whole in memory",
        ],
    ),
    "the step to resume from": (  # as with DDP: no newer step is saved before the round breaks
        {"kept": RESUMED | {"step": 40, "disk_step": 30, "unkept": "the state of SGD"}},
        [
            (
                "resumed at step 40 from node b's memory, at least 3 steps redone; not kept: the state of SGD; "
                "step 30 is on the disk"
            )
        ],
    ),
    "a step in several places": (
        {"kept": RESUMED | {"copied": 60, "disk_step": 60}},
        ["step 60 ", "step 60 is whole in memory and outlives any host and is on the disk\n"],
    ),
    "the step on the disk": (
        {"state": "stopped", "reason": ON_DISK, "progress": {"step": 4_660}, "kept": {"disk_step": 4_660}},
        ["step 4,660 is on the disk", "\n  step 4,660\n"],
    ),
    "the start of a round": (
        {"reason": STARTED, "kept": RESUMED | SAVED, "begun": BEGUN, "round": 3, "world_size": 2, "state_s": 537.0},
        [
            f"job mnist  running for 8m57s in round 3: {STARTED}\n",
            "round 3, world size 2, ",
            "40 from node b's memory",
            "saved in memory every 128 steps (12.5ms)",
        ],
    ),
    "slow saves": (
        {"kept": SAVED | {"pageable": REFUSED}},
        [f"every 128 steps (12.5ms); saves are slow, since their memory is not page-locked: {REFUSED}\n"],
    ),
    "slow saves without an interval": (
        {"kept": {"pageable": REFUSED}},
        [f"\n  saves are slow, since their memory is not page-locked: {REFUSED}\n"],
    ),
    "a step after which nobody knows how many were done": (
        {"kept": RESUMED | {"redone": 0}},
        ["at step 40 from node b's memory, an unknown number of steps redone; "],
    ),
    "a young run without steps": (
        {"ledger": {"seconds": {"running": 299.0}, "total": 300.0}},
        ["\n  workers ran for 4m59s, no step reported yet\n"],
    ),
    "a run without steps": (
        {"ledger": {"seconds": {"running": 300.0}, "total": 301.0}},
        ["\n  workers ran for 5m00s, goodput not known: no steps reported\n"],
    ),
    "the age of a run": ({"reason": "r", "state_s": 90.0}, ["job mnist  running for 1m30s in round 1: r\n"]),
    "that no worker is seen": ({"unseen": "a hang would not be noticed"}, ["\n  a hang would not be noticed\n"]),
    "the end of a run": ({"state": "left", "reason": "r", "state_s": 90.0}, ["job mnist  left 1m30s ago: r\n"]),
}


@pytest.mark.parametrize(("facts", "told"), FACTS.values(), ids=FACTS)
def test_a_fact_is_told_once(facts: dict[str, Any], told: list[str], printed: Callable[..., str]) -> None:
    shown = printed(a_job(a_node("a"), a_node("b"), **facts))
    assert {text: shown.count(text) for text in told} == dict.fromkeys(told, 1)


def test_lost_nodes_stay_in_the_table_and_earlier_runs_in_a_line(printed: Callable[..., str]) -> None:
    loss = {"host": "gpu", "reason": "silent for its whole lease", "round": 4, "lost_s": 125.0}
    early = {"run": "e-1", "state": "failed", "reason": "r", "step": 500, "opened_s": 70.0, "ended_s": 3_800.0}
    lost = [{"node": f"gpu{number}", **loss} for number in range(2, 12)]
    job = a_job(
        a_node("gpu1"),
        state="forming",
        round=4,
        world_size=0,
        lost=lost,
        earlier=[early | {"goodput": 0.5, "exit_code": 1}],
    )
    lines = on_screen(job, columns=140, rows=40).text.splitlines()
    assert any("no round now, the last was 4" in line for line in lines)
    assert "  before: run e-1 failed 1h03m ago at step 500, after 1m10s" in lines
    row = next(line.split() for line in lines if line.split()[:1] == ["gpu2"])
    assert " ".join(row[-12:]) == "2m05s lost 2m05s ago, in round 4: silent for its whole lease"
    assert "lost" in row
    assert "  and 2 more nodes: 2 lost (--all shows them)" in lines
    assert sum(" lost " in line for line in printed(job).splitlines()) == 10


def test_a_node_that_may_not_join_has_a_row_that_says_why(printed: Callable[..., str]) -> None:
    why = "gpu2 drained by alice; to let it in: nodeclient undrain gpu2"
    refused = [{"node": "gpu2", "host": "gpu2", "reason": why, "refused_s": 3.0}]
    for job in (a_job(a_node("gpu1"), refused=refused), a_job(refused=refused)):
        [row] = [line for line in printed(job).splitlines() if "gpu2" in line.split()[:2]]
        assert " refused " in row
        assert row.endswith(f"asks to be let in: {why}")


def test_a_job_that_stands_says_so_in_its_state_s_place() -> None:
    reason = "no step for 1 min 15 s (usually 0.06 s); rank 1 on node b is behind, by 1"
    nodes = (a_node("a", steps=[12], step_age_s=75.0), a_node("b", steps=[11], step_age_s=75.0, ranks=[1]))
    job = a_job(*nodes, health="stalled", reason=reason, state_s=90.0, progress={"step": 11, "steps_per_s": None})
    lines = on_screen(job, columns=120, rows=40).text.splitlines()
    assert f"job mnist  stalled: {reason}" in lines


@pytest.mark.parametrize("columns", [30, 200])
def test_a_table_fits_the_terminal(columns: int) -> None:
    node = a_node("gpu1.cluster.example.org-a1b2c3", host="gpu1.cluster.example.org", address="fd00::1234:5678")
    job = a_job(node, reason="many words " * 20, state="failed")
    screen = on_screen(job, columns=columns)
    lines = screen.text.splitlines()
    assert max(map(len, lines)) <= columns
    assert screen.text.count("many") == 20
    assert "running" in lines[-1]
    assert screen.colours == {"2", "31"}


@pytest.mark.parametrize("environ", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_no_colour_where_it_is_not_wanted(environ: dict[str, str]) -> None:
    screen = on_screen(a_job(a_node("a"), state="failed"), environ=environ)
    assert "failed" in screen.text
    assert not screen.colours


def jobs_of_a_week() -> list[dict[str, Any]]:
    """Return jobs as a coordinator has them: the oldest first, and only the last but one lives."""
    ended = [a_job(job=f"old{number}", state="succeeded", state_s=900.0 - number) for number in range(4)]
    live = a_job(*(a_node(f"gpu{number}") for number in range(4)), job="live", state_s=1_000.0)
    return [*ended, live, a_job(job="new", state="stopped", state_s=800.0)]


def test_jobs_that_live_come_first_and_then_on_a_terminal_the_last_few_that_have_ended(
    printed: Callable[..., str],
) -> None:
    few = on_screen(*jobs_of_a_week()).text.rstrip()
    assert re.findall(r"(?m)^job (\S+)", few) == ["live", "new", "old3", "old2"]
    assert few.endswith("\n\nand 2 more jobs that have ended (--all shows them)")
    every = ["live", "new", "old3", "old2", "old1", "old0"]
    for whole in (on_screen(*jobs_of_a_week(), flags=("--all",)).text, printed(*jobs_of_a_week())):
        assert re.findall(r"(?m)^job (\S+)", whole) == every
        assert "more job" not in whole


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
