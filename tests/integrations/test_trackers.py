"""TensorBoard and wandb offline: one curve, though the job was broken twice."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integrations.conftest import Train, need

pytestmark = need("tensorboard", "wandb")

STEPS = 3000

BLOCK_BYTES = 32 * 1024
HEADER = struct.Struct("<IHB")
FILE_HEADER_BYTES = 7
LAST_PART = {1, 4}
"""wandb writes records as LevelDB's logs do (google/leveldb, doc/log_format.md), after a header of its own."""


def test_curves_go_on(train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    job = train("trackers.py", "--folder", tmp_path, preload="torch.utils.tensorboard,wandb")
    begun = job.break_twice()
    run = job.cluster.await_state()["run"]
    job.finish()
    assert f"done after step {STEPS}" in job.output

    every_step = list(range(1, STEPS + 1))
    assert tensorboard_steps(tmp_path / "tensorboard") == every_step

    folders = sorted((tmp_path / "wandb").glob("offline-run-*"))
    assert [folder.name.split("-", 3)[3] for folder in folders] == [run] * 3, "rank 0 alone writes, in each round"
    parts = [wandb_steps(folder / f"run-{run}.wandb") for folder in folders]
    assert [part[0] for part in parts] == [step + 1 for step in begun]
    assert sorted(set().union(*parts)) == every_step


def tensorboard_steps(folder: Path) -> list[int]:
    """Return the steps of the curve that TensorBoard shows."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: PLC0415  # may be missing

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return [point.step for point in events.Scalars("loss")]


def wandb_steps(path: Path) -> list[int]:
    """Return the steps in the file of an offline run."""
    from wandb.proto import wandb_internal_pb2  # noqa: PLC0415  # may be missing

    steps = []
    for content in wandb_records(path.read_bytes()):
        record = wandb_internal_pb2.Record.FromString(content)
        if record.WhichOneof("record_type") == "history":
            steps += [json.loads(item.value_json) for item in record.history.item if list(item.nested_key) == ["_step"]]
    return steps


def wandb_records(content: bytes) -> Iterator[bytes]:
    """Yield the records of a file, each put together of its parts."""
    place, record = FILE_HEADER_BYTES, b""
    while place + HEADER.size <= len(content):
        left = BLOCK_BYTES - place % BLOCK_BYTES
        if left < HEADER.size:
            place += left
            continue
        _, length, kind = HEADER.unpack_from(content, place)
        place += HEADER.size
        record += content[place : place + length]
        place += length
        if kind in LAST_PART:
            yield record
            record = b""
