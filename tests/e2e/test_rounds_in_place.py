"""Rounds in place, with all real programs: workers outlive their round, and no step is lost, mixed or different."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, Coordinator, cluster_of_its_own
from tests.support.kept_training import notes_of
from tests.support.rounds_program import processes_of
from tests.support.undisturbed import STEPS, WORLD_SIZE

pytestmark = pytest.mark.slow

WARM = ("--preload", "torch,numpy")

PATIENT = ("--abort-timeout", "60")
"""A worker may take longer than half a second to leave its round, on a busy machine."""


def command(folder: Path, *ends: str) -> tuple[str, ...]:
    """Return the command of workers that end as `ROUND:RANK:STEP:POINT:HOW` say."""
    return (sys.executable, "-m", "tests.support.rounds_program", str(folder), str(STEPS), *ends)


def test_the_others_stay_when_workers_are_killed_or_fail_and_no_step_is_different(
    tmp_path: Path,
    notes: Path,
    undisturbed: dict[int, dict[int, str]],
    own_coordinator: Callable[..., Coordinator],
) -> None:
    coordinator = own_coordinator(state_dir=tmp_path)
    with Cluster(coordinator, "kept") as cluster:
        ends = ("1:1:5:backward:SIGKILL", "2:0:9:scheduler:error")
        flags = ("--nnodes", str(WORLD_SIZE), "--max-restarts", "2", *WARM, *PATIENT)
        nodes = [cluster.join(name, *flags, command=command(notes, *ends)) for name in "abc"]
        nodes[0].await_line("round 2: 1 worker runs, begun in place")
        coordinator.close()
        own_coordinator(port=coordinator.port, state_dir=tmp_path)
        assert [node.wait() for node in nodes] == [0] * WORLD_SIZE
    by_rank = processes_of(notes)
    assert by_rank[0][1] == by_rank[0][2] != by_rank[0][3], by_rank
    assert by_rank[1][1] != by_rank[1][2] == by_rank[1][3], by_rank
    assert by_rank[2][1] == by_rank[2][2] == by_rank[2][3], by_rank
    for rank, steps in notes_of(notes).items():
        ended_in = {1: 5, 0: 9}.get(rank)
        for step in range(STEPS):
            digests = [digest for _, digest in steps.get(step, [])]
            assert digests == [undisturbed[rank][step]] or (step == ended_in and not digests), (rank, step, digests)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Return a job at a coordinator of its own, whose first round has all three nodes, however late they come."""
    with cluster_of_its_own("in-place", "--settle", "10") as cluster:
        yield cluster


@pytest.mark.long
def test_workers_stay_while_nodes_come_and_go(cluster: Cluster, notes: Path) -> None:
    flags = ("--nnodes", "2:3", "--max-restarts", "0", *WARM, *PATIENT)
    endless = (*command(notes)[:-1], "1000000")
    nodes = [cluster.join(name, *flags, command=endless) for name in "abc"]
    with_three = int(nodes[2].await_line(r"round (\d+) trains")[1])
    nodes[2].process.kill()
    for node in nodes[:2]:
        node.await_line(f"round {with_three + 1}: 1 worker runs, begun in place")
        node.await_line(f"round {with_three + 1} trains")
    again = int(cluster.join("d", *flags, command=endless).await_line(r"round (\d+) trains")[1])
    for node in nodes[:2]:
        node.await_line(f"round {again}: 1 worker runs, begun in place")
    stacks = cluster.operate("stacks", cluster.job)
    assert "3 workers" in stacks
    assert "does not answer" not in stacks
    by_round: dict[int, set[int]] = {}
    for rounds in processes_of(notes).values():
        for number, pid in rounds.items():
            by_round.setdefault(number, set()).add(pid)
    numbers = (with_three, with_three + 1, again)
    assert [len(by_round[number]) for number in numbers] == [3, 2, 3], by_round
    assert by_round[with_three + 1] <= by_round[with_three] & by_round[again], by_round
