"""Jobs of two nodes that run an example against the real library, and that are broken on purpose.

The libraries are not among the tools for development: `make integrations` installs them. Without them these tests are
skipped.
"""

from __future__ import annotations

import importlib.metadata
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, Node
from tests.support.fixtures import cluster, coordinator
from tests.support.programs import wait_until

__all__ = ["cluster", "coordinator"]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "integrations"

PACED = Path(__file__).with_name("paced.py")

EVERY = 100
"""Most examples save after each so many steps."""


def need(*distributions: str) -> pytest.MarkDecorator:
    """Skip tests where one of these libraries is not installed."""
    for name in distributions:
        try:
            importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            return pytest.mark.skip(f"{name} is not installed: make integrations")
    return pytest.mark.slow


class Training:
    """A job of two nodes, with one worker each, that run an example."""

    def __init__(self, cluster: Cluster, flags: tuple[str, ...], command: tuple[str, ...]) -> None:
        """Start both, with these flags of nodeclient."""
        self.cluster = cluster
        self.flags = flags
        self.command = command
        self.nodes = {name: self.join(name) for name in "ab"}

    @property
    def output(self) -> str:
        """What all nodes have said, those that were killed first."""
        return "\n".join(line for node in self.cluster.nodes for line in node.lines)

    def join(self, name: str) -> Node:
        """Start a node; one of the name that was killed comes back."""
        flags = ("--nnodes", "2", *self.flags)
        # Each node takes the machine for its own; several threads of each would wait for each other.
        return self.cluster.join(name, *flags, command=self.command, prefix=("env", "OMP_NUM_THREADS=1"))

    def await_step(self, number: int, step: int) -> int:
        """Wait until status shows that both workers of a round came to a step; return the step that it shows then."""

        def look() -> int | None:
            ended = [node for node in self.nodes.values() if not node.reading]
            assert not ended, f"{ended[0].name} ended before step {step} of round {number}:\n{self.output}"
            job = self.cluster.coordinator.job(self.cluster.job)
            if job is None or job["round"] != number:
                return None
            steps = [reported or 0 for node in job["nodes"] for reported in node["steps"]]
            return min(steps) if len(steps) == 2 and min(steps) >= step else None

        try:
            return wait_until(f"step {step} of round {number}", look)
        except AssertionError as error:
            raise AssertionError(f"{error}; the nodes have said:\n{self.output}") from None

    def replace_node(self, name: str) -> None:
        """Kill a node with its worker, and start it again."""
        self.nodes[name].process.kill()
        self.nodes[name].wait()
        self.nodes[name] = self.join(name)

    def restart(self) -> None:
        """Have all workers stop in order, and a new round form of the same nodes."""
        self.cluster.operate("restart", self.cluster.job)

    def finish(self) -> None:
        """Wait for the end of the training; no worker may have failed."""
        assert [node.wait() for node in self.nodes.values()] == [0, 0], self.output
        job = self.cluster.await_state(state="succeeded")
        assert job["restarts"]["used"] == 0, self.output

    def break_twice(
        self, every: int = EVERY, begins: str = r"goes on after step (\d+)", ahead: int = 0, *, kept: bool = False
    ) -> list[int]:
        """Kill one node, and then have all workers stop in order; return the step after which each round went on.

        The script saves after `every` so many steps, or each step is `kept`. `begins` is what workers say when they go
        on, and `ahead` by how much the number in it is beyond that step.
        """
        self.await_step(1, every + every // 10)
        self.replace_node("b")
        before = self.await_step(2, every + every // 2)
        self.restart()
        self.await_step(3, before)
        begun = sorted({int(step) - ahead for step in re.findall(begins, self.output)})
        assert len(begun) == 3, self.output
        assert begun[0] == 0
        assert begun[1] >= every
        resumed = re.findall(r"round (\d) resumes at step ([\d,]+) from memory, ([\d,]+) steps? redone", self.output)
        if kept:
            assert set(resumed) == {("2", f"{begun[1]:,}", "0"), ("3", f"{begun[2]:,}", "0")}
        else:
            assert begun[1] % every == 0, "from the last checkpoint"
            assert not resumed
        assert begun[2] >= before, "no step was lost"
        return begun


Train = Callable[..., Training]


def check_order(train: Train, folder: Path, example: str, steps: int, preload: str) -> None:
    """Check that an example has learned from the same data in the same order though a node was killed."""
    for disturbed in (True, False):
        job = train(example, "--checkpoints", folder / str(disturbed), "--steps", str(steps), preload=preload)
        if disturbed:
            job.await_step(1, 50)  # an epoch has 32 steps
            job.replace_node("b")
        job.finish()
    learned = re.findall(rf"done after step {steps}: learned (.*)", job.output)
    assert len(learned) == 2, "the output is that of both trainings"
    assert learned[0] == learned[1]


@pytest.fixture
def train(cluster: Cluster) -> Train:
    """Start a training: the example's name and arguments, the modules to preload, and other flags of nodeclient."""

    def start(example: str, *arguments: str | Path, preload: str, flags: tuple[str, ...] = ()) -> Training:
        command = (sys.executable, str(PACED), str(EXAMPLES / example), *map(str, arguments))
        return Training(cluster, ("--preload", preload, *flags), command)

    return start
