"""Fixtures of the chaos tests: coordinators that die, and nodes that leave nothing behind."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.cluster import QUICK, Cluster
from tests.support.fixtures import NODE_TRACEBACK
from tests.support.lives import FleetProgram, Lives


@pytest.fixture
def make_lives(tmp_path: Path) -> Iterator[Callable[..., Lives]]:
    """Start a coordinatord that can be killed and started again, with the flags given."""
    with ExitStack() as stack:

        def make(*flags: str, prefix: Sequence[str] = ()) -> Lives:
            lives = Lives(tmp_path / "state", *QUICK, *flags, prefix=prefix)
            stack.callback(lives.close)
            return lives

        yield make


@pytest.fixture
def make_cluster() -> Iterator[Callable[[Lives], Cluster]]:
    """Make the nodes of a job; none of their processes may live after the test."""
    made: list[Cluster] = []

    def make(lives: Lives) -> Cluster:
        made.append(Cluster(lives.now, "job"))
        return made[-1]

    yield make
    for cluster in made:
        cluster.close()
        for node in cluster.nodes:
            assert not NODE_TRACEBACK.search("\n".join(node.lines))


@pytest.fixture
def make_fleet() -> Iterator[Callable[[Lives, int], FleetProgram]]:
    """Start many simulated nodes of a job of their own."""
    with ExitStack() as stack:

        def make(lives: Lives, size: int) -> FleetProgram:
            fleet = FleetProgram(lives.now, "fleet", size)
            stack.callback(fleet.close)
            return fleet

        yield make
