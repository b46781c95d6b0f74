"""The OpenAPI document is held to the records and to the server: paths, parameters, statuses, bodies of answers."""

import ast
import copy
import json
import re
from collections.abc import Iterator
from typing import Any

from aiohttp import ClientSession, ClientTimeout
from jsonschema import Draft202012Validator
from multidict import MultiDict
from referencing import Registry
from referencing.jsonschema import DRAFT202012

from coordinatord.protocol.http.api import AdminBody, DrainBody, StopBody
from coordinatord.protocol.log_messages import LogChunk, LogPlace, ReadLog
from coordinatord.protocol.messages import Goal, Phase
from coordinatord.protocol.stack_messages import (
    AskStacks,
    Collective,
    CollectiveState,
    StackOrigin,
    Stacks,
    WorkerStacks,
    pack_stacks,
)
from coordinatord.server.http import admin_api
from coordinatord.server.http.log_query import PARAMETERS, parse_query
from coordinatord.server.http.openapi import FILE
from tests.coordinatord.server.conftest import Start
from tests.coordinatord.server.http.test_events_api import following
from tests.coordinatord.server.http.test_logs_api import KEEPS_LOGS
from tests.support.openapi import OF_EVENTS, OF_LOGS, OF_REQUESTS, OPERATIONS, text
from tests.support.raw_session import Peer, connect, get, join, until
from tests.support.source import Source
from tests.support.stores import SlowStore

ALICE = {"by": "alice"}

FOREIGN = {"Origin": "http://evil.example"}


SEEN_ELSEWHERE = {(500, "a bug"), (408, "a slow body"), (413, "a long body")}
"""Statuses that other tests bring about."""


def closed(spec: dict[str, Any]) -> dict[str, Any]:
    """Return the document with schemas that allow no field that they do not name."""
    spec = copy.deepcopy(spec)
    for schema in spec["components"]["schemas"].values():
        schema["additionalProperties"] = False
    return spec


DOCUMENT = json.loads(FILE.read_text(encoding="utf-8"))

SPEC = closed(DOCUMENT)

REGISTRY: Registry[Any] = Registry().with_resource("spec", DRAFT202012.create_resource(SPEC))


def check(value: Any, schema: dict[str, Any]) -> None:
    """Validate a value; references within the schema are those of the document."""
    absolute = json.loads(json.dumps(schema).replace('"#/', '"spec#/'))
    Draft202012Validator(absolute, registry=REGISTRY).validate(value)


def paths_in(source: Source) -> Iterator[str]:
    """Yield the texts of a file that are paths of the API."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.match(r"/(?!$)\w", node.value):
            yield re.sub(r":\[\^/\]\+", "", node.value)


def test_every_path_of_the_server_is_described_and_no_other(tree: list[Source]) -> None:
    own = [source for source in tree if source.is_python and source.is_in("coordinatord/server")]
    served = {path for source in own for path in paths_in(source) if " " not in path}
    served -= {path for path in served if path.startswith(("/page/", "/dev/", "/proc/"))}
    assert served | {"/"} == {operation.path for operation in OPERATIONS}


def test_the_file_is_made_of_the_records() -> None:
    assert FILE.read_text(encoding="utf-8") == text(), "run `python -m tests.support.openapi`, and read the difference"


def test_every_schema_is_one_and_every_reference_leads_somewhere() -> None:
    for schema in SPEC["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)
    used = set(re.findall(r'"#/components/(\w+)/(\w+)"', json.dumps(SPEC)))
    shared = ((kind, name) for kind in ("schemas", "responses", "parameters") for name in SPEC["components"][kind])
    assert used == {*shared}
    names = [operation["operationId"] for methods in SPEC["paths"].values() for operation in methods.values()]
    assert len(set(names)) == len(names)


def test_the_parameters_of_logs_are_those_that_are_read() -> None:
    examples = {"rank": "0-7,12", "node": "gpu1", "round": "2", "stream": "both", "last": "all", "last_bytes": "9"}
    examples |= {"run": "1c9dcf-1", "after": "1:3:stderr:ab:9"}
    assert {parameter.name for parameter in OF_LOGS} == {*examples, "follow"} == {*PARAMETERS}
    for name, example in examples.items():
        parse_query(MultiDict({name: example}))


class Client:
    """A client that checks each answer against the document."""

    def __init__(self, url: str, session: ClientSession) -> None:
        self.url = url
        self.session = session
        self.seen: set[tuple[str, str, int]] = set()

    async def ask(self, method: str, path: str, status: int, *, at: str = "", **more: Any) -> None:
        """Send a request to `at` (default: the path itself), and check its status and its body."""
        async with self.session.request(method, f"{self.url}{at or path}", **more) as answer:
            assert answer.status == status, await answer.text()
            response = SPEC["paths"][path][method]["responses"][str(status)]
            if "$ref" in response:
                response = SPEC["components"]["responses"][response["$ref"].rpartition("/")[2]]
            described = response["content"]
            assert answer.content_type in described
            schema = described[answer.content_type].get("schema")
            if schema is not None:
                check(await answer.json(), schema)
            elif answer.content_type == "application/json":
                assert await answer.json() == DOCUMENT
        self.seen.add((method, path, status))


async def _reads(client: Client, a: Peer) -> None:
    for path in ("/healthz", "/v1/jobs", "/v1/events", "/openapi.json", "/metrics", "/"):
        await client.ask("get", path, 200)
        browser = {"User-Agent": "Mozilla/5.0", "Host": "evil.example"}
        await client.ask("get", path, 403, headers=browser)
    for rest in ("", "/events", "/logs", "/stacks"):
        await client.ask("get", f"/v1/jobs/{{job}}{rest}", 404, at=f"/v1/jobs/no{rest}")
    for parameter in OF_EVENTS:
        if parameter.name != "Last-Event-ID":
            for path, at in (("/v1/events", "/v1/events"), ("/v1/jobs/{job}/events", "/v1/jobs/job/events")):
                await client.ask("get", path, 400, at=f"{at}?{parameter.name}=x,y")
    await client.ask("get", "/v1/jobs/{job}/logs", 400, at="/v1/jobs/job/logs?rank=x")
    for rest in ("", "/events"):
        await client.ask("get", f"/v1/jobs/{{job}}{rest}", 200, at=f"/v1/jobs/job{rest}")
    async with client.session.get(f"{client.url}/v1/jobs/job/logs?rank=0&stream=stderr") as answer:
        wanted = await a.receive(ReadLog)
        await a.send(LogChunk(wanted.request, b"x\n", LogPlace(1, 2), more=False, gap=False, problem=""))
        schema = SPEC["paths"]["/v1/jobs/{job}/logs"]["get"]["responses"]["200"]["content"]["application/json"]
        check(await answer.json(), schema["schema"])
    await client.ask("get", "/v1/jobs/{job}/stacks", 400, at="/v1/jobs/job/stacks?rank=x")
    async with client.session.get(f"{client.url}/v1/jobs/job/stacks?rank=0") as answer:
        asked = await a.receive(AskStacks)
        collective = Collective("default_pg", 9, CollectiveState.WAITS, "gloo:all_reduce", "8x3 Float")
        stack = pack_stacks([("MainThread", ("main (train.py:41)",))])
        stands = WorkerStacks(0, StackOrigin.WORKER, stack, "sleeping", "futex_do_wait", 0.0, collective, "")
        await a.send(Stacks(asked.request, (stands,), ""))
        schema = SPEC["paths"]["/v1/jobs/{job}/stacks"]["get"]["responses"]["200"]["content"]["application/json"]
        check(await answer.json(), schema["schema"])


async def _requests(client: Client) -> None:
    paths = [operation.path for operation in OPERATIONS if operation.body in {AdminBody, DrainBody, StopBody}]
    for path in paths:
        at = path.format(job="job", node="a")
        await client.ask("post", path, 415, at=at, data=b"{}")
        await client.ask("post", path, 400, at=at, json={})
        await client.ask("post", path, 403, at=at, json=ALICE, headers=FOREIGN)
    for path in paths:
        if path.startswith("/v1/jobs/"):
            await client.ask("post", path, 404, at=path.format(job="no"), json=ALICE)
    await client.ask("post", "/v1/nodes/{node}/drain", 404, at="/v1/nodes/no/drain", json=ALICE)
    for verb in ("forget", "preflight"):
        await client.ask("post", f"/v1/jobs/{{job}}/{verb}", 409, at=f"/v1/jobs/job/{verb}", json=ALICE)
    await client.ask("post", "/v1/nodes/{node}/drain", 200, at="/v1/nodes/no/drain", json=ALICE | {"ahead": True})
    await client.ask("post", "/v1/nodes/{node}/undrain", 200, at="/v1/nodes/no/undrain", json=ALICE)
    for verb in ("quarantine", "pardon"):
        await client.ask("post", f"/v1/nodes/{{node}}/{verb}", 404, at=f"/v1/nodes/no/{verb}", json=ALICE)
        await client.ask("post", f"/v1/nodes/{{node}}/{verb}", 200, at=f"/v1/nodes/a/{verb}", json=ALICE)
    await client.ask("post", "/v1/page/link", 200, json={})
    await client.ask("post", "/v1/page/session", 200, json={"code": "x"})
    for verb in ("restart", "stop"):
        await client.ask("post", f"/v1/jobs/{{job}}/{verb}", 200, at=f"/v1/jobs/job/{verb}", json=ALICE)
    await client.ask("post", "/v1/jobs/{job}/stop", 409, at="/v1/jobs/job/stop", json=ALICE | {"no_persist": True})


async def test_real_answers_are_as_they_are_described(start: Start) -> None:
    async with start(heartbeat_s=600.0) as server, ClientSession(timeout=ClientTimeout(60)) as session:
        client = Client(server.url, session)
        async with connect(server.url, join("a", offer=KEEPS_LOGS)) as a:
            run = await a.start_workers()
            await _reads(client, a)
            async with following(f"{server.url}/v1/jobs/job/events") as events:
                check(await anext(events), {"$ref": "#/components/schemas/ApiEvent"})
            await _requests(client)
            await a.report(Phase.STOPPED, run)
            await a.receive_goal(Goal.EXIT)
        async with following(f"{server.url}/v1/jobs/job/logs?follow=true") as parts:
            for part in [part async for part in parts]:
                check(part, {"$ref": "#/components/schemas/LogPart"})
        await client.ask("post", "/v1/jobs/{job}/forget", 200, at="/v1/jobs/job/forget", json=ALICE)
        apart = {"/v1/stream", "/v1/jobs/{job}/logs", "/v1/jobs/{job}/stacks", "/v1/jobs/{job}/preflight"}
        good = {(operation.method, operation.path) for operation in OPERATIONS if operation.path not in apart}
        assert {(method, path) for method, path, status in client.seen if status == 200} == good
        met = {status for method, _, status in client.seen if method == "post"} - {200, 403}
        assert met == OF_REQUESTS.keys() - {status for status, _ in SEEN_ELSEWHERE}


async def test_an_unknown_parameter_is_named_with_the_known_ones_wherever_something_is_read(start: Start) -> None:
    async with start() as server, ClientSession() as session:
        client = Client(server.url, session)
        for operation in OPERATIONS:
            if operation.method == "get" and operation.path.startswith("/v1/"):
                await client.ask("get", operation.path, 400, at=f"{operation.path.format(job='job')}?lst=3")
        for path, known in (
            ("jobs", "none is known here"),
            ("events", "those known here are after, kind, last, since"),
        ):
            message = f"'lst' is an unknown parameter: {known}"
            malformed = {"error": "malformed", "message": message}
            assert (await get(f"{server.url}/v1/{path}?lst=3"))[::2] == (400, malformed)


async def test_a_coordinator_that_cannot_record_is_described_too(start: Start) -> None:
    store = SlowStore()
    store.broken = True
    async with start(store) as server, ClientSession() as session, connect(server.url, join("a")):
        store.allowed.release()
        await until(lambda: server.driver.machine.store_error is not None)
        client = Client(server.url, session)
        await client.ask("get", "/healthz", 503)
        await client.ask("post", "/v1/nodes/{node}/drain", 503, at="/v1/nodes/a/drain", json=ALICE)


def test_the_statuses_of_requests_are_those_that_the_handlers_give() -> None:
    assert set(admin_api._ERROR_STATUSES.values()) <= {*OF_REQUESTS, 503}
