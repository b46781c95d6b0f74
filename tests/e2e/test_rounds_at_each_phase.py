"""A worker is killed, stopped or cut off at each phase of a step: the others stay, and no step is lost or different.

The training of `rounds_program` is compared bit by bit with that of `kept_training`, which nothing happens to. The same
training with a warm restart after each end is compared with it in tests/chaos/test_kept_state.py.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.cluster import QUICK, cluster_of_its_own
from tests.support.kept_training import notes_of
from tests.support.programs import wait_until
from tests.support.rounds_program import processes_of
from tests.support.sites import Site
from tests.support.undisturbed import train_undisturbed

pytestmark = [pytest.mark.slow, pytest.mark.long]

NAMES = "abc"

WORLD_SIZE = len(NAMES)

PLACES = (
    ("0", "backward"),  # the first one of all, before there is any state to go on from
    ("2", "forward"),
    ("4", "backward"),
    ("6", "gradients"),
    ("8", "optimizer"),
    ("10", "between"),
    ("12", "after"),
    ("first", "backward"),  # the first one with a new wrapper in a process that stayed
)
"""Step and point of the end of each round."""

STEPS = 16

FLAGS = ("--nnodes", str(WORLD_SIZE), "--max-restarts", "20", "--preload", "torch,numpy", "--abort-timeout", "60")
"""A worker may take longer than half a second to leave its round, on a busy machine."""

SHORT = ("--heartbeat", "0.4")
"""A lease lasts 2 s."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[int, str]]:
    """Return the digests of a training that nothing happens to, by rank and step."""
    return train_undisturbed(tmp_path_factory.mktemp("undisturbed"), WORLD_SIZE, STEPS)


def command(notes: Path, ranks: Sequence[int], how: str) -> tuple[str, ...]:
    """Return the command of workers of which, in each round, one of these ranks ends at one of the places."""
    ends = [
        f"{number}:{rank}:{step}:{point}:{how}"
        for number, (rank, (step, point)) in enumerate(zip(ranks, PLACES, strict=True), start=1)
    ]
    return (sys.executable, "-m", "tests.support.rounds_program", str(notes), str(STEPS), *ends)


def check_steps(notes: Path, ranks: Sequence[int], undisturbed: dict[int, dict[int, str]]) -> None:
    """Check that each rank has done each step once and as if nothing had happened.

    A rank may lack the step in which it ended: it was brought to the state after it, which the others had.
    """
    lacking = [(rank, step) for rank, (step, _) in zip(ranks, PLACES, strict=True)]
    by_rank = notes_of(notes)
    for rank, digests in undisturbed.items():
        for step in range(STEPS):
            found = [digest for _, digest in by_rank[rank].get(step, [])]
            may_lack = (rank, str(step)) in lacking or (rank, "first") in lacking
            assert found == [digests[step]] or (may_lack and not found), (rank, step, found)


def check_processes(notes: Path, ranks: Sequence[int], *, replaced: bool) -> None:
    """Check that all workers stayed in each round but the one that ended, which is `replaced` if it cannot stay.

    Nobody stays when a round ends before there is any state: the next one begins from nothing.
    """
    by_rank = processes_of(notes)
    for number, ended in enumerate(ranks, start=1):
        for rank, rounds in by_rank.items():
            stayed = rounds[number] == rounds[number + 1]
            if number == 1 or (rank == ended and replaced):
                assert not stayed, (number, rank, by_rank)
            elif rank != ended:
                assert stayed, (number, rank, by_rank)


@pytest.mark.parametrize(("how", "flags"), [("SIGKILL", ()), ("SIGSTOP", ("--hang-timeout", "5"))])
def test_a_worker_that_is_killed_or_stopped_at_any_phase_changes_no_step(
    notes: Path, undisturbed: dict[int, dict[int, str]], how: str, flags: tuple[str, ...]
) -> None:
    ranks = [number % WORLD_SIZE for number in range(len(PLACES))]
    with cluster_of_its_own("phases", *QUICK) as cluster:
        for name in NAMES:
            cluster.join(name, *FLAGS, *flags, command=command(notes, ranks, how))
        assert [node.wait() for node in cluster.nodes] == [0] * WORLD_SIZE
    check_processes(notes, ranks, replaced=True)
    check_steps(notes, ranks, undisturbed)


def test_a_host_that_is_cut_off_at_any_phase_changes_no_step(
    notes: Path, undisturbed: dict[int, dict[int, str]]
) -> None:
    """It is the host of the last rank, which it has again when it is back."""
    ranks = [WORLD_SIZE - 1] * len(PLACES)
    with Site(NAMES, *SHORT) as site:
        nodes = [site.join(name, *FLAGS, command=command(notes, ranks, "cut")) for name in NAMES]
        for number in range(1, len(PLACES) + 1):
            asked = wait_until("a worker to wait for the cut", lambda: next(notes.glob("*.cut"), None))
            site.hosts.cut(asked.stem)
            asked.unlink()
            for node in nodes:
                if node.name != asked.stem:
                    node.await_line(f"stopping the workers of round {number}")
            site.hosts.mend(asked.stem)
        assert [node.wait() for node in nodes] == [0] * WORLD_SIZE
    check_processes(notes, ranks, replaced=False)
    check_steps(notes, ranks, undisturbed)
