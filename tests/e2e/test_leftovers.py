"""What workers leave behind to finish its work, with real programs: it does so."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.cluster import Coordinator
from tests.support.programs import BIN, Program, wait_until

pytestmark = pytest.mark.slow

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
