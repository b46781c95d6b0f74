"""`nodeclient drain`, `undrain`, `stop`, `restart`, `forget`: each does its work, reports it, and is in the events."""

import json
import os
import socket
from collections.abc import Callable

import pytest

from tests.support.canned_http import Answer, a_job, body, break_off, canned, hang_up, packed
from tests.support.cluster import Cluster, Coordinator
from tests.support.commands import command_at
from tests.support.programs import BIN, clean_environ, run

pytestmark = pytest.mark.slow


def test_a_drained_node_saves_leaves_is_replaced_and_kept_out_until_it_is_undrained(
    own_coordinator: Callable[..., Coordinator], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator = own_coordinator()
    monkeypatch.setenv("LOGNAME", "alice")

    def ask(verb: str, *arguments: str) -> str:
        assert command_at(coordinator.endpoint, verb, *arguments) == 0
        said, errors = capsys.readouterr()
        assert errors == ""
        return said.rstrip("\n")

    def reasons(kind: str) -> list[str]:
        printed = map(json.loads, ask("events", "--json").splitlines())
        return [event["reason"] for event in printed if event["kind"] == kind]

    drained = f"a drained by alice@{socket.gethostname()}: bad fan"
    with Cluster(coordinator, "mnist") as mnist:
        a, _ = mnist.join_all("ab", "--nnodes", "2")
        first = mnist.await_round(2)
        c = mnist.join("c", "--nnodes", "2")
        mnist.await_state(state="running", spares=1)
        assert ask("drain", "a", "b", "c", "--dry-run").endswith("no node is left then, so the job ends")
        [said] = ask("drain", "a", "--reason", "bad fan").splitlines()
        assert "will leave job mnist: round 1 is being stopped" in said
        a.await_event("saved")
        assert a.wait() == 143
        assert sorted(mnist.await_round(2, first).nodes) == ["b", "c"]
        assert ask("drain", "a") == f"nothing to do: {drained}"
        assert reasons("NodeDrained") == [drained]
        assert f"\n  {drained.replace(' ', ': ', 1)}\n" in ask("status") + "\n"
        again = mnist.join("a", "--nnodes", "2")
        again.await_line("drained")
        assert ask("undrain", "a") == "a may join again. If its nodeclient has ended, start it again"
        assert ask("undrain", "a") == "a is not drained (nothing is)"
        assert len(reasons("NodeUndrained")) == 1
        assert c.process.poll() is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody who has no name")
def test_a_person_without_a_name_is_named_by_number() -> None:
    script = "import os, pwd; from nodeclient.operate.admin_commands import person; os.setuid(54321); print(person())"
    names = {"LOGNAME", "USER", "LNAME", "USERNAME"}
    environ = {name: value for name, value in clean_environ().items() if name not in names}
    ended = run(BIN / "python", "-c", script, environ=environ)
    assert ended.stdout == f"uid54321@{socket.gethostname()}\n"


@pytest.mark.parametrize(
    ("answer", "code", "words"),
    [
        (packed({"error": "refused", "message": "it lives"}, 409), 77, "it lives"),
        (packed({"error": "cannot_record", "message": "the disk is full"}, 503), 75, "the disk is full"),
        (packed({"error": "busy", "message": "too many"}, 503), 75, "too many"),
        (packed({"error": "malformed", "message": "what?"}, 400), 64, "what?"),
        (packed({"error": "unknown_job", "message": "no"}, 404), 69, "did you mean 'mnist'?"),
        (body(b"no such page", 404), 69, "answers with HTTP 404, not as a coordinatord does"),
        (body(b"<html>"), 69, "does not answer as a coordinatord does, so it is not known whether it was done"),
        (packed({"done": True}), 69, "answer: missing field `message`"),
        (packed([]), 69, "answer: expected an object, not a list"),
        (hang_up, 69, "so it is not known whether it was done: see nodeclient events"),
    ],
)
def test_each_refusal_has_its_exit_code(
    answer: Answer, code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = packed({"jobs": [a_job(job="mnist")], "drained": []})
    with canned({"POST /v1/jobs/mnis/restart": answer, "GET /v1/jobs": jobs}) as (endpoint, asked):
        assert command_at(endpoint, "restart", "mnis") == code
    out, errors = capsys.readouterr()
    assert (out, errors.count("\n")) == ("", 1)
    assert words in errors
    assert asked.count("POST /v1/jobs/mnis/restart") == 1


@pytest.mark.parametrize("command", [("restart", "mnist"), ("drain", "a")])
def test_an_answer_has_its_lines_and_cannot_move_the_cursor(
    command: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    with canned(packed({"done": True, "message": "done\x1b[2J\x9b2J\nin two jobs"})) as (endpoint, _):
        assert command_at(endpoint, *command) == 0
    assert capsys.readouterr() == ("done [2J 2J\nin two jobs\n", "")


@pytest.mark.parametrize("answer", [hang_up, body(b"<html>Gateway Timeout", 504), break_off])
def test_a_command_is_sent_once_though_there_are_other_addresses(
    answer: Answer, capsys: pytest.CaptureFixture[str]
) -> None:
    with canned(answer) as (first, asked), canned(answer) as (second, others):
        assert command_at(f"127.0.0.1:1,{first},{second}", "restart", "mnist") == 69
    sent = "POST /v1/jobs/mnist/restart"
    assert (asked.count(sent), others.count(sent)) == (1, 0)
    errors = capsys.readouterr().err
    assert first in errors
    assert "so it is not known whether it was done: see nodeclient events" in errors


def test_a_link_to_the_page_changes_nothing_so_the_next_coordinator_is_asked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    link = packed({"code": "x", "valid_s": 60.0, "role": "admin"})
    with canned(hang_up) as (first, asked), canned({"POST /v1/page/link": link}) as (second, _):
        assert command_at(first, "page") == 69
        assert "is coordinatord running there?" in capsys.readouterr().err
        assert command_at(f"{first},{second}", "page") == 0
    assert capsys.readouterr().out == f"http://{second}/\n"
    assert "POST /v1/page/link" in asked


def test_the_first_trouble_of_several_nodes_is_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    answers = {
        "POST /v1/nodes/a/undrain": packed({"done": True, "message": "a is back"}),
        "POST /v1/nodes/b/undrain": packed({"error": "cannot_record", "message": "the disk is full"}, 503),
        "POST /v1/nodes/c/undrain": packed({"error": "refused", "message": "not now"}, 409),
        "POST /v1/nodes/d/undrain": packed({"done": False, "message": "d was back"}),
    }
    with canned(answers) as (endpoint, _):
        assert command_at(endpoint, "undrain", "a", "b", "c", "d") == 75
    assert capsys.readouterr() == ("a is back\nd was back\n", "nodeclient: the disk is full\nnodeclient: not now\n")


def test_of_a_name_that_nobody_has_only_a_drain_says_how_it_is_kept_out(capsys: pytest.CaptureFixture[str]) -> None:
    with canned(packed({"error": "unknown_node", "message": "no job has a node 'x'"}, 404)) as (endpoint, _):
        for verb, flag in (("drain", " (--ahead)"), ("quarantine", "")):
            assert command_at(endpoint, verb, "x") == 69
            assert capsys.readouterr() == ("", f"nodeclient: no job has a node 'x'{flag}\n")


@pytest.mark.parametrize(
    ("verb", "states", "code", "said"),
    [
        ("stop", ["failed", "running", "stopped"], 0, "done with job1"),
        ("restart", ["failed", "running", "stopped"], 0, "done with job1"),
        ("stop", ["succeeded"], 0, "done with job0"),
        ("stop", ["failed", "forming", "running"], 64, "there are 2 jobs that have not ended, name one: job2, job1"),
        ("stop", ["failed", "stopped"], 64, "no job runs now, and 2 have ended, name one: job1, job0"),
        ("forget", ["failed", "running"], 64, "there are 2 jobs, name one: job1, job0"),
        ("report", ["failed", "running"], 64, "there are 2 jobs, name one: job1, job0"),
        ("stop", [], 69, "the coordinator knows no job: nodeclient join starts one"),
    ],
)
def test_which_job_is_meant_where_none_is_named(
    verb: str, states: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = [a_job(job=f"job{number}", state=state, state_s=9 - number) for number, state in enumerate(states)]
    answers = {
        f"POST /v1/jobs/job{number}/{verb}": packed({"done": True, "message": f"done with job{number}"})
        for number in range(len(states))
    }
    with canned({"GET /v1/jobs": packed({"jobs": jobs, "drained": []}), **answers}) as (endpoint, _):
        assert command_at(endpoint, verb) == code
    assert capsys.readouterr() == ((f"{said}\n", "") if code == 0 else ("", f"nodeclient: {said}\n"))
