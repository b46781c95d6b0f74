"""Limits of the system: open files, processes."""

import sys

import pytest

from tests.support.cluster import Coordinator
from tests.support.namespaces import as_user
from tests.support.programs import BIN, Program
from tests.surroundings.support import NOBODY, join, sh, went

pytestmark = pytest.mark.slow

FILES = 48
"""Fewer than a node with this many workers needs for their pipes, even before it watches them."""

WORKERS = ("--nproc-per-node", "16")


def test_a_soft_limit_on_files_does_not_bound_the_workers_and_is_theirs(coordinator: Coordinator) -> None:
    ended = went(*sh([f"ulimit -Sn {FILES}"], *join(coordinator, *WORKERS)), "sh", "-c", "ulimit -Sn")
    assert sorted(line.split()[-1] for line in ended.stdout.splitlines()) == [str(FILES)] * 16


def test_warm_workers_have_the_soft_limit_on_files_that_the_node_began_with(coordinator: Coordinator) -> None:
    program = "import resource, json; print('limit', resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    ended = went(*sh(["ulimit -Sn 99"], *join(coordinator, "--preload", "json")), sys.executable, "-c", program)
    assert "workers start warm" in ended.stderr
    assert ended.stdout == "limit 99\n"


def test_a_hard_limit_on_files_is_named_and_another_try_may_help(coordinator: Coordinator) -> None:
    ended = went(*sh([f"ulimit -n {FILES}"], *join(coordinator, *WORKERS)), "true", code=71)
    assert "Too many open files" in ended.stderr
    assert "raise the limit before nodeclient starts (ulimit -n" in ended.stderr
    assert "chmod" not in ended.stderr


def test_a_coordinator_with_a_low_hard_limit_on_files_says_so_at_its_start() -> None:
    serve = (str(BIN / "coordinatord"), "--host", "127.0.0.1", "--port", "0", "--ephemeral", "--insecure")
    with Program(*sh(["ulimit -n 64"], *serve)) as coordinator:
        warning = coordinator.await_line(r"WARNING .*: few files may be open at one time")
        assert "only 4 nodes are let in" in warning.string
        coordinator.await_line("coordinatord listening on")
        assert coordinator.stop() == 0


def test_a_limit_on_processes_is_named_and_another_try_may_help(coordinator: Coordinator) -> None:
    limited = (*as_user(NOBODY + 1), *sh(["ulimit -u 10"], *join(coordinator, *WORKERS)))
    ended = went(*limited, "sleep", "1000", code=71)
    assert "cannot be started: Resource temporarily unavailable" in ended.stderr
    assert "lets no more processes or threads be started (ulimit -u" in ended.stderr
