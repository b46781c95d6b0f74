"""What workers write, on its way through a node, and what they leave behind to finish its work."""

import os
import re
import select
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.cluster import STDLIB_PYTHON, Cluster, Coordinator
from tests.support.programs import BIN, TIMEOUT_S, Program, run, wait_until

pytestmark = pytest.mark.slow

TALKER = """
import os
rank = int(os.environ["RANK"])
for number in range(20_000):
    os.write(1, b"line %d of %d %s\\n" % (number, rank, b"x" * (number % 90)))
os.write(2, b"the end of %d\\n" % rank)
"""

FLOOD = "import os\nwhile True: os.write(1, b'flood ' * 100 + b'\\n')"


def python(script: str) -> tuple[str, ...]:
    """Return a command that runs a script with nothing but the standard library."""
    return *STDLIB_PYTHON, "-c", script


def lines_of(rank: int) -> list[str]:
    """Return the lines of the talker of a rank on stdout."""
    return [f"line {number} of {rank} {'x' * (number % 90)}" for number in range(20_000)]


def test_several_workers_on_two_nodes_are_told_apart_and_lose_no_line(cluster: Cluster) -> None:
    flags = ("--nnodes", "2", "--nproc-per-node", "2")
    nodes = [cluster.join(name, *flags, command=python(TALKER)) for name in "ab"]
    assert [node.wait() for node in nodes] == [0, 0]
    host = re.escape(os.uname().nodename.partition(".")[0])
    for first_rank, node in zip((0, 2), nodes, strict=True):
        found: dict[int, list[str]] = {}
        for line in node.lines:
            if match := re.fullmatch(rf"\[{host} rank (\d)\] (line .*)", line):
                found.setdefault(int(match[1]), []).append(match[2])
        assert found == {rank: lines_of(rank) for rank in (first_rank, first_rank + 1)}


def test_a_node_that_is_alone_in_its_round_names_no_host(cluster: Cluster) -> None:
    node = cluster.join("a", "--nnodes", "1:4", "--nproc-per-node", "2", command=python("print('here')"))
    assert node.wait() == 0
    assert {line for line in node.lines if "here" in line} == {"[rank 0] here", "[rank 1] here"}


def test_each_round_has_its_own_files_and_they_stay(cluster: Cluster, tmp_path: Path) -> None:
    flags = ("--nnodes", "1", "--nproc-per-node", "2", "--max-restarts", "1", "--log-dir", str(tmp_path))
    script = "import os, sys; print('round', os.environ['COORDINATORD_ROUND']); sys.exit('no')"
    node = cluster.join("a", *flags, command=python(script))
    assert node.wait() == 1
    [run] = (tmp_path / cluster.job).iterdir()
    for number in (1, 2):
        for rank in range(2):
            folder = run / f"round_{number}" / str(rank)
            # One of the two may have been stopped before it wrote.
            file = folder / "stdout.log"
            assert not file.exists() or file.read_text() == f"round {number}\n"
        files = [run / f"round_{number}" / str(rank) / "stderr.log" for rank in range(2)]
        assert any(file.is_file() and file.read_text() == "no\n" for file in files)


def _has_room(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return bool(poll.poll(0))


def test_a_node_lives_though_nobody_reads_what_its_workers_write(cluster: Cluster) -> None:
    reading, writing = os.pipe()
    join = (BIN / "nodeclient", "join", "--coord", cluster.coordinator.endpoint, "--job-id", cluster.job)
    node = Program(*join, "--node-id", "a", "--", *python(FLOOD), stdout=writing, stderr=writing)
    try:
        wait_until("a pipe that is full", lambda: not _has_room(writing))
        cluster.join("b", command=python(FLOOD))
        # Both have to report for that: the first stops its worker, and starts another.
        cluster.await_state(state="running", round=2, world_size=2)
        node.signal(signal.SIGTERM)
        assert node.process.wait(TIMEOUT_S) == 143
    finally:
        node.close()
        for end in (reading, writing):
            os.close(end)


@pytest.mark.parametrize(("workers", "heard"), [("1", "heard tea"), ("2", "heard nothing")])
def test_a_worker_that_is_alone_can_be_spoken_to(workers: str, heard: str) -> None:
    script = "try: print('heard', input())\nexcept EOFError: print('heard nothing')"
    flags = ("--standalone", "--nproc-per-node", workers, "--", *STDLIB_PYTHON, "-c", script)
    ended = run(BIN / "nodeclient", "join", *flags, words="tea\n")
    assert ended.returncode == 0, ended.stderr
    assert heard in ended.stdout


TRACKER = "sh -c \"trap '' TERM INT; read go < $GO; echo tracked\""
"""A leftover that ends when the test writes to a FIFO."""

IN_ITS_SESSION, IN_THE_GROUP, FORKS_AGAIN = f"setsid {TRACKER} &", f"{TRACKER} &", f"(setsid {TRACKER} &) &"


@contextmanager
def node(folder: Path, script: str, *flags: str, coord: str = "") -> Iterator[tuple[Program, Path]]:
    """Run a node with a shell as its worker; yield it, and the FIFO for which a `TRACKER` waits."""
    go = folder / "go"
    os.mkfifo(go)
    where = ("--coord", coord) if coord else ("--standalone",)
    with Program(
        BIN / "nodeclient", "join", *where, *flags, "--", "sh", "-c", f"GO={go}; export GO; {script}"
    ) as program:
        yield program, go


@pytest.mark.parametrize("start", [IN_THE_GROUP, FORKS_AGAIN], ids=["group", "forks again"])
def test_a_node_waits_for_it_before_it_ends_and_says_so(tmp_path: Path, start: str) -> None:
    with node(tmp_path, f"{start} exit 3") as (program, go):
        program.await_line(r"waiting up to \d+ s for what the workers have left running: rank 0: .*\(pid \d+\)")
        go.write_text("\n")
        assert program.wait() == 3
        assert "tracked" in program.output
        assert "killed, since" not in program.output
        assert program.leftovers() == []


def test_a_node_that_waits_for_it_is_out_of_the_job(
    tmp_path: Path, own_coordinator: Callable[..., Coordinator]
) -> None:
    coordinator = own_coordinator()
    with node(tmp_path, f"{IN_ITS_SESSION} exit 0", coord=coordinator.endpoint) as (program, go):
        program.await_line("waiting up to")
        wait_until("the end of its session", lambda: "\ncoordinatord_sessions 0.0\n" in coordinator.fetch("/metrics"))
        go.write_text("\n")
        assert program.wait() == 0


def test_it_goes_on_beside_the_next_round_and_what_it_writes_is_shown(tmp_path: Path) -> None:
    last = "test $COORDINATORD_ROUND = 2 && { echo again; read go < $GO.2; exit 0; }"
    script = f"{last}; {IN_ITS_SESSION} exit 3"
    os.mkfifo(tmp_path / "go.2")
    with node(tmp_path, script, "--max-restarts", "1") as (program, go):
        program.await_line("^again$")
        go.write_text("\n")
        program.await_line("^tracked$")
        (tmp_path / "go.2").write_text("\n")
        assert program.wait() == 0
