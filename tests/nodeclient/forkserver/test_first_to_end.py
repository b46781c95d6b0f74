"""A warm worker has ended when its program is over: it is the cause, though its peers' processes end before its own."""

import os

import pytest

from tests.nodeclient.forkserver.support import Stage, python

pytestmark = pytest.mark.slow

PIPES = ("to-1", "from-1", "to-2", "from-2")

TRAIN = """
import os, sys
rank = os.environ["RANK"]

class Group:
    '''Stands for a process group: Python's end lets go of it, and takes longer than the end of the peers.'''
    def __init__(self):
        self.pipes = [(os.open(f"to-{n}", os.O_WRONLY), os.open(f"from-{n}", os.O_RDONLY)) for n in (1, 2)]
    def __del__(self, close=os.close, read=os.read):
        close(self.pipes[0][0])
        for _, pipe in self.pipes: read(pipe, 1)

def fail(): raise ValueError("no data")

if rank == "0":
    group = Group()
    eval(sys.argv[1])
else:
    incoming, outgoing = os.open(f"to-{rank}", os.O_RDONLY), os.open(f"from-{rank}", os.O_WRONLY)
    os.read(incoming, 1)
    raise RuntimeError("gloo/transport/tcp/pair.cc:1] Connection closed by peer")
"""
"""Rank 1 fails as soon as rank 0 has closed its pipe, and rank 2 ends by the signal of the node after that. The process
of rank 0 lives until both have ended."""


@pytest.mark.parametrize(
    ("end", "code", "cause"),
    [
        pytest.param("sys.exit(7)", 7, "rank 0 (local rank 0) on host", id="exit code"),
        pytest.param("sys.exit('the disk is full')", 1, "rank 0 (local rank 0) on host", id="text"),
        pytest.param("fail()", 1, "rank 0 (local rank 0) on host", id="exception"),
        pytest.param("sys.exit(0)", 1, "rank 0 on node a exited with 0 while rank 1 on node a", id="success"),
        pytest.param("None", 1, "rank 0 on node a exited with 0 while rank 1 on node a", id="last line"),
    ],
)
def test_the_worker_whose_program_ended_first_is_the_cause(stage: Stage, end: str, code: int, cause: str) -> None:
    for pipe in PIPES:
        os.mkfifo(stage.folder / pipe)
    script = stage.write("train.py", TRAIN)
    job = stage.run(*python(script, end), preload="json", flags=("--nproc-per-node", "3", "--abort-timeout", "60"))
    assert f"root cause   {cause}" in job.stderr, job.stderr
    assert job.code == code
