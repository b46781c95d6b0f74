"""coordinatord alone in the simulated world, on a disk with the real database.

It can be killed at every point of a commit (`CrashPoint`), stopped and resumed, and its disk can fail (`disk`).
"""

from __future__ import annotations

from coordinatord.server.driver import RETRY_S
from coordinatord.store.interface import StoreError
from tests.sim.coordinator import SimulatedCoordinator
from tests.sim.crash_point import CrashPoint
from tests.sim.disk import Fault
from tests.sim.event_queue import Clock


class Daemon(SimulatedCoordinator):
    """One coordinatord after another, on one disk."""

    # Life and death

    def start(self) -> None:
        """Start the process, if it is down; while its disk cannot be written it ends, and starts again each second."""
        if self.up:
            return
        if self.disk.fault is not None:
            self._queue.after(RETRY_S, self.start)
            return
        world = self._world
        self.host_up = True
        self.clock = Clock(self._queue, world.chance.uniform(0.0, 1e5), world.draw_rate())
        self._begin_life()

    def crash(self, *, host: bool = False) -> None:
        """Kill the process; with its `host`, its connections are not closed. A commit on its way may become durable."""
        if not self.up:
            return
        world = self._world
        if self._writing and self.disk.fault in {None, Fault.HANGS} and world.chance.random() < 0.5:
            self._make_durable()
        world.trace.note("coordinatord is killed%s", " with its host" if host else "")
        self.host_up = not host
        self._end_life(notified=not host)

    # Records out

    def _write(self) -> None:
        takes = self._world.chance.random() * self._world.scenario.commit_s
        self._queue.after(takes, self._written, self._writing)

    def _written(self, attempt: int) -> None:
        if not self.up or self._writing != attempt:
            return
        if self.disk.fault is Fault.HANGS or self.paused:
            self._queue.after(0.1, self._written, attempt)
            return
        if self._dies(CrashPoint.BEFORE):
            return
        try:
            self._make_durable()
        except StoreError as error:
            self._writing = self._attempts = self._attempts + 1
            self._queue.after(RETRY_S, self._retry, self._writing)
            self._store_failed(str(error))
            return
        self._wrote()

    def _make_durable(self) -> None:
        self.disk.append(self._entries)
        self._world.trace.records("durable", [record for _, record in self._decided])
        self._tell_durable(self._decided)
