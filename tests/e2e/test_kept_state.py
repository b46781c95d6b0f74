"""State that outlives the workers, with all real programs: whatever is killed, no step is lost, mixed or different."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, Coordinator, Node, cluster_of_its_own
from tests.support.kept_training import notes_of
from tests.support.undisturbed import STEPS, WORLD_SIZE

pytestmark = pytest.mark.slow

WARM = ("--preload", "torch,numpy")


def command(folder: Path, *kills: str) -> tuple[str, ...]:
    """Return the command of workers that are killed at `ROUND:RANK:STEP:POINT`."""
    return (sys.executable, "-m", "tests.support.kept_program", "ddp", str(folder), str(STEPS), *kills)


@pytest.mark.long
def test_killed_workers_cost_no_step_even_without_a_coordinator(
    tmp_path: Path,
    notes: Path,
    undisturbed: dict[int, dict[int, str]],
    own_coordinator: Callable[..., Coordinator],
) -> None:
    coordinator = own_coordinator(state_dir=tmp_path)
    with Cluster(coordinator, "kept") as cluster:
        kills = command(notes, "1:1:5:backward", "2:0:9:scheduler")
        flags = ("--nnodes", "3", "--max-restarts", "2", *WARM)
        nodes = [cluster.join(name, *flags, command=kills) for name in "abc"]
        nodes[0].await_line("round 2: 1 worker runs")
        coordinator.close()
        own_coordinator(port=coordinator.port, state_dir=tmp_path)
        assert [node.wait() for node in nodes] == [0, 0, 0], "\n".join(node.output for node in nodes)
    lines = [line for node in nodes for line in node.lines]
    for number, step in ((2, 4), (3, 9)):
        words = f"round {number} resumes at step {step:,} from memory"
        assert sum(words in line for line in lines) == WORLD_SIZE, "\n".join(lines)
    assert any("came from other nodes" in line for line in lines), "the node of a killed worker lacks the big state"
    for rank, steps in notes_of(notes).items():
        killed_in = {1: 5, 0: 9}.get(rank)
        for step in range(STEPS):
            said = [digest for _, digest in steps.get(step, [])]
            assert said == [undisturbed[rank][step]] or (step == killed_in and not said), (rank, step, said)


@pytest.mark.parametrize(
    ("flags", "kept", "error"),
    [((), "x=object()", "x is a object, which"), (WARM, "x={'y': [object()]}", "x.y[0] is a builtins.object, which")],
    ids=["cold", "warm"],
)
def test_what_can_never_be_kept_ends_the_run_in_its_first_round(
    cluster: Cluster, flags: Sequence[str], kept: str, error: str
) -> None:
    program = f"import workerlib\nworkerlib.init().keep({kept})"
    node = cluster.join("a", "--nnodes", "1", "--max-restarts", "3", *flags, command=(sys.executable, "-c", program))
    assert node.wait() == 1
    assert error in node.lines[-1]
    assert "(no restart mends this error)" in node.lines[-1]
    assert sum("starting round" in line for line in node.lines) == 1


def whole_steps(folder: Path) -> dict[int, set[str]]:
    """Return what all ranks have alike after each step, in whichever round: one digest unless states were mixed."""
    found: dict[int, set[str]] = {}
    for steps in notes_of(folder).values():
        for step, said in steps.items():
            found.setdefault(step, set()).update(f"{number}:{digest.split('-')[0]}" for number, digest in said)
    return found


@pytest.mark.long
def test_a_killed_node_costs_no_step_and_one_that_is_killed_while_it_restores_neither(notes: Path) -> None:
    with cluster_of_its_own("kept", "--settle", "10") as cluster:
        flags = ("--nnodes", "1:3", "--max-restarts", "1", *WARM)
        nodes = [cluster.join(name, *flags, command=command(notes, "1:1:5:gradients")) for name in "abc"]
        doomed: Node = nodes[2]
        doomed.await_line(r"resumes at step [\d,]+ from memory")
        doomed.process.kill()
        assert [node.wait() for node in nodes[:2]] == [0, 0], "\n".join(node.output for node in nodes)
        assert cluster.await_state(state="succeeded")["restarts"]["used"] == 1
    steps = whole_steps(notes)
    assert set(steps) == set(range(STEPS))
    assert all(len(said) == 1 for said in steps.values()), steps
