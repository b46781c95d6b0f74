"""`nodeclient events`: prints the events of a job, as lines for people or as JSON lines for programs.

With `--follow` it continues with new events, even after a restart of the coordinator. It requests the events after the
id of the last one, so none is duplicated or lost. Only the coordinator interprets that id.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec.structs import asdict

from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.protocol.http.api import ApiEvent, EventsAnswer
from coordinatord.runtime.local_time import local, moment
from nodeclient.config.operate import EventsConfig
from nodeclient.operate.client import Client, LostError, UnknownNameError, read, repeat
from nodeclient.operate.job_lookup import get_job_data, job_path, query
from nodeclient.operate.terminal_info import Colour, TerminalInfo, terminal, write
from nodeclient.output.text_width import width

EVENT_WIDTH = 18
"""The width of the column with the events' names: that of the longest, `training caught up`."""

ROUND_WIDTH = len("round 100")
"""The width of the column of rounds: longer jobs only shift their reasons."""

REASON_WIDTH_MIN = 40
"""The least width of reasons: below it, a reason starts on a new line."""

COLOURS = {"NodeLost": Colour.BAD, "NodeLeftBehind": Colour.BAD, "RoundStopped": Colour.CHANGING}
"""The colours of events that stand out in a long list."""

FOLLOWED_FIRST = 10
"""How many events `--follow` begins with, as in `tail -f`."""

JOB_WIDTH_MAX = 24
"""The limit of the width of the column of jobs: a longer name widens only its own lines."""

RUN_BOUNDARIES = frozenset({"RunOpened", "RunEnded"})
"""The kinds of events that are shown with the id of their run: rounds are counted from 1 in each run."""

LAST_KIND = "JobForgotten"
"""The kind of the last event of a job, unless the job was opened again meanwhile."""

TIME_MAX = 250_000_000_000.0
"""The limit of a time, in the year 9892. Python's dates end with the year 9999, and a time zone adds some hours."""

ALL_PATH = "/v1/events"
"""The path of all events, including those of no job."""


def run(config: EventsConfig) -> int:
    """Print the events and return the exit code."""
    client = Client(config.coordinators, config.access)
    printer = _EventPrinter(terminal(), as_json=config.json, with_job=config.job is None)
    kinds = ",".join(config.kinds) or None
    last = FOLLOWED_FIRST if config.follow and config.last is None else config.last
    wanted = query(last=last, since=config.since_s, kind=kinds)
    job = config.job
    data = client.get(f"{ALL_PATH}{wanted}") if job is None else get_job_data(client, job, f"/events{wanted}")
    answer = read(EventsAnswer, data)
    printer.print(answer.events)
    if config.follow:
        for event in _follow(client, job, kinds, answer.upto):
            printer.print([event])
    return ExitCode.OK


def _follow(client: Client, job: str | None, kinds: str | None, last: str) -> Iterator[ApiEvent]:
    """Yield the events after that with the id `last`, until the job is forgotten.

    After an interruption of any length it continues after the last event, so the reader misses none.
    """
    path = f"{ALL_PATH if job is None else f'{job_path(job)}/events'}{query(kind=kinds)}"
    is_over = False

    def stream() -> Iterator[Any]:
        try:
            yield from client.events(path, last)
        except LostError:
            if not is_over:
                raise
            # The coordinator ends the stream of a job that is forgotten. `repeat` would ask for more of it for ever.
            raise UnknownNameError(f"job {job} is forgotten") from None

    try:
        for data in repeat(stream):
            event = read(ApiEvent, data, "event")
            last, is_over = event.id, event.kind == LAST_KIND and job is not None
            yield event
    except UnknownNameError:
        if not is_over:  # else its last event, which is printed, has said so
            sys.stderr.write(f"nodeclient: the coordinator no longer knows job {job}\n")


class _EventPrinter:
    """Prints events."""

    def __init__(self, output: TerminalInfo, *, as_json: bool, with_job: bool) -> None:
        self._output = output
        self._as_json = as_json
        self._with_job = with_job
        self._job_width = 0

    def print(self, events: Sequence[ApiEvent]) -> None:
        if self._as_json:
            write([json.dumps(asdict(event)) for event in events])
            return
        widths = [job_width for event in events if (job_width := width(event.job)) <= JOB_WIDTH_MAX]
        self._job_width = max(self._job_width, *widths, 1)
        write([line for event in events for line in self._lines(event)])

    def _lines(self, event: ApiEvent) -> list[str]:
        at = moment(local(min(max(event.at, 0.0), TIME_MAX)))
        job = f"{event.job or '-'}{' ' * (self._job_width - width(event.job or '-'))}  " if self._with_job else ""
        round_ = f"round {event.round}" if event.round else ""  # rounds are numbered from 1
        facts = f"{at}  {job}{event.what:<{EVENT_WIDTH}}  {round_:<{ROUND_WIDTH}}  "
        beside = self._output.columns is None or self._output.columns - width(facts) >= REASON_WIDTH_MIN
        indent = " " * (width(facts) if beside else len(at) + 2)
        first, *others = self._output.wrapped(f"{facts}{_reason(event)}", indent)
        # Colours come after the line is wrapped: their codes would count as its text.
        what = self._output.paint(event.what, COLOURS.get(event.kind, Colour.PLAIN))
        first = first.replace(f"{at}  {job}{event.what}", f"{self._output.paint(at, Colour.FAINT)}  {job}{what}", 1)
        return [first, *others]


def _reason(event: ApiEvent) -> str:
    """Return the reason, with the name of the event's node, or the id of a run that was opened or ended."""
    if event.kind in RUN_BOUNDARIES:
        return f"run {event.run}: {event.reason}"
    # A node may be called like any other word of the reason, such as "a".
    named = event.node is None or re.search(rf"(^|\b(node|host) ){re.escape(event.node)}(?![\w-])", event.reason)
    return event.reason if named else f"{event.node}: {event.reason}"
