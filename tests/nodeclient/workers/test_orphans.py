"""A nodeclient that is a subreaper, as PID 1 would be, leaves no zombie of a process that it did not start."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

PROGRAM = """
import asyncio, ctypes, os, subprocess, sys, uvloop
from nodeclient.workers.orphans import reaping_orphans
from nodeclient.workers.process_tree import statuses

PR_SET_CHILD_SUBREAPER = 36

async def gone(pid):
    while any(status.pid == pid for status in statuses()):
        await asyncio.sleep(0)

async def main():
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    before = int(subprocess.check_output(["sh", "-c", "sleep 1000 > /dev/null & echo $!"]))
    own = subprocess.Popen(["sh", "-c", "exit 7"])
    os.waitid(os.P_PID, own.pid, os.WEXITED | os.WNOWAIT)
    os.kill(before, 9)
    os.waitid(os.P_PID, before, os.WEXITED | os.WNOWAIT)
    with reaping_orphans(lambda: {own.pid}):
        await asyncio.wait_for(gone(before), 120)
        later = int(subprocess.check_output(["sh", "-c", "sleep 1000 > /dev/null & echo $!"]))
        os.kill(later, 9)
        await asyncio.wait_for(gone(later), 120)
    assert own.wait() == 7

(uvloop if sys.argv[1] == "uvloop" else asyncio).run(main())
"""


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_orphans_are_reaped_and_own_children_are_left(loop: str) -> None:
    subprocess.run([sys.executable, "-c", PROGRAM, loop], check=True)
