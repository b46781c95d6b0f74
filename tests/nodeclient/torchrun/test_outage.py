"""The rendezvous handler while the coordinator is out of reach."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.cluster import Coordinator
from tests.support.handlers import Job, meet, ranks
from tests.support.programs import TIMEOUT_S
from tests.support.torchruns import NEEDS_BACKENDS

pytestmark = [pytest.mark.slow, NEEDS_BACKENDS]


def test_a_round_outlives_its_coordinator_which_then_lets_others_in(
    own_coordinator: Callable[..., Coordinator], tmp_path: Path
) -> None:
    first = own_coordinator(state_dir=tmp_path)
    with closing(Job(first.endpoint, "job")) as job:
        a, b = job.agent(), job.agent()
        before = meet(a, b)
        first.process.kill()
        first.process.wait()
        assert [agent.handler.num_nodes_waiting() for agent in (a, b)] == [0, 0]
        before[0].store.set("key", "value")
        assert before[1].store.get("key") == b"value"

        second = own_coordinator(state_dir=tmp_path, port=first.port)
        c = job.agent()
        third = c.rendezvous()
        a.await_call()
        b.await_call()
        assert ranks(a, b) == [(info.rank, 3) for info in before]
        assert third.result(TIMEOUT_S).rank == 2
        for success in [agent.finish() for agent in (a, b, c)]:
            success.result(TIMEOUT_S)
        second.await_job("job", state="succeeded")


@pytest.mark.long
def test_the_exit_barrier_needs_no_coordinator(own_coordinator: Callable[..., Coordinator]) -> None:
    coordinator = own_coordinator()
    with closing(Job(coordinator.endpoint, "job")) as job:
        a, b = job.agent("2"), job.agent("2")
        meet(a, b)
        coordinator.process.kill()
        coordinator.process.wait()
        for success in [a.finish(), b.finish()]:
            success.result(TIMEOUT_S)
