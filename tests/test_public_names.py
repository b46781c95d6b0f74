"""What is stored, sent, logged, measured or served has a name that others hold on to, all of them in one file.

A database, a dashboard, an alert and a node of another version know these names. A change of the file is therefore a
decision: an old name needs a migration, or a version of the protocol.
`python -m tests.test_public_names` writes the file.
"""

import ast
import asyncio
import re
import types
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from aiohttp import ClientSession
from msgspec import Struct

from coordinatord.commands.json_output import ReplayStep, StoredState
from coordinatord.core.rounds.policy import Policy
from coordinatord.core.rounds.transitions.table import ROWS
from coordinatord.core.rounds.values.records import KINDS, Record, RoundRemembered
from coordinatord.protocol.http import api, page_events
from coordinatord.protocol.messages import Message
from coordinatord.security.token_store import KnownToken
from coordinatord.server.app import ListenAddress, serve
from coordinatord.server.metrics.jobs import JobsCollector
from coordinatord.store.database_store import MemoryStore
from coordinatord.store.etcd.keys import About, Head
from coordinatord.store.etcd.roster import Coordinatord
from nodeclient.core.logged_rounds import LoggedRound
from nodeclient.keeping.disk.step_folder import Manifest, Note
from tests.support.source import Source, sources

FILE = Path(__file__).with_name("public_names.txt")

ANSWERS = (
    api.HealthAnswer,
    api.JobsAnswer,
    api.EventsAnswer,
    api.AdminBody,
    api.DrainBody,
    api.StopBody,
    api.AdminAnswer,
    api.ErrorAnswer,
    page_events.PageStatus,
)
"""What a whole body is, or the data of an event; only the fields are public."""

OUTPUT = (StoredState, ReplayStep)
"""What `coordinatord state --json` and `coordinatord replay --json` print."""

FILES = (Note, Manifest, LoggedRound, KnownToken, About, Head, Coordinatord)
"""What is written to files and to etcd, and read again by another version."""

EVENT_AT = {"Notice": 2, "fields": 0, "_notice": 1, "notify": 2, "_notify": 2, "_log": 2}
"""The functions that are given the name of a log event, and as which of their arguments."""


def test_no_public_name_has_changed_by_the_way() -> None:
    assert asyncio.run(public_names()) == FILE.read_text()


async def public_names() -> str:
    """Return the file as the code would have it."""
    records: list[type[Record]] = [*KINDS.values(), RoundRemembered]
    sections = {
        "records of the database, with their fields": [of_class(kind.KIND, kind) for kind in records],
        "messages between node and coordinator, with their fields": [
            of_class(kind.__name__, kind) for kind in get_args(Message)
        ],
        "answers of the HTTP API, with their fields": [of_class(kind.__name__, kind) for kind in ANSWERS],
        "output for programs, with its fields": [of_class(kind.__name__, kind) for kind in OUTPUT],
        "what is in files and in etcd, with its fields": [of_class(kind.__name__, kind) for kind in FILES],
        "conditions: why a run changes its state": sorted({row.when.__name__ for row in ROWS}),
        "events of the log": sorted({name for source in sources() for name in log_events(source)}),
        "fields of the log": sorted({name for source in sources() for name in log_fields(source)}),
        "metrics": await metrics(),
    }
    return "\n".join(f"# {title}\n" + "".join(f"{line}\n" for line in lines) for title, lines in sections.items())


def of_class(name: str, kind: type[Struct]) -> str:
    """Return a name, and below it the path of each field with the texts that it may hold if these are few."""
    return "\n    ".join([name, *of_fields(kind, "")])


def of_fields(kind: type[Struct], path: str) -> Iterator[str]:
    """Yield a line for each field, and for those of the classes that it holds."""
    hints = get_type_hints(kind, include_extras=True)
    for name in kind.__struct_fields__:
        inner = list(leaves(hints[name]))
        texts = sorted(member.value for leaf in inner if issubclass(leaf, Enum) for member in leaf)
        yield f"{path}{name}{': ' if texts else ''}{' | '.join(map(str, texts))}"
        for leaf in inner:
            if issubclass(leaf, Struct):
                yield from of_fields(leaf, f"{path}{name}.")


def leaves(hint: Any) -> Iterator[type]:
    """Yield the classes that a type is made of."""
    if get_origin(hint) is Annotated:
        yield from leaves(get_args(hint)[0])
    elif get_origin(hint) in {Union, types.UnionType, tuple, list, dict}:
        for part in get_args(hint):
            if part is not Ellipsis:
                yield from leaves(part)
    elif isinstance(hint, type):
        yield hint


def calls(source: Source) -> Iterator[tuple[str, ast.Call]]:
    """Yield the calls in a file of either program, with the name of what is called."""
    if source.is_python and source.is_in("coordinatord", "nodeclient"):
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Call):
                yield node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", ""), node


def log_events(source: Source) -> Iterator[str]:
    """Yield the names of events that a file writes into the log."""
    for called, call in calls(source):
        at = EVENT_AT.get(called)
        if at is not None and len(call.args) > at and isinstance(name := call.args[at], ast.Constant):
            yield str(name.value)


def log_fields(source: Source) -> Iterator[str]:
    """Yield the names of the fields that a file writes into the log beside an event."""
    for called, call in calls(source):
        if called == "fields":
            yield from (keyword.arg for keyword in call.keywords if keyword.arg is not None)


async def metrics() -> list[str]:
    """Return the names of all metrics, with their kinds, as a coordinator without jobs serves them."""
    async with (
        serve(ListenAddress("127.0.0.1", 0), Policy(), MemoryStore()) as server,
        ClientSession() as client,
        client.get(f"http://{server.endpoint}/metrics") as answer,
    ):
        found = re.findall(r"^# TYPE (coordinatord_\w+) (\w+)$", await answer.text(), re.MULTILINE)
    labels = {family.name: " ".join(getattr(family, "_labelnames", ())) for family in JobsCollector().collect()}
    return sorted(f"{name} ({kind}) {labels.get(name.removesuffix('_total'), '')}".rstrip() for name, kind in found)


if __name__ == "__main__":
    FILE.write_text(asyncio.run(public_names()))
