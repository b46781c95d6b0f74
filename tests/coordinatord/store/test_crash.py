"""A process that is killed while it writes has lost nothing that it reported as durable, and left nothing by halves."""

import signal
import sys
from pathlib import Path

import pytest

from coordinatord.core.rounds.values.records import NodeJoined
from coordinatord.store.database import Database
from tests.coordinatord.store.writer import BATCH
from tests.support.disks import small_disk
from tests.support.programs import Program, clean_environ, run
from tests.support.source import ROOT

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("after", [20, pytest.param(400, marks=pytest.mark.long)])
def test_all_that_was_called_durable_is_there_after_a_kill(tmp_path: Path, after: int) -> None:
    environ = clean_environ(PYTHONPATH=str(ROOT))
    with Program(sys.executable, "-m", "tests.coordinatord.store.writer", tmp_path, environ=environ) as writer:
        writer.await_line(rf"^durable {after}$")
        writer.signal(signal.SIGKILL)
        writer.wait()
    called = sum(line.startswith("durable ") for line in writer.lines)
    database = Database.open(tmp_path / "state.db")
    joined = [entry.record.node for entry in database.load() if isinstance(entry.record, NodeJoined)]
    database.close()
    batches = len(joined) // BATCH
    assert joined == [f"n{batch}-{number}" for batch in range(batches) for number in range(BATCH)]
    # The last one may be durable without having been reported so.
    assert called <= batches <= called + 1


def test_a_disk_that_is_full_loses_nothing_and_serves_again_when_there_is_room(tmp_path: Path) -> None:
    place = tmp_path / "disk"
    disk = small_disk(place, 1024)
    environ = clean_environ(PYTHONPATH=str(ROOT))
    ended = run(*disk, sys.executable, "-m", "tests.coordinatord.store.filler", place, environ=environ)
    assert ended.returncode == 0, ended.stderr
