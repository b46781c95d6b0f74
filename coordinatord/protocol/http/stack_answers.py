"""The answers of `GET /v1/jobs/{job}/stacks`, as records; `api` says what such records have in common."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from coordinatord.protocol.http.api import ITEMS_MAX, AnyText, Number, Whole


class ThreadStatus(Struct, frozen=True, kw_only=True):
    """The Python stack of one thread."""

    name: AnyText
    frames: Annotated[tuple[AnyText, ...], Meta(max_length=ITEMS_MAX)]
    """They are written as `function (file:line)`, the innermost first."""


class CollectiveStatus(Struct, frozen=True, kw_only=True):
    """The collective at which a worker is, by torch's flight recorder."""

    group: AnyText
    number: Whole
    """The number of the collective in its process group."""
    state: AnyText
    """`waits`: it is not over. `done`: it is over, and no other was begun. `moves`: the worker gets on."""
    operation: AnyText
    shape: AnyText
    age_s: Number
    """How long ago the worker has begun it."""


class StackedWorker(Struct, frozen=True, kw_only=True):
    """One worker of a group of equal stacks."""

    rank: Whole
    node: AnyText
    host: AnyText
    origin: AnyText
    """How the stack was obtained: `worker`, `signal` or `none`."""
    state: AnyText = ""
    """The state of its process in a word; empty if it is not known."""
    waits_in: AnyText = ""
    """The function of the kernel in which its main thread waits."""
    pid: Whole = 0
    """Its process; 0 if there is none."""
    cpus: Number = 0.0
    """How many CPUs it used while it was looked at, with the processes that it has started."""
    collective: CollectiveStatus | None = None
    """None if its torch has no flight recorder, or there was no collective."""


class StackGroup(Struct, frozen=True, kw_only=True):
    """Workers that stand at the same place: their stacks are equal."""

    threads: Annotated[tuple[ThreadStatus, ...], Meta(max_length=ITEMS_MAX)]
    """The main thread is first."""
    workers: Annotated[tuple[StackedWorker, ...], Meta(max_length=ITEMS_MAX)]
    problem: AnyText = ""
    """Why there is no stack; empty if there is one."""


class HangStatus(Struct, frozen=True, kw_only=True):
    """Which workers hold up all others, by one look, or by two where one cannot distinguish a hang from slow work."""

    kind: AnyText
    """`absent`, `stuck`, `busy`, `mismatched` or `network`."""
    sentence: AnyText
    ranks: Annotated[tuple[Whole, ...], Meta(max_length=ITEMS_MAX)]
    """The workers that are to blame; with `network` those that wait, which is all of them."""
    waiting: Whole
    """How many workers wait in a collective."""


class StacksAnswer(Struct, frozen=True, kw_only=True):
    """`GET /v1/jobs/{job}/stacks`: where the workers of the present round stand."""

    job: AnyText
    run: AnyText
    round: Whole
    verdict: HangStatus | None = None
    """None if no worker is seen to wait, if a worker gets on, or if only some ranks were asked for."""
    groups: Annotated[tuple[StackGroup, ...], Meta(max_length=ITEMS_MAX)]
    """The largest group is first."""
    notes: Annotated[tuple[AnyText, ...], Meta(max_length=ITEMS_MAX)] = ()
    """Which stacks are missing, and why; or why there is no verdict though one look shows a hang."""
