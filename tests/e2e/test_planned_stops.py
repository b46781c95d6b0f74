"""Planned ends of rounds, with all real programs: no step is lost, although each node has a shard that no other has."""

import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import Cluster, Coordinator, cluster_of_its_own
from tests.support.kept_training import notes_of
from tests.support.programs import wait_until

pytestmark = pytest.mark.slow

WARM = ("--preload", "torch,torch.distributed,torch.distributed.fsdp,numpy,workerlib.keeping.keeper")


def command(folder: Path) -> tuple[str, ...]:
    return (sys.executable, "-m", "tests.support.planned_program", str(folder))


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Return a job at a coordinator of its own, whose first round has all nodes, however late they come."""
    with cluster_of_its_own("planned", "--settle", "10") as cluster:
        yield cluster


def await_kept_step(cluster: Cluster) -> None:
    """Wait until the coordinator knows of a step that all nodes have kept: their workers can be told where to stop."""

    def look() -> bool:
        job = cluster.coordinator.job(cluster.job)
        return job is not None and job["kept"] is not None and job["kept"]["step"] is not None

    wait_until(f"a kept step of job {cluster.job}", look)


def await_notes(number: int, folder: Path, least: int = 1) -> None:
    """Wait until both ranks have noted so many steps of a round; the first is the one from which they resume."""

    def look() -> bool:
        rounds = [[at for said in steps.values() for at, _ in said] for steps in notes_of(folder).values()]
        return sum(numbers.count(number) >= least for numbers in rounds) == 2

    wait_until(f"steps of round {number}", look)


def test_a_node_that_is_drained_hands_its_shards_over_before_it_leaves(cluster: Cluster, tmp_path: Path) -> None:
    """The node that stays has two workers, between which they are dealt out anew."""
    flags = ("--nnodes", "1:2", *WARM)
    stays = cluster.join("a", *flags, "--nproc-per-node", "2", command=command(tmp_path))
    cluster.join("b", *flags, command=command(tmp_path))
    await_kept_step(cluster)
    cluster.operate("drain", "b")
    await_notes(2, tmp_path, 4)
    (tmp_path / "enough").touch()
    assert stays.wait() == 0
    assert any("from memory, 0 steps redone" in line for line in stays.lines)
    steps = [step for said in notes_of(tmp_path).values() for step in said]
    assert set(steps) == set(range(max(steps) + 1))


@pytest.mark.long
def test_a_second_planned_end_before_the_first_step_of_a_round_costs_no_step(cluster: Cluster, tmp_path: Path) -> None:
    """The node that had a shard has left, and the one that got it has kept nothing of its own yet."""
    nodes = {name: cluster.join(name, "--nnodes", "2", *WARM, command=command(tmp_path)) for name in "ab"}
    await_kept_step(cluster)
    nodes["c"] = cluster.join("c", "--nnodes", "2", *WARM, command=command(tmp_path))
    nodes["c"].await_line("spare")
    (tmp_path / "hold").touch()
    cluster.operate("drain", "b")
    nodes["b"].wait()
    await_notes(2, tmp_path)
    cluster.operate("restart", cluster.job)
    await_notes(3, tmp_path)
    (tmp_path / "enough").touch()
    (tmp_path / "hold").unlink()
    assert [nodes[name].wait() for name in "ac"] == [0, 0]
    for steps in notes_of(tmp_path).values():
        [thrice] = [said for said in steps.values() if len(said) > 2]
        assert [number for number, _ in thrice] == [1, 2, 3]
        assert len({digest for _, digest in thrice}) == 1


def job_of(cluster: Cluster) -> dict[str, Any]:
    """Return the job as the coordinator shows it."""
    job = cluster.coordinator.job(cluster.job)
    assert job is not None
    return job


def await_step(cluster: Cluster, least: int) -> None:
    """Wait until all workers have done a step."""

    def look() -> bool:
        job = cluster.coordinator.job(cluster.job)
        return job is not None and job["state"] == "running" and (job["progress"]["step"] or 0) >= least

    wait_until(f"step {least} of job {cluster.job}", look)


def checkpoints(folder: Path) -> dict[int, set[int]]:
    """Return the ranks that have written a checkpoint of each step."""
    found: dict[int, set[int]] = {}
    for path in folder.glob("*.checkpoint"):
        rank, step, _ = path.name.split(".")
        found.setdefault(int(step), set()).add(int(rank))
    return found


@pytest.mark.long
@pytest.mark.parametrize("stride", [1, 7])
def test_a_script_that_writes_checkpoints_writes_one_of_the_same_step_on_all_ranks(
    cluster: Cluster, tmp_path: Path, stride: int
) -> None:
    """Nothing is kept, and there is no collective: each end that an operator asks for costs no step."""
    program = (sys.executable, "-m", "tests.support.checkpoint_program", str(tmp_path), str(stride))
    flags = ("--nnodes", "2", "--preload", "torch.distributed")
    nodes = [cluster.join(name, *flags, command=program) for name in "ab"]
    for number in (1, 2):
        await_step(cluster, number * 30)
        cluster.operate("restart", cluster.job)
    wait_until("the third round", lambda: len((tmp_path / "0.begins").read_text().splitlines()) == 3)
    (tmp_path / "enough").touch()
    assert [node.wait() for node in nodes] == [0, 0]
    written = checkpoints(tmp_path)
    assert len(written) == 2
    assert all(ranks == {0, 1} for ranks in written.values()), written
    lines = (tmp_path / "0.begins").read_text().splitlines()
    assert [int(line.split()[2]) for line in lines] == [-1, *sorted(written)]
    assert not any("in time" in node.output for node in nodes)


@pytest.mark.long
def test_all_nodes_get_sigterm_while_the_coordinator_is_gone_and_write_a_checkpoint_when_it_is_back(
    tmp_path: Path, own_coordinator: Callable[..., Coordinator]
) -> None:
    """The first node that it hears is about to leave, and it counts on the other one before it has heard that."""
    notes, state = tmp_path / "notes", tmp_path / "state"
    notes.mkdir()
    coordinator = own_coordinator("--settle", "10", state_dir=state)
    with Cluster(coordinator, "planned") as cluster:
        program = (sys.executable, "-m", "tests.support.checkpoint_program", str(notes))
        nodes = [cluster.join(name, "--nnodes", "2", command=program) for name in "ab"]
        await_step(cluster, 30)
        coordinator.close()
        for node in nodes:
            node.signal(signal.SIGTERM)
            node.await_line("this node leaves by itself if no coordinator is back within")
        own_coordinator("--settle", "10", port=coordinator.port, state_dir=state)
        assert [node.wait() for node in nodes] == [128 + signal.SIGTERM] * 2
        assert list(checkpoints(notes).values()) == [{0, 1}]


@pytest.mark.long
def test_a_node_that_arrives_is_taken_in_when_the_script_has_written_its_next_checkpoint(tmp_path: Path) -> None:
    with cluster_of_its_own("planned", "--settle", "0.1") as cluster:
        program = (sys.executable, "-m", "tests.support.checkpoint_program", str(tmp_path))
        flags = ("--nnodes", "1:2", "--scale-up", "at-checkpoint", "--preload", "torch.distributed")
        nodes = [cluster.join("a", *flags, command=program)]
        await_step(cluster, 1)
        nodes.append(cluster.join("b", *flags, command=program))
        nodes[1].await_line("round 1 is running until its next checkpoint")
        wait_until("an arrival", lambda: [node["state"] for node in job_of(cluster)["nodes"]] == ["running", "arrived"])
        await_step(cluster, job_of(cluster)["progress"]["step"] + 50)
        assert job_of(cluster)["round"] == 1, "no checkpoint was written since node b has arrived"
        (tmp_path / "wanted").touch()
        wait_until("both nodes in round 2", lambda: len(list(tmp_path.glob("*.begins"))) == 2)
        (tmp_path / "enough").touch()
        assert [node.wait() for node in nodes] == [0, 0]
    begins = [line.split()[:3] for line in (tmp_path / "0.begins").read_text().splitlines()]
    written = checkpoints(tmp_path)
    assert begins == [["1", "0", "-1"], ["2", "0", str(max(written))]]
    assert len(written) == 2, "the one that was wanted, and that of the last step of round 1"
