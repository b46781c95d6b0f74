"""A job whose workers share one GPU, and what they noted."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.gpu.conftest import ON_CPU
from tests.gpu.training import undisturbed
from tests.support.cluster import Node
from tests.support.kept_training import notes_of
from tests.support.rounds_program import processes_of

WARM = ("--preload", "torch")

PATIENT = ("--abort-timeout", "60")
"""A machine without a GPU may be a busy one, where workers take long to leave their round."""


class SharedGpu:
    """A job of one worker a node."""

    def __init__(self, start: Callable[..., Node], folder: Path) -> None:
        """Begin without nodes, which `start` starts as `Cluster.join` does; workers note what they do in a folder."""
        self._start = start
        self.folder = folder

    def join(
        self, names: str, *words: str, flags: Sequence[str] = (), nnodes: str = "", restarts: int = 1
    ) -> list[Node]:
        """Start nodes, named by one letter each, whose workers run `training` with these words."""
        command = (sys.executable, "-m", "tests.gpu.training", str(self.folder), *words)
        always = ("--nnodes", nnodes or str(len(names)), "--nproc-per-node", "1", "--max-restarts", str(restarts))
        patient = PATIENT if ON_CPU and "in-place" in words else ()
        return [self._start(name, *always, *patient, *flags, command=command) for name in names]

    def train(self, *words: str, flags: Sequence[str], restarts: int = 1) -> list[Node]:
        """Start three nodes as `join` does, and return them when they have ended well."""
        nodes = self.join("abc", *words, flags=flags, restarts=restarts)
        assert [node.wait() for node in nodes] == [0, 0, 0]
        return nodes

    def stayed(self) -> int:
        """Return how many processes of round 1 were workers of round 2 as well."""
        by_rank = processes_of(self.folder).values()
        first, second = ({rounds[number] for rounds in by_rank if number in rounds} for number in (1, 2))
        return len(first & second)

    def check_states(self, workers: int, last_round: int = 2) -> int:
        """Check the states with which rounds began and the last one ended; return how many steps were lost.

        A step that two workers have done is lost if the next round does not go on from it: one of the two was alive.
        """
        begins, ends, steps = (_by_round(self.folder, suffix) for suffix in ("begins", "ends", "txt"))
        right = undisturbed(max(step for notes in ends.values() for step, _ in notes))
        for number, notes in begins.items():
            done = max(step for step, _ in notes)
            assert set(notes) == {(done, right[done + 1])}, f"round {number} began with another state than {right}"
        assert ends.keys() == {last_round}
        assert ends[last_round] == [(len(right) - 2, right[-1])] * workers, "the training ended with another state"
        lost = 0
        for number in sorted(begins.keys() - {1}):
            before = [step for step, _ in steps.get(number - 1, [])]
            done_by_two = max((step for step in before if before.count(step) > 1), default=-1)
            lost += max(0, done_by_two - begins[number][0][0])
        return lost


def _by_round(folder: Path, suffix: str) -> dict[int, list[tuple[int, str]]]:
    """Return what workers noted in each round: steps, each with a state."""
    found: dict[int, list[tuple[int, str]]] = {}
    for steps in notes_of(folder, suffix).values():
        for step, notes in steps.items():
            for number, state in notes:
                found.setdefault(number, []).append((step, state))
    return found
