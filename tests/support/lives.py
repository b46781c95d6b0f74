"""A coordinatord that is killed and started again with the same state directory and port, and the state that it keeps.

The nodes that watch it are those of `cluster` (real ones) and of `fleet` (many in one process).
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nodeclient.host.ports import PortReservation
from tests.support.cluster import Coordinator
from tests.support.programs import BIN, Program, wait_until

ROOT = Path(__file__).resolve().parents[2]


class Lives:
    """The lives of one coordinatord."""

    def __init__(self, state_dir: Path, *flags: str, prefix: Sequence[str] = ()) -> None:
        """Begin the first life; `prefix` as for `Coordinator`."""
        # The port is held from first to last: the kernel might give a port without a listener to a node's own
        # connection, and a node that looks for the coordinator might even connect to itself there.
        self._port = PortReservation()
        self._state_dir = state_dir
        self._flags = flags
        self.now = self._begin(prefix)

    def kill(self) -> None:
        """End the present life with SIGKILL."""
        self.now.process.kill()
        assert self.now.wait() == 128 + 9, self.now.output
        self.now.close()

    def start(self, prefix: Sequence[str] = ()) -> Coordinator:
        """Begin the next life; return once it serves."""
        self.now = self._begin(prefix)
        return self.now

    def kill_early(self, within_s: float) -> None:
        """Begin a life, and end it with SIGKILL so many seconds later, whether it serves by then or not."""
        where = ("--host", "127.0.0.1", "--port", str(self._port.port), "--state-dir", str(self._state_dir))
        program = Program(BIN / "coordinatord", *where, *self._flags)
        with contextlib.suppress(subprocess.TimeoutExpired):
            program.process.wait(within_s)
        ended_by_itself = program.process.poll() is not None
        output = program.output
        program.close()
        assert not ended_by_itself, f"coordinatord does not start:\n{output}"

    def close(self) -> None:
        """End the present life, and free the port."""
        self.now.close()
        self._port.close()

    def _begin(self, prefix: Sequence[str]) -> Coordinator:
        return Coordinator(*self._flags, port=self._port.port, state_dir=self._state_dir, prefix=prefix)


@dataclass(frozen=True, slots=True)
class MemberState:
    """The parts of a job that a coordinator must know again after its death."""

    run: str
    state: str
    round: int
    restarts: int
    ranks: dict[str, list[int]]

    @classmethod
    def of(cls, coordinator: Coordinator, job: str) -> MemberState:
        """Return the present state, from the status of a job."""
        status = coordinator.job(job)
        assert status is not None, f"the coordinator has forgotten job {job}:\n{coordinator.output}"
        ranks = {node["node"]: node["ranks"] for node in status["nodes"]}
        return cls(status["run"], status["state"], status["round"], status["restarts"]["used"], ranks)


class FleetProgram(Program):
    """The nodes of `fleet`, in a process of their own."""

    def __init__(self, coordinator: Coordinator, job: str, size: int) -> None:
        """Start the process."""
        self.size = size
        place = ("127.0.0.1", str(coordinator.port), job, str(size))
        super().__init__(sys.executable, "-m", "tests.support.fleet", *place, cwd=ROOT, stdin=subprocess.PIPE)
        self._seen = 0
        self._attached: dict[str, Any] = {}

    def events_of(self, event: str) -> list[dict[str, Any]]:
        """Return its events of one kind, so far."""
        return [status for line in list(self.lines) if (status := json.loads(line))["event"] == event]

    def await_attached(self, since: float) -> float:
        """Wait until all nodes are attached in sessions that began after `since`; return when that was the case."""

        def look() -> dict[str, Any] | None:
            assert self.reading, f"the nodes have ended:\n{self.output}"
            while self._seen < len(self.lines):
                status = json.loads(self.lines[self._seen])
                self._seen += 1
                if status["event"] == "attached":
                    self._attached = status
            return self._attached if self._attached.get("oldest", 0.0) > since else None

        return float(wait_until(f"{self.size} nodes to be attached", look)["at"])

    def close(self) -> None:
        """End the process: well, if the end of its input is enough for that."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        super().close()


def await_back(coordinator: Coordinator, job: str) -> None:
    """Wait until every node of a job that a coordinator knows is attached to it."""

    def look() -> bool:
        assert coordinator.reading, f"coordinatord has ended:\n{coordinator.output}"
        status = coordinator.job(job)
        return status is not None and all(node["reason"] != "disconnected" for node in status["nodes"])

    wait_until(f"all nodes of job {job} to be back", look)
