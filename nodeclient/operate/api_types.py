"""What coordinators answer, as frozen records: each value is checked, each text made fit for a terminal.

What an older coordinator does not say is None, or empty. Units: seconds. How it is shown does not belong here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from coordinatord.protocol.exit_codes import describe_exit
from coordinatord.protocol.fields import LINE_MAX
from coordinatord.protocol.messages import EarlyEnd, Failure, Report, SecondaryFailure, Straggler
from coordinatord.protocol.text import clip
from nodeclient.operate.errors import AnswerError

TEXT_MAX = 4_096
"""In characters: the longest reason that a coordinator gives."""

ITEMS_MAX = 1_000_000
"""Of a list: ranks are the most numerous, and there are no more of them."""

NUMBER_MAX = 2.0**62
"""Steps, seconds, times: more is no number that a training job has."""

TIME_MAX = 250_000_000_000.0
"""The year 9892: later ones are no dates."""

_ID = re.compile(r"[!-~]{1,128}")
"""What can be given back in a header as it came; a coordinator's have some forty characters."""

ENDED = frozenset({"succeeded", "failed", "stopped"})
"""States of a job that it does not leave by itself."""

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Node:
    """A node of a job."""

    name: str
    host: str
    address: str
    state: str
    reason: str
    ranks: tuple[int, int] | None
    """The first and the last one; None outside a round."""
    last_seen_s: float
    steps: tuple[int, ...]
    """Of its ranks, as far as they are known."""
    step_age_s: float | None
    drained: bool
    version: str
    """Its release, or the version of the protocol that it speaks; empty if neither is known."""


@dataclass(frozen=True, slots=True)
class Job:
    """The live or last run of a job."""

    name: str
    run: str
    state: str
    health: str
    """How a round that goes on does: `well`, or what is wrong."""
    reason: str
    round: int
    world_size: int
    restarts_used: int
    restarts_max: int | None
    report: Report | None
    """Why its last round that failed did so."""
    nodes: tuple[Node, ...]
    spares: int
    missing: int
    missing_nodes: tuple[str, ...]
    """The first few of them."""
    step: int | None
    steps_per_s: float | None
    state_s: float | None
    opened_s: float | None
    goodput: float | None
    """None where no step was ever reported, as it is not known then."""
    running_s: float | None
    """For how long workers ran of which nobody knows whether they trained."""

    @property
    def shown_state(self) -> str:
        """What to call the state that it is in: of one that is not well, that it is not."""
        return self.state if self.health == "well" else self.health

    @property
    def ended(self) -> bool:
        """Whether it is over: a job that nodes join again under this name is a new run."""
        return self.state in ENDED


@dataclass(frozen=True, slots=True)
class Drained:
    """A mark on a node or host: no round takes it."""

    node: str
    reason: str


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a job."""

    id: str
    """By which a coordinator finds it again, whatever it is made of."""
    number: int
    """In the order of the coordinator that told of it; another one may begin anew."""
    at: float
    """In seconds since the epoch, by the coordinator's clock."""
    job: str
    """Empty where it concerns no job, or all."""
    run: str
    kind: str
    what: str
    round: int | None
    node: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class Done:
    """What became of a command."""

    done: bool
    message: str


class Fields:
    """A map that a coordinator sent. Each look at it is checked, and raises `AnswerError`."""

    def __init__(self, value: object, where: str) -> None:
        if not isinstance(value, dict):
            raise AnswerError(f"{where} is no map")
        self._values: dict[Any, Any] = value
        self._where = where

    def must_have(self, name: str) -> None:
        """Make sure that something is said of a field."""
        if name not in self._values:
            raise AnswerError(f"{self._where} has no {name}")

    def text(self, name: str) -> str:
        """Return a text, printable and of bounded length."""
        return _text(self._values.get(name), f"{self._where}.{name}")

    def id(self, name: str) -> str:
        """Return what is to be given back as it came."""
        value = self._values.get(name)
        if not isinstance(value, str) or not _ID.fullmatch(value):
            raise AnswerError(f"{self._where}.{name} is no id")
        return value

    def number(self, name: str) -> float:
        """Return a number, neither infinite nor absurd."""
        value = self._values.get(name)
        if not isinstance(value, int | float) or isinstance(value, bool) or not -NUMBER_MAX < value < NUMBER_MAX:
            raise AnswerError(f"{self._where}.{name} is no number")
        return value

    def count(self, name: str) -> int:
        """Return a whole number from 0 upward."""
        value = self.number(name)
        if not isinstance(value, int) or value < 0:
            raise AnswerError(f"{self._where}.{name} is no whole number")
        return value

    def flag(self, name: str) -> bool:
        """Return whether something holds; nothing said means that it does not."""
        return self._values.get(name) is True

    def several(self, name: str, read: Callable[[object, str], Item]) -> tuple[Item, ...]:
        """Return what a list holds, each item read; nothing said means an empty one."""
        values = self._values.get(name, [])
        if not isinstance(values, list) or len(values) > ITEMS_MAX:
            raise AnswerError(f"{self._where}.{name} is no list")
        return tuple(read(value, f"{self._where}.{name}[{index}]") for index, value in enumerate(values))

    def map(self, name: str) -> Fields:
        """Return a map in this one."""
        return Fields(self._values.get(name), f"{self._where}.{name}")

    def maybe(self, name: str, read: Callable[[str], Item]) -> Item | None:
        """Return what `read` makes of a field that may be empty or missing."""
        return None if self._values.get(name) is None else read(name)


def read_jobs(value: object) -> tuple[Job, ...]:
    """Read the answer to `GET /v1/jobs`."""
    answer = Fields(value, "answer")
    answer.must_have("jobs")
    return answer.several("jobs", read_job)


def read_drained(value: object) -> tuple[Drained, ...]:
    """Read the marks in the answer to `GET /v1/jobs`."""
    return Fields(value, "answer").several("drained", _drained)


def read_job(value: object, where: str = "answer") -> Job:
    """Read one job."""
    job = Fields(value, where)
    restarts = job.map("restarts")
    missing, progress, ledger = (job.maybe(name, job.map) for name in ("missing", "progress", "ledger"))
    seconds = ledger.maybe("seconds", ledger.map) if ledger else None
    return Job(
        name=job.text("job"),
        run=job.text("run"),
        state=job.text("state"),
        health=job.maybe("health", job.text) or "well",
        reason=job.text("reason"),
        round=job.count("round"),
        world_size=job.count("world_size"),
        restarts_used=restarts.count("used"),
        restarts_max=restarts.maybe("max", restarts.count),
        report=job.maybe("failure", lambda name: _report(job.map(name))),
        nodes=job.several("nodes", _node),
        spares=job.maybe("spares", job.count) or 0,
        missing=missing.count("count") if missing else 0,
        missing_nodes=missing.several("nodes", _text) if missing else (),
        step=progress.maybe("step", progress.count) if progress else None,
        steps_per_s=progress.maybe("steps_per_s", progress.number) if progress else None,
        state_s=job.maybe("state_s", job.number),
        opened_s=job.maybe("opened_s", job.number),
        goodput=ledger.maybe("goodput", ledger.number) if ledger else None,
        running_s=seconds.maybe("running", seconds.number) if seconds else None,
    )


def read_events(value: object) -> tuple[Event, ...]:
    """Read the answer to `GET /v1/jobs/{job}/events`."""
    answer = Fields(value, "answer")
    answer.must_have("events")
    return answer.several("events", read_event)


def read_event(value: object, where: str = "event") -> Event:
    """Read one event."""
    event = Fields(value, where)
    return Event(
        id=event.id("id"),
        number=event.count("number"),
        at=min(max(event.number("at"), 0.0), TIME_MAX),
        job=event.text("job"),
        run=event.text("run"),
        kind=event.text("kind"),
        what=event.text("what"),
        round=event.maybe("round", event.count),
        node=event.maybe("node", event.text),
        reason=event.text("reason"),
    )


def read_done(value: object) -> Done:
    """Read the answer to a command."""
    answer = Fields(value, "answer")
    return Done(answer.flag("done"), answer.text("message"))


def _node(value: object, where: str) -> Node:
    node = Fields(value, where)
    ranks = node.several("ranks", _count)
    release, protocol = node.maybe("release", node.text), node.maybe("protocol", node.count)
    return Node(
        name=node.text("node"),
        host=node.text("host"),
        address=node.text("address"),
        state=node.text("state"),
        reason=node.text("reason"),
        ranks=(ranks[0], ranks[-1]) if ranks else None,
        last_seen_s=node.number("last_seen_s"),
        steps=tuple(step for step in node.several("steps", _count_or_none) if step is not None),
        step_age_s=node.maybe("step_age_s", node.number),
        drained=node.flag("drained"),
        version=release or ("" if protocol is None else f"protocol-{protocol}"),
    )


def _drained(value: object, where: str) -> Drained:
    mark = Fields(value, where)
    return Drained(mark.text("node"), mark.text("reason"))


def _report(told: Fields) -> Report:
    """Return the failure as nodes are told of it, but for what the view has left out."""
    return Report(
        round=told.count("round"),
        nodes=told.count("nodes"),
        node=told.text("node"),
        host=told.text("host"),
        failure=Failure(
            rank=told.count("rank"),
            local_rank=told.count("local_rank"),
            exit_code=_exit_code(told),
            pid=told.maybe("pid", told.count) or 0,
            message=told.text("message"),
            error=told.text("error"),
            last_lines=told.several("last_lines", _line),
            followers=(),
            age_s=told.number("age_s"),
            log=told.maybe("log", told.text) or "",
        ),
        consequences=told.several("consequences", _consequence),
        consequences_count=told.count("consequences_count"),
        same_error_count=told.maybe("same_error_count", told.count) or 0,
        early=told.several("early", _early_end),
        step=told.maybe("step", told.count),
        stragglers=told.several("stragglers", _straggler),
    )


def _consequence(value: object, where: str) -> SecondaryFailure:
    told = Fields(value, where)
    return SecondaryFailure(told.text("node"), told.count("rank"), _exit_code(told), told.flag("same_error"))


def _early_end(value: object, where: str) -> EarlyEnd:
    told = Fields(value, where)
    return EarlyEnd(told.text("node"), told.count("rank"), told.number("before_s"))


def _straggler(value: object, where: str) -> Straggler:
    told = Fields(value, where)
    return Straggler(told.text("node"), told.count("rank"), told.count("step"))


def _exit_code(told: Fields) -> int:
    """Return the code as `subprocess` has it: the view gives a shell's, which does not tell 134 from SIGABRT."""
    code = told.count("exit_code")
    how = told.maybe("how", told.text)
    return 128 - code if how == describe_exit(128 - code) and code > 128 else code  # noqa: PLR2004 - a shell's


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise AnswerError(f"{where} is no text")
    return clip(value, TEXT_MAX)


def _line(value: object, where: str) -> str:
    return clip(_text(value, where), LINE_MAX)


def _count(value: object, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < NUMBER_MAX:
        raise AnswerError(f"{where} is no whole number")
    return value


def _count_or_none(value: object, where: str) -> int | None:
    return None if value is None else _count(value, where)
