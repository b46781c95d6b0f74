"""The JSON of the HTTP API as dashboards, the page and people with curl rely on it; `--rewrite` writes it anew.

The situations of a job are played on a stage with a clock of its own, so that every number is known. The first one is
shown whole, and of the others what differs from it. What the server adds is asked of a real one, with a placeholder for
what differs from run to run. The order of the fields is pinned too.
"""

import json
import re
from typing import Any

import msgpack
import pytest
from aiohttp import ClientSession

from coordinatord.core.rounds.values.records import KINDS, ClusterRecord, JobForgotten, Record
from coordinatord.core.rounds.values.round_history import rounds_of
from coordinatord.core.shown.job_view import drained_view, job_view, whole_view
from coordinatord.protocol.http.api import IN_LIST, JobsAnswer
from coordinatord.protocol.messages import EarlyEnd, Follower, Goal, Phase, Report, Straggler
from coordinatord.protocol.schema import plain_without
from coordinatord.runtime import __version__
from coordinatord.server.http.responses import JSON, MSGPACK, encoded
from coordinatord.store.database_store import MemoryStore
from tests.coordinatord.server.conftest import Start
from tests.support.builders import a_failure, a_report
from tests.support.histories import made_at
from tests.support.raw_session import connect, get, join
from tests.support.script import Stage
from tests.support.source import ROOT

FOLDER = ROOT / "tests" / "golden" / "api"

TRACE = ("Traceback (most recent call last):", "torch.OutOfMemoryError: CUDA out of memory")

SITUATIONS = {
    "forming": "join n1 min=2; advance 3s",
    "starting": "join n1 max=2 workers=2; join n2 max=2; advance 1s",
    "running": """
        join n1 max=2 workers=2; join n2 max=2; running n1 n2; announce n1 n2; advance 1s; step n1 10; step n2 10;
        advance 2s; step n1 30; step n2 29 age=0.25s; advance 0.5s; join n3 max=2; advance 0.25s""",
    "stalled": """
        join n1 min=2 max=2; join n2 min=2 max=2; running n1 n2; advance 1s; step n1 10; step n2 10; advance 1s;
        step n1 20; step n2 19; advance 15s""",
    "laggard": """
        join n1 min=2 max=2; join n2 min=2 max=2; running n1 n2; advance 1s; step n1 10; step n2 10; advance 5s;
        step n1 15; step n2 15; arrived n2=0.3s""",
    "restarting": """
        join n1 max=2; join n2 max=2; running n1 n2; advance 1s; fail n2 exit=3 age=0.5s; advance 1s; stopping n1""",
    "gone": "join n1 max=2; join n2 max=2; running n1 n2; drop n2; advance 1s; silence n1; advance 2s",
    "succeeded": "join n1 max=1; running n1; step n1 7; advance 2s; succeed n1; advance 2s",
    "stopped": "join n1 max=1; running n1; advance 2s; ask stop default why=maintenance; stopped n1; advance 2s",
    "drained": "join n1 max=2; join n2 max=2; running n1 n2; ask drain n2 why=broken; "
    "ask drain x ahead=yes; advance 1s",
    "torchrun": "join n1 max=1 launcher=torchrun; running n1; advance 1s",
    "failed": "",
}
"""Each is one job, or two, and what happens to it."""


def staged(name: str) -> Stage:
    """Return a coordinator in a situation."""
    stage = Stage()
    for line in SITUATIONS[name].split(";"):
        if line.strip():
            stage.play(line.strip())
    if name == "failed":
        _fail(stage)
    return stage


def _fail(stage: Stage) -> None:
    """Fail a round with a worker of which everything is known, while another one ended and others followed."""
    stage.play("join n1 max=2 workers=4 restarts=0", "join n2 max=2 restarts=0", "running n1 n2", "advance 1s")
    said = {"pid": 4_711, "message": "sent by the OOM killer", "error": TRACE[-1], "last_lines": TRACE}
    followers = (Follower(3, 1, same_error=True), Follower(0, -6))
    failure = a_failure(rank=2, local_rank=2, exit_code=-9, followers=followers, age_s=0.25, log="/logs/2", **said)
    stage.report("n1", phase=Phase.STOPPING, failure=failure)
    stage.play("fail n2 exit=134", "failed n1 n2", "advance 2s")


def shown(stage: Stage) -> dict[str, Any]:
    """Return the answers to `GET /v1/jobs` and `GET /v1/jobs/default`."""
    coordinator, now = stage.coordinator, stage.now
    jobs = tuple(job_view(run, now, None) for run in coordinator.jobs.values())
    every = JobsAnswer(jobs=jobs, drained=drained_view(coordinator.cluster.durable))
    run = coordinator.jobs["default"]
    whole = whole_view(run, rounds_of(record for _, record in stage.past if record.run == run.id), now, None)
    decoded = []
    for answer, without in ((every, IN_LIST), (whole, {})):
        decoded.append(json.loads(encoded(plain_without(answer, without), JSON)))
        assert msgpack.unpackb(encoded(plain_without(answer, without), MSGPACK)) == decoded[-1]
    listed, default = decoded
    in_list = {name: value for name, value in default.items() if name not in {"rounds", "preflight"}}
    assert json.dumps(listed["jobs"]) == json.dumps([in_list]), "with the fields in the same order"
    listed["jobs"] = ["as below, without its rounds and its preflight"]
    return {"/v1/jobs": listed, "/v1/jobs/default": default}


def beyond(value: Any, usual: Any) -> Any:
    """Return the fields that differ from the usual ones; all of them, if they have other names or another order."""
    if not isinstance(value, dict) or not isinstance(usual, dict) or list(value) != list(usual):
        return value
    return {name: beyond(inner, usual[name]) for name, inner in value.items() if inner != usual[name]}


def laid_out(value: Any) -> str:
    """Write JSON with a line for each field, and short lists on one line."""
    text = json.dumps(value, indent=1, ensure_ascii=False)
    return re.sub(r"\[\s+([^][{}]{0,100}?)\s+\]", lambda found: f"[{' '.join(found[1].split())}]", text) + "\n"


def compare(name: str, actual: str, *, rewrite: bool) -> None:
    """Compare a text with the golden one of this name."""
    file = FOLDER / f"{name}.json"
    if rewrite:
        file.write_text(actual)
    else:
        assert actual == file.read_text(), "read the difference; if it is right, run `pytest --rewrite` on this file"


@pytest.mark.parametrize("name", SITUATIONS)
def test_a_situation_is_shown_as_it_always_was(name: str, *, rewrite: bool) -> None:
    answers = shown(staged(name))
    if name != "forming":
        answers = beyond(answers, shown(staged("forming")))
    compare(name, laid_out(answers), rewrite=rewrite)


def test_every_part_of_a_failure_is_shown_as_it_always_was(*, rewrite: bool) -> None:
    stage = staged("failed")
    run = stage.run
    rich: dict[str, Any] = {"early": (EarlyEnd("n2", 4, 1.00049),), "step": 40, "stragglers": (Straggler("n2", 4, 38),)}
    lost = a_failure(exit_code=1, error="RuntimeError: NCCL watchdog timeout", age_s=1.5)
    texts = {}
    for case, report in {
        "waited in vain": a_report(failure=lost, **rich),
        "not started": a_report(failure=a_failure(pid=0, exit_code=127, message="no such program")),
        "a code of a shell": a_report(failure=a_failure(exit_code=137)),
    }.items():
        assert isinstance(report, Report)
        run.durable.report = report
        texts[case] = json.loads(encoded(job_view(run, stage.now, None), JSON))["failure"]
    stage.coordinator.store_error = "the disk is full"
    texts["nothing can be decided"] = json.loads(encoded(job_view(run, stage.now, "the disk is full"), JSON))["reason"]
    compare("failures", laid_out(texts), rewrite=rewrite)


FLEETING = {"at", "opened_s", "state_s", "last_seen_s", "running_s", "stopped_s", "formed_s", "ended_s", "total"}
"""Fields that differ from run to run."""


def settled(value: Any, names: dict[str, str], field: str = "") -> Any:
    """Put placeholders in place of what differs from run to run; `names` has texts and what to write for them."""
    if isinstance(value, dict):
        return {name: settled(inner, names, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [settled(inner, names, field) for inner in value]
    if isinstance(value, str):
        for name, placeholder in names.items():
            value = value.replace(name, placeholder)
        return value
    return type(value).__name__ if field in FLEETING and value is not None else value


class Recorder:
    """Asks a server, and keeps what it answers."""

    def __init__(self, url: str, names: dict[str, str]) -> None:
        self._url = url
        self._names = names
        self.answers: dict[str, Any] = {}

    async def get(self, path: str) -> None:
        """Keep the answer to a read."""
        status, _, answered = await get(f"{self._url}{path}", JSON)
        self._keep(f"GET {path}", status, answered)

    async def post(self, path: str, body: Any, note: str = "") -> None:
        """Keep the answer to a request."""
        headers = {"Accept": JSON}
        async with ClientSession(headers=headers) as client, client.post(f"{self._url}{path}", json=body) as answer:
            self._keep(f"POST {path}{note}", answer.status, await answer.json())

    async def events(self, path: str, number: int) -> None:
        """Keep the first few server-sent events."""
        headers = {"Accept": "text/event-stream"}
        async with ClientSession(headers=headers) as client, client.get(f"{self._url}{path}") as answer:
            blocks: list[dict[str, Any]] = []
            while len(blocks) < number:
                block = (await answer.content.readuntil(b"\n\n")).decode().strip()
                parts = dict(line.split(": ", 1) for line in block.splitlines())
                if "event" in parts:
                    blocks.append(parts | {"data": json.loads(parts["data"])})
        self._keep(f"GET {path} (text/event-stream)", answer.status, blocks)

    def _keep(self, key: str, status: int, answered: Any) -> None:
        self.answers[key] = {"status": status, "body": settled(answered, self._names)}


async def test_a_server_answers_as_it_always_did(start: Start, *, rewrite: bool) -> None:
    store = MemoryStore()
    joining = join("a", job="mnist", nodes=1, release="0.9.1")
    async with start(store) as server, connect(server.url, joining) as a:
        run = await a.receive_goal(Goal.RUN)
        names = {run.run: "RUN", store.identity: "STORE", __version__: "VERSION"}
        recorder = Recorder(server.url, names)
        await a.report(Phase.RUNNING, run)
        await a.beat()
        await a.receive_goal(Goal.RUN)
        for path in ("/healthz", "/v1/jobs/nosuch", "/v1/nowhere", "/v1/jobs/mnist/events", "/v1/events?last=0"):
            await recorder.get(path)
        await recorder.events("/v1/events", 3)
        await recorder.events("/v1/stream?job=nosuch", 3)
        alice = {"by": "alice@login1", "reason": "maintenance"}
        await recorder.post("/v1/nodes/x/drain", alice, " that nobody is called")
        await recorder.post("/v1/nodes/x/drain", alice | {"ahead": True})
        await recorder.post("/v1/nodes/x/drain", alice, " again")
        await recorder.post("/v1/nodes/x/undrain", {"by": "alice"})
        await recorder.post("/v1/jobs/mnist/forget", alice)
        await recorder.post("/v1/jobs/mnist/forget", {"by": 3}, " with a wrong body")
        await recorder.post("/v1/jobs/nosuch/stop", alice)
        await recorder.get("/v1/jobs/mnist/stop")
    compare("server", laid_out(recorder.answers), rewrite=rewrite)


async def test_a_page_is_sent_what_it_always_was(start: Start, *, rewrite: bool) -> None:
    async with start() as server, connect(server.url, join("a", job="mnist", nodes=2, release="0.9.1")) as a:
        desired = await a.receive_goal(Goal.WAIT)
        recorder = Recorder(server.url, {desired.run: "RUN", __version__: "VERSION"})
        await recorder.events("/v1/stream?job=mnist", 3)
    text = re.sub(r"\d+\.\d+(?=,?\n)", '"float"', laid_out(recorder.answers))
    compare("page", text, rewrite=rewrite)


def a_record_of(kind: type[Record]) -> Record:
    """Return a record of a kind with what an event shows of it."""
    job = "cifar" if kind is JobForgotten else "mnist"  # the others would be forgotten with the job
    where = {"job": "", "run": ""} if issubclass(kind, ClusterRecord) else {"job": job, "run": "e-1"}
    facts: dict[str, Any] = {"reason": "because it was so", "node": "n1", "round": 3, "nodes": (), **where}
    values: dict[str, Any] = {name: facts.get(name) for name in kind.__struct_fields__}
    return kind(**values)


async def test_every_kind_of_event_is_sent_as_it_always_was(start: Start, *, rewrite: bool) -> None:
    store = MemoryStore()
    async with start(store) as server:
        await store.append(made_at(1_750_000_000.125, *(a_record_of(kind) for kind in KINDS.values())))
        _, _, body = await get(f"{server.url}/v1/events")
    about = ("what", "job", "run", "round", "node")
    sent = {event["kind"]: [event[name] for name in about] for event in body["events"]}
    compare("events", laid_out(sent), rewrite=rewrite)
