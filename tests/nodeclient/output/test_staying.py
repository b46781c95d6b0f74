"""Output of processes that outlive a round: workers that go into the next one, and what workers have started."""

import asyncio
import os
import select
from contextlib import ExitStack
from pathlib import Path

import pytest

from nodeclient.output.log_paths import LogPaths
from nodeclient.output.output_settings import OutputSettings
from nodeclient.output.pump import FOLLOWERS_MAX
from tests.nodeclient.output.stage import Stage, log_file, on_stage
from tests.support.programs import wait_until

pytestmark = pytest.mark.slow


def begin(stage: Stage, number: int) -> int:
    """Begin a round of one worker; return a descriptor of its stdout that outlives the round, as a child has one."""
    place = LogPaths("job", "run", number)
    with stage.output.begin(place, range(1), several_hosts=False) as streams:
        return os.dup(streams[0].stdout)


def refuses(descriptor: int) -> bool:
    """Whether nobody reads any more what is written to a descriptor."""
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return bool(poll.poll(0)[0][1] & select.POLLERR)


async def test_what_a_child_writes_goes_where_the_worker_of_its_rank_writes(tmp_path: Path) -> None:
    async with on_stage(OutputSettings(log_dir=tmp_path)) as stage:
        child = begin(stage, 1)
        os.write(child, b"in round 1\n")
        for number in (2, 3):
            worker = begin(stage, number)
            os.write(worker, b"a worker in round %d\n" % number)
            os.close(worker)
            await stage.output.end_of_stderr(0)  # so that the order is known
            os.write(child, b"in round %d\n" % number)
            await stage.output.end_of_stderr(0)
        os.close(child)
    assert log_file(tmp_path, 0, "stdout") == b"in round 1\n"
    for number in (2, 3):
        assert log_file(tmp_path, 0, "stdout", number) == b"a worker in round %d\nin round %d\n" % (number, number)
    assert b"in round 2\na worker in round 3\nin round 3\n" in stage.stderr.finish()


async def test_not_more_than_some_are_read(tmp_path: Path) -> None:
    async with on_stage(OutputSettings(log_dir=tmp_path)) as stage:
        with ExitStack() as children:
            stdouts = []
            for number in range(FOLLOWERS_MAX + 2):
                stdouts.append(begin(stage, number))
                children.callback(os.close, stdouts[-1])
            await asyncio.to_thread(wait_until, "the first to be closed", lambda: refuses(stdouts[0]))
            for number, stdout in enumerate(stdouts[1:]):
                os.write(stdout, b"from child %d\n" % number)
    written = stage.stderr.finish()
    assert all(b"from child %d\n" % number in written for number in range(FOLLOWERS_MAX + 1))
