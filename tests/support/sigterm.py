"""SIGTERM in the middle of anything: real programs, and what is on the disk afterwards."""

import random
import re
import signal
import sys
import threading
from pathlib import Path

from nodeclient.keeping.disk.step_folder import Contents, Manifest, find_whole, job_folder
from tests.support.cluster import Cluster, Coordinator, Node
from tests.support.kept_training import WARM, digest_of, notes_of
from tests.support.programs import BIN, Program, run, wait_until
from tests.support.sigterm_program import AFTER_RESTART, MOMENTS, TRAINS

JOB = "sigterm"

LAST = 5
"""The step after which the moment comes."""

RANKS = 2
"""How many ranks train, unless there are more nodes."""

APART_S = 0.1
"""The longest time between two signals of one shutdown."""

STOP_TIMEOUT_S = 6
"""Half of it passes until workers save that do not come to the end of a step."""

KINDS = ("ddp", "fsdp")


def play(
    kind: str,
    moment: str,
    folder: Path,
    nodes: int = 1,
    delay_s: float = 0.0,
    signum: signal.Signals = signal.SIGTERM,
    shutdown: random.Random | None = None,
) -> int:
    """End all nodes of a training by a signal in a moment, or so long after it; return the step that is on the disk.

    In a `shutdown` their coordinator gets the signal too, in an order that is drawn from it.

    Raises `AssertionError` if that is not the newest whole one, if its state is not what the ranks had, or if the nodes
    do not say which step it is and where.
    """
    notes, disk = folder / "notes", folder / "disk"
    notes.mkdir(parents=True)
    with (
        Coordinator("--settle", "10", state_dir=folder) as coordinator,
        Cluster(coordinator, JOB) as cluster,
    ):
        command = (sys.executable, "-m", "tests.support.sigterm_program", kind, moment, str(notes), str(LAST))
        ranks = max(RANKS, nodes)
        shape = ("--nnodes", str(nodes), "--nproc-per-node", str(ranks // nodes), *WARM[kind])
        flags = ("--persist", str(disk), "--persist-every", "3600", "--stop-timeout", str(STOP_TIMEOUT_S))
        joined = [cluster.join(name, *shape, *flags, command=command) for name in "abc"[:nodes]]
        _await_moment(cluster, moment, notes, ranks)
        threading.Event().wait(delay_s)
        programs: list[Program] = [*joined]
        if shutdown is not None:
            shutdown.shuffle(programs := [*joined, coordinator])
        for program in programs:
            program.signal(signum)
            if shutdown is not None:
                threading.Event().wait(shutdown.uniform(0.0, APART_S))
        codes = [node.wait() for node in joined]
        shown = "\n".join(node.output for node in joined)
        assert codes == [128 + signum] * nodes, shown
        assert all(f"{signum.name}: left the job" in node.output for node in joined), shown
        if shutdown is not None:
            assert coordinator.wait() == 0, coordinator.output
        return _judge(moment, disk, notes, joined, shown)


def _await_moment(cluster: Cluster, moment: str, notes: Path, ranks: int) -> None:
    """Wait until all workers are in the moment, in the second round if it comes before the first step of that."""
    restarts, comes = moment in AFTER_RESTART, moment in MOMENTS
    if restarts or not comes:
        wait_until("steps", lambda: len(list(notes.glob("*.trains"))) == ranks)
    if restarts:
        where = ("--coord", cluster.coordinator.endpoint)
        run(BIN / "nodeclient", "restart", JOB, *where).check_returncode()
    if comes:
        number = 2 if restarts else 1
        wait_until(f"the moment: {moment}", lambda: len(list(notes.glob(f"*.{number}.here"))) == ranks)


def _judge(moment: str, disk: Path, notes: Path, nodes: list[Node], shown: str) -> int:
    found, problems = find_whole(job_folder(disk, JOB))
    assert problems == []
    assert found, f"nothing is on the disk:\n{shown}"
    manifest, noted = found[0], notes_of(notes)
    step = manifest.of.step
    newest = max(set.intersection(*map(set, noted.values())))
    if moment == TRAINS:
        assert newest - 1 <= step <= newest, f"step {step} is on the disk, and {newest} was done\n{shown}"
    elif moment in AFTER_RESTART:
        assert step == newest, f"step {step} is on the disk, and {newest} was resumed from\n{shown}"
    else:
        assert step == LAST, f"step {step} is on the disk, and {LAST} was done\n{shown}"
    _judge_state(manifest, job_folder(disk, JOB) / manifest.of.folder, noted)
    folder = re.escape(str(job_folder(disk, JOB) / manifest.of.folder))
    expected = rf"step {step} is on the disk, in {folder}"
    assert any(re.search(expected, line) for node in nodes for line in node.lines), shown
    return step


def _judge_state(manifest: Manifest, folder: Path, noted: dict[int, dict[int, list[tuple[int, str]]]]) -> None:
    """Check that each shard has the state that its rank had after the step."""
    from safetensors.torch import load_file  # noqa: PLC0415 - few tests need it

    for file in manifest.files:
        if file.contents is Contents.SHARD:
            tensors = load_file(folder / file.name)
            names = [f"model.{layer}.{kind}" for layer in range(2) for kind in ("weight", "bias")]
            digest = digest_of([tensors[name] for name in names])
            known = {digest for _, digest in noted[file.rank][manifest.of.step]}
            assert known == {digest}, f"{file.name} is not what rank {file.rank} had"
