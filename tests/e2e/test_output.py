"""What workers write, on its way through a node: to terminals and pipes, into files, and into nothing."""

import os
import re
import select
import signal
from pathlib import Path

import pytest

from tests.support.cluster import STDLIB_PYTHON, Cluster
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
