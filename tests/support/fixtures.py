"""Fixtures of tests with real programs: a coordinator that many jobs share, and nodes that leave nothing behind.

To be imported by name into a `conftest.py`.
"""

import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from nodeclient.host.ports import PortReservation
from tests.support.cluster import QUICK, Cluster, Coordinator
from tests.support.places import Place

NODE_TRACEBACK = re.compile(r'File "[^"]*(?<!/tests)/nodeclient/')
"""The nodeclient's own; its workers may break as they like."""


def serving(home: Path | None = None) -> Iterator[Coordinator]:
    """Yield one coordinatord for all jobs, which is itself a test: they must not disturb each other."""
    with Coordinator(*QUICK, home=home) as program:
        yield program
        assert program.stop() == 0
        assert "Traceback" not in program.output


@pytest.fixture(scope="session")
def coordinator() -> Iterator[Coordinator]:
    """Yield one coordinatord for all jobs, which serves everybody."""
    yield from serving()


@pytest.fixture
def own_coordinator() -> Iterator[Callable[..., Coordinator]]:
    """Start coordinators that belong to one test alone, with the flags given; each has a port that no other gets.

    So another one can be started at the port of one that was ended.
    """
    with ExitStack() as stack:

        def start(*flags: str, **surroundings: Any) -> Coordinator:
            if not surroundings.keys() & {"port", "prefix"}:
                reservation = stack.enter_context(closing(PortReservation()))
                surroundings["port"] = reservation.port
            program = Coordinator(*QUICK, *flags, **surroundings)
            stack.callback(program.close)
            return program

        yield start


@pytest.fixture
def cluster(coordinator: Coordinator) -> Iterator[Cluster]:
    """Yield a job of its own at the shared coordinator; after the test, nothing of its nodes may live."""
    with Cluster(coordinator, f"job-{secrets.token_hex(4)}") as nodes:
        yield nodes
    for node in nodes.nodes:
        assert not NODE_TRACEBACK.search("\n".join(node.lines))


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """Yield a user's home where all is as it is by default; what was started there ends with the test."""
    with ExitStack() as stack:
        yield Place(tmp_path, stack)
