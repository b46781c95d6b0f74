"""Many nodes in one process: real agents with real sessions, whose workers are only pretended and never end.

python -m tests.support.fleet HOST PORT JOB COUNT

It shows what a coordinator's death does to hundreds of nodes, for which a process each would be too much. It prints one
JSON object a line: `attached` whenever the last of the nodes has received its goal; `started` and `ended` for the
workers of one node; `gone` for a node that exits. It ends with its standard input, and then prints `answered`: how long
heartbeats waited for their answers. Its caller judges what that means for a coordinator; the figures of a rendezvous
are in `benchmarks/fleet.py`, whose nodes are lighter and do not come back.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import NoReturn

from coordinatord.protocol.ip_addresses import Endpoint
from coordinatord.protocol.messages import Goal, JobSpec, Join
from nodeclient.access.keyring import INSECURE_ACCESS, AccessSettings
from nodeclient.core.agent import Agent
from nodeclient.core.agent_settings import Settings
from nodeclient.core.effects import Effect, Exit, Kill, Probe, Reconnect, SendObserved, Start, Sweep, Terminate
from nodeclient.core.events import (
    CoordinatorDegraded,
    DesiredReceived,
    Event,
    Reached,
    SessionClosed,
    SessionOpened,
    Swept,
    WorkerExited,
    WorkersStarted,
)
from nodeclient.shell.coordinator_connection import CoordinatorConnection
from nodeclient.shell.participation import AgentLoop
from tests.support.builders import a_diagnosis, a_join, an_offer

SETTINGS = Settings(workers=1, join_timeout_s=600.0, stop_timeout_s=30.0)

COMING_AT_ONCE = 100
"""Nodes that connect at a time: of thousands in one process on a busy machine, none would agree on TLS in time."""

MASTER_PORT = 29_500
"""The port that every node offers; nothing connects to it."""


@dataclass(frozen=True, slots=True)
class Place:
    """What the nodes have in common."""

    coordinator: Endpoint
    job: str
    size: int
    access: AccessSettings


class Node:
    """One node."""

    def __init__(self, index: int, place: Place, fleet: Fleet) -> None:
        self.name = f"sim-{index:04}"
        self._place = place
        self._fleet = fleet
        self._loop = asyncio.get_running_loop()
        self._agent = Agent(SETTINGS, MASTER_PORT, self._loop.time())
        self._session = CoordinatorConnection(
            [place.coordinator], place.access, make_join=self._join, submit=self._receive
        )
        self._events = AgentLoop(self._agent, self._carry_out, _give_up)
        self._opened_at = 0.0
        self._asked_at: float | None = None
        """When it sent the heartbeat that has no answer yet."""
        self._incarnation = time.time_ns()

    async def run(self) -> None:
        """Take part in the job until cancelled."""
        await self._fleet.coming.acquire()
        await self._session.run()

    def submit(self, event: Event) -> None:
        """Let the agent handle an event."""
        self._events.submit(event)

    def _receive(self, event: Event) -> None:
        self.submit(event)
        self._note(event)

    def _note(self, event: Event) -> None:
        if isinstance(event, DesiredReceived | CoordinatorDegraded) and self._asked_at is not None:
            self._fleet.answers_s.append(time.monotonic() - self._asked_at)
            self._asked_at = None
        match event:
            case SessionOpened():
                if not self._opened_at:
                    self._fleet.coming.release()
                self._opened_at = time.monotonic()
            case DesiredReceived(desired) if desired.goal is Goal.RUN:
                self._fleet.note_attached(self.name, self._opened_at)
            case SessionClosed():
                self._asked_at = None
                self._fleet.note_detached(self.name)
            case _:
                pass

    def _carry_out(self, effect: Effect, _: Event) -> None:
        match effect:
            case Start(run=run, round=number, assignment=part):
                emit("started", node=self.name, run=run, round=number, rank=part.first_rank)
                self.submit(WorkersStarted())
            case Terminate() | Kill():
                emit("ended", node=self.name)
                self.submit(WorkerExited(0, -15, a_diagnosis()))
            case Sweep():
                self.submit(Swept(MASTER_PORT))
            case Probe():
                self.submit(Reached(effect.run, effect.round))
            case SendObserved(observed):
                if observed.beat and self._asked_at is None:
                    self._asked_at = time.monotonic()
                self._session.send(observed)
            case Reconnect(reason):
                self._session.close(reason)
            case Exit(code, message):
                emit("gone", node=self.name, code=code, message=message)
            case _:
                pass

    def _join(self) -> Join:
        place = self._place
        return a_join(
            self.name,
            job=place.job,
            incarnation=self._incarnation,
            spec=JobSpec(place.size, place.size, 0),
            offer=an_offer(self.name, join_timeout_s=SETTINGS.join_timeout_s, stop_timeout_s=SETTINGS.stop_timeout_s),
            observed=self._agent.observed(self._loop.time(), beat=True),
        )


def _give_up(error: Exception) -> NoReturn:
    raise error


class Fleet:
    """All nodes, and which of them are attached to a coordinator."""

    def __init__(self, place: Place) -> None:
        self._nodes = [Node(index, place, self) for index in range(place.size)]
        self._attached: dict[str, float] = {}
        self.coming = asyncio.Semaphore(COMING_AT_ONCE)
        """The places for nodes that connect for the first time."""
        self.answers_s: list[float] = []
        """How long each heartbeat has waited for its answer."""

    async def run(self) -> None:
        """Take part in the job until standard input ends."""
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(node.run(), name=node.name) for node in self._nodes]
        ended = loop.create_future()

        def read() -> None:
            if not os.read(0, 1) and not ended.done():
                ended.set_result(None)

        loop.add_reader(0, read)
        await asyncio.wait([ended, *tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result
        waits_ms = sorted(seconds * 1_000 for seconds in self.answers_s) or [0.0]
        late_ms = waits_ms[len(waits_ms) * 99 // 100]
        emit("answered", times=len(waits_ms), median_ms=median(waits_ms), late_ms=late_ms, worst_ms=waits_ms[-1])

    def note_attached(self, name: str, opened_at: float) -> None:
        """Note that a node has received, in a session that began at `opened_at`, the goal to run its round."""
        if name not in self._attached:
            self._attached[name] = opened_at
            if len(self._attached) == len(self._nodes):
                # A test that waits for nodes to be back needs to know that none of these sessions is an old one.
                emit("attached", at=time.monotonic(), oldest=min(self._attached.values()))

    def note_detached(self, name: str) -> None:
        """Note that a node has no session."""
        self._attached.pop(name, None)


def emit(event: str, **facts: object) -> None:
    """Print one event; times are of the monotonic clock, which all processes of a host share."""
    print(json.dumps({"event": event, **facts}), flush=True)  # noqa: T201 - what started us reads it


def main() -> None:
    """Do as the arguments say."""
    host, port, job, size = sys.argv[1:]
    token_file = os.environ.get("NODECLIENT_TOKEN_FILE")
    access = AccessSettings(token_file=Path(token_file)) if token_file else INSECURE_ACCESS

    async def live() -> None:
        await Fleet(Place(Endpoint(host, int(port)), job, int(size), access)).run()

    with asyncio.Runner() as runner:  # as a nodeclient does
        runner.run(live())


if __name__ == "__main__":
    main()
