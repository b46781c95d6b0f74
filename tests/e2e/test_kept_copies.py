"""The loss of a host, with all real programs: what it alone kept is had from its copy, and no disk is needed."""

import os
import signal
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import Cluster, Coordinator, Node
from tests.support.kept_training import notes_of
from tests.support.programs import wait_until

pytestmark = pytest.mark.slow

FOREVER = 1_000_000
"""More steps than are done: each test ends the training when it has seen enough."""

WARM = ("--preload", "torch,torch.distributed.fsdp,numpy")


class Training:
    """FSDP2 on nodes that count as hosts of their own, which save their shards at each step."""

    def __init__(self, folder: Path, nodes: str = "abc", least: int = 2, flags: tuple[str, ...] = ()) -> None:
        self.notes = folder / "notes"
        self.notes.mkdir()
        self.coordinator = Coordinator("--settle", "10", state_dir=folder)
        self.cluster = Cluster(self.coordinator, "copies")
        command = (sys.executable, "-m", "tests.support.kept_program", "fsdp", str(self.notes), str(FOREVER))
        shape = ("--nnodes", f"{least}:{len(nodes)}", "--max-restarts", "9", *WARM, *flags)
        self.nodes: dict[str, Node] = {
            name: self.cluster.join(name, *shape, "--topology", name, command=command) for name in nodes
        }

    @property
    def kept(self) -> dict[str, Any]:
        """What the coordinator says of the state that the job keeps."""
        job = self.coordinator.job("copies")
        return (job and job["kept"]) or {}

    def await_copied(self, after: int = 0) -> int:
        """Return a step that outlives the loss of a host, once there is one after this one."""

        def look() -> int | None:
            copied = self.kept.get("copied")
            return copied if copied is not None and copied > after else None

        step = wait_until("a step that is copied", look)
        assert step is not None
        return step

    def kill(self, name: str) -> None:
        """Kill a node as the loss of its host does: the agent and its workers, at once."""
        children = Path(f"/proc/{self.nodes[name].pid}/task").glob("*/children")
        pids = [int(pid) for file in children for pid in file.read_text().split()]
        for pid in (self.nodes[name].pid, *pids):
            os.kill(pid, signal.SIGKILL)

    def resumed(self, name: str, number: int) -> int:
        """Return the step at which a round has resumed, once it has."""
        return int(self.nodes[name].await_line(rf"round {number} resumes at step ([\d,]+) from")[1].replace(",", ""))

    def await_steps(self, number: int, ranks: int) -> None:
        """Wait until all ranks of a round have done steps."""

        def look() -> bool:
            notes = notes_of(self.notes)
            done = {rank for rank, steps in notes.items() for said in steps.values() for at, _ in said if at == number}
            return len(done) >= ranks

        wait_until(f"steps of round {number}", look)

    def judge(self) -> None:
        """Check that all ranks have had the same state at each step, in whichever round, up to the last bits.

        Gradients are added up in another order at another world size, so a step that is done again may differ in the
        last bits; what a round begins with may not.
        """
        notes = notes_of(self.notes)
        by_round: dict[tuple[int, int], set[str]] = {}
        for steps in notes.values():
            for step, said in steps.items():
                for number, digest in said:
                    by_round.setdefault((number, step), set()).add(digest)
        assert all(len(digests) == 1 for digests in by_round.values()), "ranks of a round differ"
        for (number, step), digests in by_round.items():
            if number > 1 and (number, step - 1) not in by_round:
                before = set().union(*(said for (at, same), said in by_round.items() if same == step and at < number))
                # A round may be broken when a step is kept and nobody has begun the next one.
                known = not before or digests <= before
                assert known, f"round {number} begins at step {step} with a state that nobody had"

    def close(self) -> None:
        """End everything."""
        self.cluster.close()
        self.coordinator.close()


def test_the_loss_of_a_host_costs_the_steps_since_the_last_copy_and_no_disk(tmp_path: Path) -> None:
    with closing(Training(tmp_path)) as training:
        copied = training.await_copied(after=training.await_copied())
        training.kill("c")
        resumed = training.resumed("a", 2)
        assert resumed >= copied, "a copy is never older than promised"
        training.await_steps(2, 2)
        assert any("from other nodes" in line or "on this host" in line for line in training.nodes["a"].lines)
        training.await_copied(after=resumed)
        training.judge()
