"""`nodeclient events`: what happened, as lines and as JSON, and what comes, across a restart of the coordinator."""

import json
import re
import signal
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from tests.support.canned_http import Answer, body, canned, hang_up, in_turn, packed, stream
from tests.support.cluster import Cluster, Coordinator
from tests.support.commands import command_at
from tests.support.programs import BIN, Program, kill_quietly, run

pytestmark = pytest.mark.slow

EVENT = {
    "id": "0a-1",
    "number": 1,
    "at": 1e9,
    "job": "m",
    "run": "r",
    "kind": "K",
    "what": "w",
    "round": 1,
    "node": None,
    "reason": "x",
}


def listed(*printed: Any, upto: str = "0a-1") -> Answer:
    """Answer with these events."""
    return packed({"job": "m", "events": printed, "upto": upto})


UNKNOWN = packed({"error": "unknown_job", "message": "no such job"}, 404)
"""It also ends the following of a job."""

TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ"


def events(coordinator: Coordinator, *arguments: str) -> str:
    ended = run(BIN / "nodeclient", "events", "--coord", coordinator.endpoint, *arguments)
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout


def test_events_say_what_happened_when_and_why(cluster: Cluster) -> None:
    cluster.join("a", "--nnodes", "1", "--max-restarts", "1")
    first = cluster.await_round(1)
    cluster.await_state(state="running")
    kill_quietly(first.workers[0].pid, signal.SIGUSR2)
    cluster.await_round(1, first)
    run_id = cluster.await_state(state="running", round=2)["run"]
    lines = events(cluster.coordinator, cluster.job).splitlines()
    assert re.fullmatch(rf"{TIME}  run opened  +run {run_id}: opened by node a", lines[0])
    assert re.fullmatch(rf"{TIME}  node joined  +a: host \S+ at 127.0.0.1 with 1 worker", lines[1])
    assert re.fullmatch(rf"{TIME}  round formed +round 1  +formed of .*", lines[2])
    assert any(re.fullmatch(rf"{TIME}  round stopped +round 1  +.*exit code 17.*", line) for line in lines)
    printed = [json.loads(line) for line in events(cluster.coordinator, cluster.job, "--json").splitlines()]
    assert len(printed) == len(lines)
    assert printed[2].keys() == {"id", "number", "at", "job", "run", "kind", "what", "round", "node", "reason"}
    assert [event["kind"] for event in printed[:3]] == ["RunOpened", "NodeJoined", "RoundFormed"]
    assert sorted(event["number"] for event in printed) == [event["number"] for event in printed]
    every = events(cluster.coordinator).splitlines()
    assert any(re.match(rf"{TIME}  {cluster.job} +run opened  ", line) for line in every)


def test_a_long_name_of_a_job_widens_the_column_for_nobody_else(capsys: pytest.CaptureFixture[str]) -> None:
    printed = [{**EVENT, "job": name} for name in ("mnist", "x" * 128)]
    with canned(listed(*printed)) as (endpoint, _):
        assert command_at(endpoint, "events") == 0
    short, long = capsys.readouterr().out.splitlines()
    assert "  mnist  w  " in short
    assert f"  {'x' * 128}  w  " in long


@pytest.mark.parametrize(
    ("node", "reason", "shown"),
    [
        ("a", "replaced by a younger nodeclient with the same node id, from 10.0.0.5", "a: replaced by a younger"),
        ("gpu1", "host gpu10 at 10.0.0.1 with 8 workers", "gpu1: host gpu10"),
        ("gpu1", "host gpu1 at 10.0.0.1 with 8 workers", "host gpu1 at"),
        ("gpu1", "gpu1 drained by ana", "gpu1 drained"),
        ("gpu1", "all workers of node gpu1 succeeded", "all workers of node gpu1"),
        (None, "formed of nodes a, b", "formed of"),
    ],
)
def test_an_event_says_which_node_it_is_about_and_says_it_once(
    node: str | None, reason: str, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with canned(listed({**EVENT, "node": node, "reason": reason})) as (endpoint, _):
        assert command_at(endpoint, "events") == 0
    assert f"  {shown}" in capsys.readouterr().out


def test_whoever_follows_misses_nothing_over_a_restart_of_the_coordinator(
    own_coordinator: Callable[..., Coordinator], tmp_path: Path
) -> None:
    coordinator = own_coordinator(state_dir=tmp_path)
    follow = (BIN / "nodeclient", "events", "--follow", "--json", "--coord", coordinator.endpoint, "mnist")
    with Cluster(coordinator, "mnist") as cluster:
        cluster.join("a", "--nnodes", "1", "--max-restarts", "3")
        first = cluster.await_round(1)
        with Program(*follow) as follower:
            follower.await_line("all workers are started")
            coordinator.stop()
            follower.await_line("trying again")
            again = own_coordinator(state_dir=tmp_path, port=coordinator.port)
            again.await_job("mnist", state="running")
            kill_quietly(first.workers[0].pid, signal.SIGUSR2)
            cluster.await_round(1, first)
            again.await_job("mnist", state="running", round=2)
            follower.await_line("all workers are started .*failed in round 1")
            follower.signal(signal.SIGINT)
            assert follower.wait() == 130
            [complaint] = [line for line in follower.lines if line.startswith("nodeclient: ")]
            assert complaint.endswith("; trying again")
            said = [line for line in follower.lines if line != complaint]
            assert said == events(again, "--json", "mnist").splitlines()


def test_whoever_follows_gives_back_the_last_id_as_it_came(capsys: pytest.CaptureFixture[str]) -> None:
    given: list[str | None] = []

    def note(handler: BaseHTTPRequestHandler) -> None:
        given.append(handler.headers["Last-Event-ID"])
        answers[len(given) - 1](handler)

    answers = [listed(EVENT, upto="c!7"), *(stream({**EVENT, "id": event_id}) for event_id in ("b--9", "a-7"))]
    with canned(in_turn(*[note] * len(answers), UNKNOWN)) as (endpoint, _):
        assert command_at(endpoint, "events", "--follow", "m") == 0
    assert given == [None, "c!7", "b--9"]
    assert capsys.readouterr().out.count("\n") == len(answers), "a smaller number is no older event"


def test_whoever_follows_hears_of_what_happened_while_nobody_answered(capsys: pytest.CaptureFixture[str]) -> None:
    """The age and the number narrow how it begins: what comes later is new, however late it is told."""
    with canned(in_turn(listed(), hang_up, stream(EVENT), UNKNOWN)) as (endpoint, asked):
        flags = ("--since", "5", "--last", "1", "--kind", "node-lost")
        assert command_at(endpoint, "events", "--follow", *flags, "m") == 0
    begun, *followed = asked
    assert begun == "GET /v1/jobs/m/events?last=1&since=5.0&kind=node-lost"
    assert followed == ["GET /v1/jobs/m/events?kind=node-lost"] * 3
    said = capsys.readouterr()
    assert said.out.count("\n") == 1
    *outages, forgotten = said.err.splitlines()
    assert [outage.endswith("; trying again") for outage in outages] == [True, True]
    assert forgotten == "nodeclient: the coordinator no longer knows job m"


def test_who_follows_a_job_that_is_forgotten_ends_well_without_another_try(capsys: pytest.CaptureFixture[str]) -> None:
    forgotten = stream({**EVENT, "kind": "JobForgotten"})
    with canned(in_turn(listed(), forgotten, UNKNOWN)) as (endpoint, asked):
        assert command_at(endpoint, "events", "--follow", "m") == 0
    assert len(asked) == 2
    assert capsys.readouterr().err == ""


def test_an_error_that_lasts_ends_the_following(capsys: pytest.CaptureFixture[str]) -> None:
    refused = packed({"error": "denied", "message": "the token was revoked"}, 401)
    with canned(in_turn(listed(), hang_up, stream(EVENT), refused)) as (endpoint, _):
        assert command_at(endpoint, "events", "--follow") == 77
    assert capsys.readouterr().err.splitlines()[-1] == f"nodeclient: {endpoint}: the token was revoked"


NOTHING, BROKEN_JSON = b"", b"data: {\n\n"
TOO_DEEP, TOO_LONG = b"data: " + b"[" * 100_000 + b"\n\n", b"data: " + b"x" * 300_000 + b"\n\n"


@pytest.mark.parametrize("said", [NOTHING, BROKEN_JSON, TOO_DEEP, TOO_LONG], ids=lambda said: repr(said[:40]))
@pytest.mark.usefixtures("collects_nothing")
def test_a_stream_that_breaks_off_is_said_in_one_line(said: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    with canned(in_turn(listed(), stream(said), UNKNOWN)) as (endpoint, _):
        assert command_at(endpoint, "events", "--follow", "m") == 0
    out, errors = capsys.readouterr()
    assert (out, errors.count("\n"), errors.count("; trying again\n")) == ("", 2, 1)


NO_EVENTS = (
    3,
    {**EVENT, "number": -1},
    {name: EVENT[name] for name in EVENT if name != "id"},
    {**EVENT, "id": ""},
    {**EVENT, "id": "1\r\nX-Evil: 1"},
    {**EVENT, "id": "\u00e9"},
    {**EVENT, "id": "x" * 1_000},
    {**EVENT, "at": "now"},
    {**EVENT, "reason": None},
)

ANSWERS: list[tuple[Answer, ...]] = [(hang_up,), (body(b"hello"),), (body(b"hello", 500),)]
ANSWERS += [(listed(), stream(value), UNKNOWN) for value in NO_EVENTS]


@pytest.mark.parametrize("answers", ANSWERS)
def test_what_is_no_stream_of_events_is_said_in_one_line(
    answers: tuple[Answer, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with canned(in_turn(*answers)) as (endpoint, _):
        assert command_at(endpoint, "events", "--follow", "m") == 69
    out, errors = capsys.readouterr()
    assert (out, errors.count("\n")) == ("", 1)
    assert errors.startswith("nodeclient: ")


@pytest.mark.parametrize(
    ("strange", "code", "out", "errors"),
    [
        ({"at": 1e18}, 0, "98", ""),
        ({"job": "\x1b[2J"}, 69, "", "nodeclient: the answer is not that of a coordinatord"),
        ({"node": "\x9b2J"}, 69, "", "nodeclient: the answer is not that of a coordinatord"),
        ({"reason": "a\r\nb"}, 69, "", "nodeclient: the answer is not that of a coordinatord"),
    ],
)
def test_an_event_may_be_of_another_age_and_cannot_move_the_cursor(
    strange: dict[str, object], code: int, out: str, errors: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with canned(listed({**EVENT, **strange})) as (endpoint, _):
        assert command_at(endpoint, "events") == code
    said = capsys.readouterr()
    assert (said.out[: len(out)], said.err[: len(errors)]) == (out, errors)
    assert "".join(said).count("\n") == 1
    assert "".join(said)[:-1].isprintable()
