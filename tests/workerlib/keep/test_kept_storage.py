"""KeptWriter and KeptReader take the place of a disk under `dcp.save` and `dcp.load`, at any world size."""

from __future__ import annotations

import io
import os
import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.keeping import Keep, workers
from tests.support.kept_checkpoint import checkpoint, strange_values
from tests.support.programs import TIMEOUT_S
from workerlib.keep import kept_storage
from workerlib.keep.kept_errors import KeptStateError


@pytest.mark.slow
def test_a_state_dict_that_was_saved_is_loaded_at_another_world_size(tmp_path: Path) -> None:
    keep = Keep(tmp_path, 3)
    said: dict[int, list[str]] = {}
    for number, world_size in enumerate((3, 2, 3), 1):
        with workers(keep, checkpoint, world_size, number, tmp_path, 4) as started:
            for process in started:
                process.join(TIMEOUT_S)
            assert [process.exitcode for process in started] == [0] * world_size
        lines = {(tmp_path / f"{number}-{rank}").read_text() for rank in range(world_size)}
        assert len(lines) == 1
        said[number] = lines.pop().splitlines()
        keep.choose()
    keep.close()
    assert said[1][0].startswith("-1 ")
    assert [said[number][0] for number in (2, 3)] == [said[number][1] for number in (1, 2)]
    assert said[3][1].startswith("11 ")


@pytest.mark.slow
def test_a_value_that_only_code_could_bring_back_is_neither_kept_nor_loaded(tmp_path: Path) -> None:
    keep = Keep(tmp_path, 1)
    for number in (1, 2):
        with workers(keep, strange_values, 1, number, tmp_path) as [process]:
            process.join(TIMEOUT_S)
            assert process.exitcode == 0
        assert keep.choose().step == 4
    keep.close()
    assert not (tmp_path / "mark").exists(), "nothing of it has run"
    said = (tmp_path / "said").read_text()
    assert said.count("note is no plain value, and bytes that others may have written could run code") == 2


class Command:
    """Its pickle runs a command."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Say what brings it back."""
        return os.system, ("true",)


def check_plain(value: object) -> None:
    file = io.BytesIO()
    torch.save(value, file)
    kept_storage._check_plain("value", file.getvalue())


@pytest.mark.parametrize(
    "value",
    [
        {"epoch": 3, "done": b"bytes", "of": (1, 2.5, None, {4})},
        np.random.get_state(),  # noqa: NPY002 - it is what scripts keep
        np.random.default_rng(1).bit_generator.state,
        random.getstate(),
        [np.float64(1.5), np.arange(3), np.array(["a"]), np.array([{"a": 1}], dtype=object)],
        datetime.now(UTC),
    ],
    ids=["plain", "numpy's random state", "numpy's generator", "Python's random state", "numpy", "date"],
)
def test_what_samplers_and_schedulers_have_is_kept(value: object) -> None:
    check_plain(value)


@pytest.mark.parametrize("value", [Command(), np.array([Command()], dtype=object), [{"a": Command()}]])
def test_what_brings_code_along_is_not_kept_wherever_it_hides(value: object) -> None:
    with pytest.raises(KeptStateError, match="value is no plain value"):
        check_plain(value)
