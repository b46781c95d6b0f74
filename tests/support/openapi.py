"""Makes the OpenAPI document that coordinatord serves: `python -m tests.support.openapi` writes the file.

The table has each path with its parameters and answers; the schemas are made of the records that are sent and received.
A test compares the file with both, the table with the routes of the server, and real answers with the schemas.
"""

import ast
import inspect
import json
import re
import textwrap
from collections.abc import Collection, Mapping
from enum import StrEnum
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from msgspec import Meta, Struct
from msgspec.structs import fields

from coordinatord.core.rounds.values.records import KINDS
from coordinatord.protocol.http.api import (
    IN_LIST,
    AdminAnswer,
    AdminBody,
    ApiEvent,
    DrainBody,
    ErrorAnswer,
    EventsAnswer,
    HealthAnswer,
    JobsAnswer,
    JobStatus,
    PageLinkAnswer,
    PageLinkBody,
    PageSessionAnswer,
    PageSessionBody,
    StopBody,
)
from coordinatord.protocol.http.log_answers import LogPart, LogsAnswer
from coordinatord.protocol.http.stack_answers import StacksAnswer
from coordinatord.protocol.log_messages import LOG_BYTES_MAX, LOG_LINES_MAX, LogStream
from coordinatord.protocol.schema import PRINTABLE
from coordinatord.runtime import __version__
from coordinatord.server.http.events_api import AT_ONCE_MAX
from coordinatord.server.http.jobs_api import WAIT_S_MAX
from coordinatord.server.http.log_query import ALL, BOTH, LAST_LINES, PLACES_MAX
from coordinatord.server.http.openapi import FILE
from coordinatord.server.http.page_access import cookie_name
from coordinatord.server.http.responses import EVENT_STREAM, JSON, MSGPACK
from tests.support.field_hints import field_hints

Schema = dict[str, Any]

WHERE = "#/components/schemas/"


class Schemas:
    """The schemas of records, each made once, and of all records within them."""

    def __init__(self, omitted: Mapping[type[Any], frozenset[str]]) -> None:
        """Begin with none; the fields in `omitted` may be missing in an answer."""
        self._omitted = omitted
        self.made: dict[str, Schema] = {}

    def of_answer(self, kind: type[Any]) -> Schema:
        """Return a reference to the schema of a record that is sent: all of its fields are there."""
        return self._of(kind, _fields_without(kind, self._omitted.get(kind, frozenset())))

    def of_body(self, kind: type[Any]) -> Schema:
        """Return a reference to the schema of a record that is received: fields with a default may be left out."""
        needed = [field.name for field in fields(kind) if field.required]
        reference = self._of(kind, needed)
        self.made[kind.__name__]["additionalProperties"] = False
        return reference

    def _of(self, kind: type[Any], required: Collection[str]) -> Schema:
        if kind.__name__ not in self.made:
            self.made[kind.__name__] = {}  # a record may be within itself
            hints, notes = field_hints(kind), field_notes(kind)
            self.made[kind.__name__] |= {
                "type": "object",
                "description": _plain(kind.__doc__ or ""),
                "properties": {name: _with_note(self._of_field(hint), notes.get(name)) for name, hint in hints.items()},
                "required": sorted(required),
            }
        return {"$ref": f"{WHERE}{kind.__name__}"}

    def _of_field(self, annotation: Any) -> Schema:
        if get_origin(annotation) is Annotated:
            kind, bound = get_args(annotation)
            return self._of_field(kind) | (_items(bound) if get_origin(kind) is tuple else _bounds(bound))
        if get_origin(annotation) in {UnionType, Union}:
            (inner,) = [part for part in get_args(annotation) if part is not NoneType]
            return {"anyOf": [self._of_field(inner), {"type": "null"}]}
        if get_origin(annotation) is tuple:
            return {"type": "array", "items": self._of_field(get_args(annotation)[0])}
        if isinstance(annotation, type) and issubclass(annotation, StrEnum):
            return {"type": "string", "enum": list(annotation)}
        if isinstance(annotation, type) and issubclass(annotation, Struct):
            return self.of_answer(annotation)
        return {"type": _TYPES[annotation]}


_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean"}


def _bounds(bound: Meta) -> Schema:
    pattern = None if bound.pattern is None or bound.pattern == PRINTABLE else bound.pattern.replace(r"\Z", "$")
    written = {
        "minimum": bound.ge,
        "maximum": bound.le,
        "minLength": bound.min_length or None,
        "maxLength": bound.max_length,
        "pattern": pattern,
    }
    return {name: value for name, value in written.items() if value is not None}


def _items(bound: Meta) -> Schema:
    return {"minItems": bound.min_length or 0, "maxItems": bound.max_length}


def _fields_without(kind: type[Any], omitted: Collection[str]) -> list[str]:
    return [field.name for field in fields(kind) if field.name not in omitted]


def _with_note(schema: Schema, note: str | None) -> Schema:
    return schema if note is None else schema | {"description": note}


def field_notes(kind: type[Any]) -> dict[str, str]:
    """Return the docstring of each field that has one; none where the source is not at hand."""
    try:
        source = textwrap.dedent(inspect.getsource(kind))
    except OSError:
        return {}
    [definition] = ast.parse(source).body
    assert isinstance(definition, ast.ClassDef)
    found: dict[str, str] = {}
    for field, note in zip(definition.body, definition.body[1:], strict=False):
        text = note.value if isinstance(note, ast.Expr) else None
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Constant):
            found[field.target.id] = _plain(str(text.value))
    return found


def _plain(docstring: str) -> str:
    """Return a docstring as a text without ends of lines within a paragraph."""
    return "\n\n".join(" ".join(part.split()) for part in inspect.cleandoc(docstring).split("\n\n"))


ERRORS = {
    "NoToken": "There is no token, or it is not valid.",
    "NotAllowed": "The token may not do this, a web page of another site sent it, or a browser that asks by a foreign"
    " name.",
    "TooMany": "Too many requests of this address were not let in.",
    "Bug": "A bug of coordinatord.",
    "NotNow": "It cannot be answered now: too many ask, or the records cannot be read.",
    "WrongParameter": "A parameter is wrong, or unknown.",
    "NoJob": "There is no such job.",
    "NoLog": "There is no such job, round, node or rank.",
    "NoStacks": "There is no such job or rank, or the job has no workers now.",
    "WrongBody": "The body is not understood.",
    "NoJobOrNode": "There is no such job or node.",
    "LateBody": "The rest of the body did not come.",
    "Refused": "It is refused as things are.",
    "LongBody": "The body is too long.",
    "OtherBody": "The body is neither JSON nor msgpack.",
}
"""What each error means, by its name in the document."""

OF_READS = {401: "NoToken", 403: "NotAllowed", 429: "TooMany", 500: "Bug", 503: "NotNow"}
"""The errors that any request may meet, by status."""

OF_BODIES = {400: "WrongBody", 408: "LateBody", 413: "LongBody", 415: "OtherBody"}
"""Those that any body may meet."""

OF_REQUESTS = OF_BODIES | {404: "NoJobOrNode", 409: "Refused"}
"""Those that an operator's request may meet beside the first ones."""

UNKNOWN_JOB = {404: "NoJob"}
MALFORMED = {400: "WrongParameter"}


class Parameter(Struct, frozen=True):
    """A parameter in the query or in a header."""

    name: str
    about: str
    schema: Schema
    place: str = "query"


class Operation(Struct, frozen=True):
    """What one request does."""

    method: str
    path: str
    summary: str
    answer: type[Any] | None = None
    """The record of the answer, as JSON or msgpack; None for other kinds of content."""
    content: str = ""
    """The kind of content, where that is no record."""
    event: type[Any] | None = None
    """The data of each server-sent event, for those who accept a stream."""
    parameters: tuple[Parameter, ...] = ()
    body: type[Any] | None = None
    errors: Mapping[int, str] = {}
    open: bool = False
    """It is for everybody."""


OF_A_JOB = (
    Parameter(
        "wait",
        f"Answer once the present run has ended, and after so many seconds at the latest; {WAIT_S_MAX:g} at most.",
        {"type": "number", "minimum": 0, "default": 0},
    ),
)

_LAST_EVENTS: Schema = {"type": "integer", "minimum": 1, "maximum": AT_ONCE_MAX, "default": AT_ONCE_MAX}

OF_EVENTS = (
    Parameter(
        "after", "Only events after the one of this id; then the next ones, and not the newest.", {"type": "string"}
    ),
    Parameter("last", "So many of the newest.", _LAST_EVENTS),
    Parameter("since", "Only events of this age in seconds at most.", {"type": "number", "minimum": 0}),
    Parameter(
        "kind",
        "Only events of these kinds, separated by commas or given several times, also as `node-lost`.",
        {"type": "array", "items": {"type": "string", "examples": sorted(KINDS)}},
    ),
    Parameter("Last-Event-ID", "The same as `after`, as browsers send it.", {"type": "string"}, "header"),
)

_NUMBER_OF_LINES: Schema = {"type": "integer", "minimum": 0, "maximum": LOG_LINES_MAX}

OF_LOGS = (
    Parameter("rank", "Only these ranks, such as `3` or `0-7,12`.", {"type": "array", "items": {"type": "string"}}),
    Parameter("node", "Only workers of these nodes or hosts.", {"type": "array", "items": {"type": "string"}}),
    Parameter("run", "An earlier run, as `earlier` of the job names it; by default the last one.", {"type": "string"}),
    Parameter("round", "The round; by default the last one.", {"type": "integer", "minimum": 0}),
    Parameter("stream", "Which stream.", {"enum": [*LogStream, BOTH], "default": BOTH}),
    Parameter(
        "last",
        f"So many of the last lines of each log, or `{ALL}`.",
        {"anyOf": [_NUMBER_OF_LINES, {"const": ALL}], "default": LAST_LINES},
    ),
    Parameter(
        "last_bytes",
        "So many of the last bytes of each log at most; without `last`, whatever the number of lines.",
        {"type": "integer", "minimum": 0, "maximum": LOG_BYTES_MAX},
    ),
    Parameter(
        "follow",
        f"Go on with what is written, also in later rounds, until the run ends. It needs `Accept: {EVENT_STREAM}`.",
        {"type": "boolean", "default": False},
    ),
    Parameter(
        "after",
        "Go on after these places, one for each log: `place` of its last part, of a stream that broke off.",
        {"type": "array", "items": {"type": "string"}, "maxItems": PLACES_MAX},
    ),
)


def _request(path: str, summary: str, body: type[Any] = AdminBody) -> Operation:
    return Operation("post", path, summary, AdminAnswer, body=body, errors=OF_REQUESTS)


OPERATIONS = (
    Operation(
        "get",
        "/healthz",
        "Whether the coordinator does its work; 503 says why not. Without a token: only `status`.",
        HealthAnswer,
        open=True,
    ),
    Operation("get", "/v1/jobs", "All jobs, each without its rounds.", JobsAnswer, errors=MALFORMED),
    Operation(
        *("get", "/v1/jobs/{job}", "One job, with its last rounds.", JobStatus),
        parameters=OF_A_JOB,
        errors=MALFORMED | UNKNOWN_JOB,
    ),
    Operation(
        *("get", "/v1/events", "What happened to all jobs and to none, oldest first; as a stream also what comes."),
        answer=EventsAnswer,
        event=ApiEvent,
        parameters=OF_EVENTS,
        errors=MALFORMED,
    ),
    Operation(
        *("get", "/v1/jobs/{job}/events", "What happened to one job, oldest first; as a stream also what comes."),
        answer=EventsAnswer,
        event=ApiEvent,
        parameters=OF_EVENTS,
        errors=MALFORMED | UNKNOWN_JOB,
    ),
    Operation(
        *("get", "/v1/jobs/{job}/logs", "What the workers of a round have written, read from their nodes."),
        answer=LogsAnswer,
        event=LogPart,
        parameters=OF_LOGS,
        errors=MALFORMED | {404: "NoLog"},
    ),
    Operation(
        *("get", "/v1/jobs/{job}/stacks", "Where the workers of the present round stand, asked of their nodes."),
        answer=StacksAnswer,
        parameters=OF_LOGS[:1],
        errors=MALFORMED | {404: "NoStacks"},
    ),
    _request("/v1/jobs/{job}/stop", "Workers save their state, and the run ends.", StopBody),
    _request("/v1/jobs/{job}/restart", "Workers save their state, and a new round begins."),
    _request("/v1/jobs/{job}/forget", "Drop a job that is over, and its history."),
    _request("/v1/jobs/{job}/preflight", "Test in pairs nodes that have no workers; the job shows the findings."),
    _request("/v1/nodes/{node}/drain", "A node, or all nodes of a host, save, leave and stay out.", DrainBody),
    _request("/v1/nodes/{node}/undrain", "Let a node or a host in again."),
    _request("/v1/nodes/{node}/quarantine", "Have rounds do without the host of a node, if they can."),
    _request("/v1/nodes/{node}/pardon", "Drop the charges against the host of a node, and its quarantine."),
    Operation("get", "/metrics", "Metrics for Prometheus.", content="text/plain"),
    Operation("get", "/openapi.json", "This document.", content=JSON),
    Operation("get", "/", "The live page.", content="text/html", open=True),
    Operation(
        *("post", "/v1/page/link", "A code that lets one browser in, as `/#enter=CODE`."),
        answer=PageLinkAnswer,
        body=PageLinkBody,
        errors=OF_BODIES,
    ),
    Operation(
        *("post", "/v1/page/session", "Let a browser in by a code, which is used up; `Set-Cookie` has its session."),
        answer=PageSessionAnswer,
        body=PageSessionBody,
        errors=OF_BODIES,
        open=True,
    ),
    Operation(
        *("get", "/v1/stream", "The data of the live page, which may change with each release."),
        content=EVENT_STREAM,
        errors=MALFORMED,
    ),
)
"""All that is served, but for the files of the page and the sessions of nodes."""

ABOUT = """What coordinatord serves over HTTP. Answers are JSON, or msgpack if the request has
`Accept: application/msgpack`; errors too. Each request wants a token: of the role `read` for what only shows, of the
role `admin` for what acts. A coordinator that was started with `--insecure` asks nobody for one.
Fields may be added; none changes its meaning, and none goes away."""


SECURITY = {
    "token": {
        "type": "http",
        "scheme": "bearer",
        "bearerFormat": "crd1.KEY.ROLE.SECRET",
        "description": "An access token, as `coordinatord token new` makes it.",
    },
    "page": {
        "type": "apiKey",
        "in": "cookie",
        "name": cookie_name("KEY"),
        "description": "The session of a browser. KEY stands for the first 16 letters of the KEY in a token.",
    },
}
"""How a request says who sends it: in one of these ways."""


@cache
def document() -> dict[str, Any]:
    """Return the OpenAPI document."""
    schemas = Schemas(IN_LIST)
    error = _of_record(schemas.of_answer(ErrorAnswer))
    paths: dict[str, Any] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _described(operation, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "coordinatord", "version": __version__, "description": " ".join(ABOUT.split())},
        "paths": paths,
        "components": {
            "schemas": dict(sorted(schemas.made.items())),
            "responses": {name: {"description": meaning, "content": error} for name, meaning in ERRORS.items()},
            "parameters": {name: _of_path(name) for name in ("job", "node")},
            "securitySchemes": SECURITY,
        },
        "security": [{name: []} for name in SECURITY],
    }


def text() -> str:
    """Return the content of the file."""
    return f"{json.dumps(document(), indent=1)}\n"


def _described(operation: Operation, schemas: Schemas) -> dict[str, Any]:
    content: dict[str, Any] = {operation.content: {}} if operation.content else {}
    if operation.answer is not None:
        content = _of_record(schemas.of_answer(operation.answer))
    if operation.event is not None:
        about = "Each event has one of these as its data, in JSON."
        content[EVENT_STREAM] = {
            "schema": {"type": "string", "description": about},
            "x-data": schemas.of_answer(operation.event),
        }
    answers: dict[int, Schema] = {200: {"description": operation.summary, "content": content}}
    for status, name in sorted((OF_READS | dict(operation.errors)).items()):
        answers[status] = {"$ref": f"#/components/responses/{name}"}
    if operation.answer is HealthAnswer:
        answers[503] = {"description": ERRORS["NotNow"], "content": content}
    described: dict[str, Any] = {
        "summary": operation.summary,
        "operationId": _name(operation),
        "parameters": [
            *({"$ref": f"#/components/parameters/{name}"} for name in re.findall(r"{(\w+)}", operation.path)),
            *map(_of_parameter, operation.parameters),
        ],
        "responses": {str(status): answer for status, answer in answers.items()},
    }
    if operation.open:
        described["security"] = []
    if operation.body is not None:
        described["requestBody"] = {"required": True, "content": _of_record(schemas.of_body(operation.body))}
    return described


def _of_record(schema: Schema) -> dict[str, Any]:
    return {JSON: {"schema": schema}, MSGPACK: {"schema": schema}}


def _name(operation: Operation) -> str:
    """Return a name for generated clients: `get_v1_jobs_job_events`."""
    parts = [part.strip("{}").replace(".", "_") for part in operation.path.split("/") if part]
    return "_".join([operation.method, *(parts or ["page"])])


def _of_path(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "in": "path",
        "required": True,
        "schema": {"type": "string", "minLength": 1, "maxLength": 128},
    }


def _of_parameter(parameter: Parameter) -> dict[str, Any]:
    described = {
        "name": parameter.name,
        "in": parameter.place,
        "description": parameter.about,
        "schema": parameter.schema,
    }
    # A list may be given as several parameters, or as one with commas.
    return described | ({"explode": True, "style": "form"} if parameter.schema.get("type") == "array" else {})


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
