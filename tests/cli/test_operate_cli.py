"""`nodeclient drain`, `undrain`, `stop`, `restart`, `forget`: each does its work, reports it, and is in the events."""

import json
import os
import socket
from collections.abc import Callable, Iterator

import pytest

from tests.support.canned_http import Answer, a_job, body, break_off, canned, hang_up, packed
from tests.support.cluster import Cluster, Coordinator
from tests.support.commands import command_at
from tests.support.programs import BIN, clean_environ, run

pytestmark = pytest.mark.slow

HOST = socket.gethostname()

BY = f"alice@{HOST}"


class Operator:
    """A person at a shell."""

    def __init__(self, coordinator: Coordinator, capsys: pytest.CaptureFixture[str]) -> None:
        self.coordinator = coordinator
        self._capsys = capsys

    def ask(self, verb: str, *arguments: str) -> tuple[int, str, str]:
        """Run a command within this process; return its exit code, output and errors."""
        return (command_at(self.coordinator.endpoint, verb, *arguments), *self._capsys.readouterr())

    def do(self, verb: str, *arguments: str) -> str:
        """Run a command that works, and reports it in one line; return that."""
        code, said, errors = self.ask(verb, *arguments)
        assert (code, said.count("\n"), errors) == (0, 1, "")
        return said.rstrip()

    def events(self, kind: str) -> list[str]:
        """Return the reasons of the events of a kind."""
        _, said, _ = self.ask("events", "--json")
        printed = [json.loads(line) for line in said.splitlines()]
        return [event["reason"] for event in printed if event["kind"] == kind]


@pytest.fixture
def operator(
    own_coordinator: Callable[..., Coordinator], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Operator:
    monkeypatch.setenv("LOGNAME", "alice")
    return Operator(own_coordinator(), capsys)


@pytest.fixture
def mnist(operator: Operator) -> Iterator[Cluster]:
    """Yield the job that the operator watches."""
    with Cluster(operator.coordinator, "mnist") as cluster:
        yield cluster


def test_a_drained_node_saves_leaves_is_replaced_and_kept_out_until_it_is_undrained(
    operator: Operator, mnist: Cluster
) -> None:
    a, _ = mnist.join_all("ab", "--nnodes", "2")
    first = mnist.await_round(2)
    c = mnist.join("c", "--nnodes", "2")
    mnist.await_state(state="running", spares=1)
    assert operator.ask("drain", "a", "b", "c", "--dry-run")[1].endswith("no node is left then, so the job ends\n")
    assert "will leave job mnist: round 1 is being stopped" in operator.do("drain", "a", "--reason", "bad fan")
    a.await_event("saved")
    assert a.wait() == 143
    assert sorted(mnist.await_round(2, first).nodes) == ["b", "c"]
    assert operator.do("drain", "a") == f"nothing to do: a drained by {BY}: bad fan"
    assert operator.events("NodeDrained") == [f"a drained by {BY}: bad fan"]
    assert f"\na: drained by {BY}: bad fan\n" in operator.ask("status")[1]
    again = mnist.join("a", "--nnodes", "2")
    again.await_line("drained")
    assert operator.do("undrain", "a") == "a may join again. If its nodeclient has ended, start it again"
    assert operator.do("undrain", "a") == "a is not drained (nothing is)"
    assert len(operator.events("NodeUndrained")) == 1
    assert c.process.poll() is None


def test_several_nodes_are_drained_at_once_and_such_as_are_not_there_only_ahead(
    operator: Operator, mnist: Cluster
) -> None:
    mnist.join("gpu17", "--nnodes", "1")
    mnist.await_round(1)
    code, said, errors = operator.ask("drain", "gpu71", "spare", "--reason", "moved")
    assert (code, said) == (69, "")
    assert "no job has a node or a host 'gpu71'; did you mean gpu17? To keep out one that is to come later" in errors
    assert len(errors.splitlines()) == 2
    assert "--ahead" not in operator.ask("quarantine", "gpu71")[2]
    code, said, errors = operator.ask("drain", "gpu71", "spare", "--ahead")
    assert (code, errors) == (0, "")
    first, second = said.splitlines()
    assert first == "gpu71 is in no job, and no job lets it in until it is undrained"
    assert second == "spare is in no job, and no job lets it in until it is undrained"
    assert len(operator.ask("undrain", "gpu71", "spare")[1].splitlines()) == 2


def test_a_drain_of_a_host_has_a_line_for_each_job_and_can_be_tried_first(operator: Operator, mnist: Cluster) -> None:
    with Cluster(operator.coordinator, "cifar") as other:
        for cluster in (mnist, other):
            cluster.join(f"{cluster.job}-1", "--nnodes", "1")
            cluster.await_round(1)
            cluster.await_state(state="running")
        _, tried, errors = operator.ask("drain", HOST, "--dry-run")
        assert errors == ""
        assert operator.events("NodeDrained") == []
        _, said, errors = operator.ask("drain", HOST)
        assert errors == ""
        lines = said.splitlines()
        for line, job in zip(sorted(lines), ("cifar", "mnist"), strict=True):
            assert line.startswith(f"node {job}-1 will leave job {job}: round 1 is being stopped")
        assert tried.splitlines() == [f"dry run: {line}" for line in lines]


def test_whose_workers_were_killed_before_they_had_saved_is_said_on_the_node_and_in_the_events(
    operator: Operator, mnist: Cluster
) -> None:
    node = mnist.join("a", "--stop-timeout", "0.2", script="--deaf")
    first = mnist.await_round(1)
    mnist.await_state(state="running")
    operator.do("restart", "mnist")
    node.await_line(
        r"WARNING .*rank 0 did not end within 0\.2 s and was killed, 0\.2 s after SIGTERM: .*--stop-timeout"
    )
    assert "rank 0 on node a (within 0.2 s)" in mnist.await_round(1, after=first).workers[0].reason
    [ended] = operator.events("RoundEnded")
    assert ended.startswith(f"restarted by {BY}; killed, as they had not ended in time")


def test_a_job_is_restarted_stopped_and_forgotten(operator: Operator, mnist: Cluster) -> None:
    a, b = mnist.join_all("ab", "--nnodes", "2", "--max-restarts", "1")
    first = mnist.await_round(2)
    mnist.await_state(state="running")
    said = operator.do("restart", "mnist", "--reason", "new data")
    assert said == "job mnist: round 1 is being stopped, its workers save their state, and another one follows"
    second = mnist.await_round(2, first)
    assert second.restarts == {0}, "it was planned, so it costs nothing"
    assert {worker.node for worker in second.workers} == {"a", "b"}
    assert operator.events("RoundStopped") == [f"restarted by {BY}: new data"]
    mnist.await_state(state="running")

    code, said, errors = operator.ask("forget")
    assert (code, said) == (77, "")
    assert "nodeclient stop mnist" in errors

    assert operator.do("stop", "mnist", "--dry-run").startswith("dry run: job mnist is being stopped: its workers save")
    assert operator.events("JobStopAsked") == []
    assert operator.do("stop", "mnist").startswith("job mnist is being stopped: its workers save their state")
    assert {a.wait(), b.wait()} == {79}
    a.await_event("saved")
    job = mnist.await_state(state="stopped")
    assert job["reason"] == f"stopped by {BY}"
    assert operator.do("stop").startswith("job mnist has ended"), "there is nothing to do, which is no error"
    code, said, errors = operator.ask("restart")
    assert (code, said) == (77, "")
    assert "job mnist has ended" in errors, "nothing is restarted, and a script must not take it for done"
    assert operator.events("JobStopAsked") == [f"stopped by {BY}"]

    assert operator.do("forget", "--dry-run") == "dry run: job mnist is forgotten, and its history with it"
    assert operator.do("forget") == "job mnist is forgotten, and its history with it"
    assert operator.ask("forget", "mnist") == (
        69,
        "",
        "nodeclient: the coordinator knows no job 'mnist'; it knows none\n",
    )
    assert operator.events("JobForgotten") == [f"forgotten by {BY}"]


def test_a_job_that_waits_for_nodes_can_be_stopped(operator: Operator, mnist: Cluster) -> None:
    node = mnist.join("a", "--nnodes", "2")
    node.await_line("waiting for nodes")
    assert "restart" not in operator.do("restart"), "it is on its way to a round"
    operator.do("stop")
    assert node.wait() == 79
    mnist.await_state(state="stopped")


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
def test_an_answer_cannot_move_the_cursor(command: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    with canned(packed({"done": True, "message": "done\x1b[2J\x9b2J"})) as (endpoint, _):
        assert command_at(endpoint, *command) == 0
    assert capsys.readouterr() == ("done [2J 2J\n", "")


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


@pytest.mark.parametrize(
    ("verb", "states", "code", "said"),
    [
        ("stop", ["failed", "running", "stopped"], 0, "done with job1"),
        ("restart", ["failed", "running", "stopped"], 0, "done with job1"),
        ("stop", ["succeeded"], 0, "done with job0"),
        ("stop", ["failed", "forming", "running"], 64, "there are 2 jobs that have not ended, name one: job1, job2"),
        ("stop", ["failed", "stopped"], 64, "there are 2 jobs, name one: job0, job1"),
        ("forget", ["failed", "running"], 64, "there are 2 jobs, name one: job0, job1"),
        ("report", ["failed", "running"], 64, "there are 2 jobs, name one: job0, job1"),
        ("stop", [], 69, "the coordinator knows no job: nodeclient join starts one"),
    ],
)
def test_which_job_is_meant_where_none_is_named(
    verb: str, states: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = [a_job(job=f"job{number}", state=state) for number, state in enumerate(states)]
    answers = {
        f"POST /v1/jobs/job{number}/{verb}": packed({"done": True, "message": f"done with job{number}"})
        for number in range(len(states))
    }
    with canned({"GET /v1/jobs": packed({"jobs": jobs, "drained": []}), **answers}) as (endpoint, _):
        assert command_at(endpoint, verb) == code
    assert capsys.readouterr() == ((f"{said}\n", "") if code == 0 else ("", f"nodeclient: {said}\n"))


def test_a_drained_node_that_joins_in_vain_says_what_would_let_it_in(operator: Operator, mnist: Cluster) -> None:
    operator.do("drain", "late", "--ahead")
    late = mnist.join("late", "--nnodes", "1", "--join-timeout", "3")
    assert late.wait() == 75
    words = f"not let in within 3 s: late drained by {BY}; to let it in: nodeclient undrain late"
    assert f"ERROR   nodeclient: {words} job=" in late.lines[-1]
