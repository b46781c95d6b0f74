"""The answers of `GET /v1/jobs/{job}/stacks`, as records; `api` describes their conventions."""

from __future__ import annotations

from msgspec import Struct

from coordinatord.protocol.http.api import AnyText, Items, Number, Whole


class ThreadStatus(Struct, frozen=True, kw_only=True):
    """The Python stack of one thread."""

    name: AnyText
    frames: Items[AnyText]
    """They are formatted as `function (file:line)`, the innermost first."""


class CollectiveStatus(Struct, frozen=True, kw_only=True):
    """A worker's present collective, by torch's flight recorder."""

    group: AnyText
    number: Whole
    """The number of the collective in its process group."""
    state: AnyText
    """`waits`: it is not over. `done`: it is over, and no other was begun. `moves`: the worker makes progress."""
    operation: AnyText
    shape: AnyText
    age_s: Number
    """The time since the worker began it."""


class StackedWorker(Struct, frozen=True, kw_only=True):
    """One worker of a group with equal stacks."""

    rank: Whole
    node: AnyText
    host: AnyText
    origin: AnyText
    """`worker`: it has sent the stack. `signal`: it did not answer, so faulthandler wrote it. `none`: no stack."""
    state: AnyText = ""
    """The state of its process in a word; empty if not known."""
    waits_in: AnyText = ""
    """The kernel function in which its main thread waits."""
    pid: Whole = 0
    """Its process id; 0 if there is none."""
    cpus: Number = 0.0
    """The CPUs that it and its child processes used during the sample."""
    collective: CollectiveStatus | None = None
    """None if its torch has no flight recorder, or there was no collective."""


class StackGroup(Struct, frozen=True, kw_only=True):
    """Workers with equal stacks."""

    threads: Items[ThreadStatus]
    """The main thread is first."""
    workers: Items[StackedWorker]
    problem: AnyText = ""
    """Why there is no stack; empty if there is one."""


class HangStatus(Struct, frozen=True, kw_only=True):
    """The workers that block all others, by one sample, or by two if one cannot distinguish a hang from slow work."""

    kind: AnyText
    """`absent`: nothing shows what the culprits do. `stuck`: they do not move. `busy`: they do something else.
    `mismatched`: they wait in another collective than the others. `network`: a collective completes for none."""
    sentence: AnyText
    ranks: Items[Whole]
    """The culprits; with `network`, which has none, the workers in a collective that should complete."""
    waiting: Whole
    """How many workers wait in a collective."""


class StacksAnswer(Struct, frozen=True, kw_only=True):
    """`GET /v1/jobs/{job}/stacks`: the stacks of the workers of the present round."""

    job: AnyText
    run: AnyText
    round: Whole
    verdict: HangStatus | None = None
    """None if no worker is seen to wait, if a worker makes progress, or if only some ranks were requested."""
    groups: Items[StackGroup]
    """The largest group is first."""
    notes: Items[AnyText] = ()
    """Which stacks are missing, and why; or why there is no verdict although one sample shows a hang."""
