"""Real torchrun processes with the backend coordinatord."""

import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import STDLIB_PYTHON, WORKER, Coordinator, Launcher
from tests.support.programs import BIN, clean_environ, wait_until

HERE = Path(__file__).parent

FORKED = ("--start-method", "fork", "--run-path")
"""torchrun itself runs the script in processes that it forks: they need not import torch, which takes two seconds."""

LIGHT = ("--no-python", *STDLIB_PYTHON, str(WORKER))
"""Workers without torch."""


NEEDS_BACKENDS = pytest.mark.skipif(
    tuple(map(int, version("torch").split(".")[:2])) < (2, 5), reason="torch looks for others' backends from 2.5 on"
)
"""Skips a test that has torch find the backend by its name, where it cannot."""


class Torchrun(Launcher):
    """A torchrun with its workers."""

    def __init__(self, endpoint: str, job: str, *arguments: str) -> None:
        rendezvous = ("--rdzv-backend=coordinatord", f"--rdzv-endpoint={endpoint}", f"--rdzv-id={job}")
        super().__init__(sys.executable, BIN / "torchrun", *rendezvous, *arguments, environ=clean_environ())

    def await_sum(self, nodes: int, after: dict[str, Any] | None = None) -> dict[str, Any]:
        """Wait until a worker has added up over so many nodes, in a later round than that of the event `after`."""
        least = after["round"] if after else 0

        def look() -> dict[str, Any] | None:
            assert self.reading, f"torchrun ended before it trained with {nodes} nodes:\n{self.output}"
            sums = [event for event in self.events if event["event"] == "sum" and event["round"] > least]
            return next((event for event in sums if event["sum"] == nodes), None)

        return wait_until(f"a sum over {nodes} after round {least} of {self.command}", look)


def await_node(coordinator: Coordinator, job: str, state: str) -> None:
    """Wait until a node of the job is in this state."""

    def look() -> bool:
        known = coordinator.job(job)
        return known is not None and state in {node["state"] for node in known["nodes"]}

    wait_until(f"a node of job {job} that is {state}", look)


class Torchruns:
    """The torchrun processes of a test."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.programs: list[Torchrun] = []

    def start(self, job: str, *arguments: str) -> Torchrun:
        """Start one; the last arguments say what its workers run."""
        program = Torchrun(self.endpoint, job, *arguments)
        self.programs.append(program)
        return program

    def close(self) -> None:
        """Kill what still lives."""
        for program in self.programs:
            program.close()
