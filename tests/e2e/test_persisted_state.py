"""State on a disk, with all real programs: where no memory is left, a new run of the job goes on from there."""

import signal
import sys
import warnings
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load

from nodeclient.keeping.disk.step_folder import find_whole, job_folder
from tests.support.cluster import Cluster, Node, cluster_of_its_own
from tests.support.kept_training import WARM, digest_of, notes_of
from tests.support.programs import BIN, Program, run, wait_until

pytestmark = pytest.mark.slow

JOB = "persisted"


def a_job(settle: str = "10") -> AbstractContextManager[Cluster]:
    """Return a job at a coordinator that knows nothing of any run before, and waits so long for more nodes."""
    return cluster_of_its_own(JOB, "--settle", settle)  # so that the first round has all, however late they come


def train(
    cluster: Cluster,
    kind: str,
    names: str,
    disk: Path,
    notes: Path,
    every_s: float,
    steps: int,
    nnodes: str = "",
    workers: int = 1,
) -> list[Node]:
    """Start a training."""
    notes.mkdir()
    program = (sys.executable, "-m", "tests.support.kept_program", kind, str(notes), str(steps))
    persist = ("--persist", str(disk), "--persist-every", str(every_s), "--persist-keep", "2")
    warm = WARM["ddp" if kind == "ddp" else "fsdp"]
    flags = (*warm, "--nnodes", nnodes or str(len(names)), "--nproc-per-node", str(workers), *persist)
    return [cluster.join(name, *flags, command=program) for name in names]


def noted(notes: Path, more_than: int) -> bool:
    return notes_of(notes).get(0, {}).keys() >= {more_than}


def flip_a_bit(folder: Path) -> None:
    """Flip the last bit of a file with tensors."""
    path = min(folder.glob("shard-*"))
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)


def begins(notes: Path, rank: int = 0) -> tuple[int, str]:
    """Return the step that a rank went on from, and its state."""
    [(step, [(_, digest)])] = notes_of(notes, "begins")[rank].items()
    return step, digest


def whole_tensors_by_stock_torch(folder: Path) -> list[torch.Tensor]:
    """Return the model and the optimizer's state in the order of `kept_training.whole_tensors`."""
    pytest.importorskip("safetensors", reason="stock torch reads such files with it")
    reader = HuggingFaceStorageReader(str(folder))
    known = reader.read_metadata().state_dict_metadata
    state: dict[str, torch.Tensor] = {}
    for name, metadata in known.items():
        assert isinstance(metadata, TensorStorageMetadata)
        state[name] = torch.empty(metadata.size, dtype=metadata.properties.dtype)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        load(state, storage_reader=reader, no_dist=True)
    parameters = [f"{layer}.{kind}" for layer in range(2) for kind in ("weight", "bias")]
    return [
        tensor
        for name in parameters
        for tensor in (
            state[f"model.{name}"],
            *(state[f"optimizer.state/model.{name}/{key}"] for key in ("step", "exp_avg", "exp_avg_sq")),
        )
    ]


@pytest.mark.long
@pytest.mark.parametrize(
    ("before", "after", "names", "nnodes"),
    [("fsdp", "fsdp", "c", "1"), ("hsdp", "hsdp", "c", "1"), ("hsdp", "fsdp", "c", "1"), ("ddp", "ddp", "cd", "2:3")],
)
def test_two_ranks_go_on_from_what_four_have_written_at_sigterm(
    tmp_path: Path, before: str, after: str, names: str, nnodes: str
) -> None:
    """They read four shards, or two of which there are two replicas, into two shards, or into two replicas.

    An elastic round waits for more nodes, so that all have told several times what they find on the disk.
    """
    disk, first, second = tmp_path / "disk", tmp_path / "first", tmp_path / "second"
    with a_job() as cluster:
        nodes = train(cluster, before, "ab", disk, first, 3600, 100_000, workers=2)
        wait_until("steps", lambda: noted(first, 20))
        for node in nodes:
            node.signal(signal.SIGTERM)
        for node in nodes:
            node.wait()
    [manifest], problems = find_whole(job_folder(disk, JOB))
    last = manifest.of.step
    assert problems == []
    assert max(notes_of(first)[0]) in {last - 1, last}, "it is noted after it is kept"
    with a_job("3") as cluster:
        nodes = train(cluster, after, names, disk, second, 3600, last + 5, nnodes, workers=2 // len(names))
        assert [node.wait() for node in nodes] == [0] * len(nodes)
        assert f"resumes at step {last:,} from disk" in nodes[0].output
    for rank in range(2):
        step, digest = begins(second, rank)
        assert step == last
        if after != "ddp":
            folder = job_folder(disk, JOB) / manifest.of.folder
            assert digest == digest_of(*whole_tensors_by_stock_torch(folder))


@pytest.mark.parametrize(
    ("after", "flipped"),
    [pytest.param("c", False, id="whole"), pytest.param("cd", True, id="flipped", marks=pytest.mark.long)],
)
def test_all_programs_are_killed_and_the_last_whole_step_on_the_disk_is_gone_on_from(
    tmp_path: Path, after: str, *, flipped: bool
) -> None:
    """Two ranks go on, of one node or of two.

    A step in which a bit has flipped is not whole: all ranks go on from the one before it.
    """
    disk, first, second = tmp_path / "disk", tmp_path / "first", tmp_path / "second"
    with a_job() as cluster:
        nodes = train(cluster, "ddp", "ab", disk, first, 0.5, 100_000)
        wait_until("two steps on the disk", lambda: len(find_whole(job_folder(disk, JOB))[0]) == 2)
        for node in nodes:
            node.signal(signal.SIGKILL)
        for node in nodes:
            node.wait()
    newest, before = (manifest.of for manifest in find_whole(job_folder(disk, JOB))[0][:2])
    expected = before.step if flipped else newest.step
    if flipped:
        flip_a_bit(job_folder(disk, JOB) / newest.folder)
    with a_job() as cluster:
        nodes = train(cluster, "ddp", after, disk, second, 0.5, newest.step + 5, workers=2 // len(after))
        assert [node.wait() for node in nodes] == [0] * len(nodes)
    step, digest = begins(second)
    assert step == expected
    assert digest.partition("-")[0] == notes_of(first)[0][step][-1][1].partition("-")[0]


def test_steps_that_somebody_removes_are_written_again(tmp_path: Path) -> None:
    disk, notes = tmp_path / "disk", tmp_path / "notes"
    with a_job() as cluster:
        nodes = train(cluster, "ddp", "ab", disk, notes, 3600, 100_000)
        wait_until("steps", lambda: noted(notes, 20))
        cluster.operate("restart", JOB)
        wait_until("a step on the disk", lambda: on_disk(cluster) is not None)
        job_folder(disk, JOB).rename(tmp_path / "elsewhere")
        wait_until("another one", lambda: find_whole(job_folder(disk, JOB))[0])
        wait_until("a warning", lambda: any(f"is {disk} still mounted?" in node.output for node in nodes))
        cluster.operate("stop", JOB)
        for node in nodes:
            node.wait()
    [newest, _], _ = find_whole(job_folder(disk, JOB))
    assert f"step {newest.of.step:,} is on the disk" in nodes[0].output


def on_disk(cluster: Cluster) -> int | None:
    """Return the step that the coordinator shows as the newest one on the disk."""
    job = cluster.coordinator.job(JOB)
    return None if job is None or job["kept"] is None else job["kept"]["disk_step"]


@pytest.mark.parametrize("kind", ["ddp", pytest.param("fsdp", marks=pytest.mark.long)])
def test_a_longer_training_goes_on_from_the_last_step_of_one_that_has_succeeded(tmp_path: Path, kind: str) -> None:
    disk, first, second = tmp_path / "disk", tmp_path / "first", tmp_path / "second"
    with a_job() as cluster:
        for notes, steps in ((first, 6), (second, 9)):
            nodes = train(cluster, kind, "ab", disk, notes, 3600, steps)
            assert [node.wait() for node in nodes] == [0, 0]
            for node in nodes:
                assert f"all workers succeeded; step {steps - 1} is on the disk" in node.output
    [newest, before], problems = find_whole(job_folder(disk, JOB))
    assert (problems, newest.of.step, before.of.step) == ([], 8, 5)
    step, digest = begins(second)
    assert (step, digest.partition("-")[0]) == (5, notes_of(first)[0][5][-1][1].partition("-")[0])


def test_of_two_jobs_without_a_name_that_share_a_directory_the_second_is_refused(tmp_path: Path) -> None:
    command = ("--persist", str(tmp_path / "disk"), "--", "sh", "-c", "echo up; exec sleep infinity")
    with Program(BIN / "nodeclient", "join", "--standalone", *command) as first:
        first.await_line("up")
        second = run(BIN / "nodeclient", "join", "--standalone", *command)
    assert second.returncode != 0
    assert f"{tmp_path / 'disk' / 'default'} is in use by another run of this job" in second.stderr
    assert second.stdout == ""
