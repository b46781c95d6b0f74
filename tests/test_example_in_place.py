"""The example of rounds goes on in the same process when another worker is lost, and learns what it is to learn."""

import re
import sys
from pathlib import Path

import pytest

from tests.support.cluster import cluster_of_its_own
from tests.support.programs import BIN, Program, kill_quietly

pytestmark = pytest.mark.slow

COMMAND = (sys.executable, str(Path(__file__).resolve().parents[1] / "examples" / "in_place.py"))

BEGUN = r"round {}: rank \d of 2 is process (\d+), and goes on after step (\d+)"


def test_a_worker_stays_when_the_other_one_is_killed() -> None:
    endless = (*COMMAND, "--steps", "1000000")
    flags = ("--nnodes", "2", "--max-restarts", "1", "--preload", "torch", "--abort-timeout", "60")
    with cluster_of_its_own("rounds") as cluster:
        nodes = [cluster.join(name, *flags, command=endless) for name in "ab"]
        before = [int(node.await_line(BEGUN.format(1))[1]) for node in nodes]
        nodes[0].await_line("round 1 trains")
        kill_quietly(before[1])
        stayed, replaced = (node.await_line(BEGUN.format(2)) for node in nodes)
    assert int(stayed[1]) == before[0], "the same process"
    assert int(replaced[1]) != before[1]
    assert stayed[2] == replaced[2], "both go on after the same step"


@pytest.mark.long
def test_two_workers_learn_together() -> None:
    join = (BIN / "nodeclient", "join", "--standalone", "--nproc-per-node", "2", "--", *COMMAND)
    with Program(*join, "--steps", "60", "--pause", "0") as program:
        assert program.wait() == 0, program.output
        program.await_no_leftovers()
    assert len(re.findall(r"learned y = 3.00x \+ 2.00$", program.output, re.MULTILINE)) == 2
