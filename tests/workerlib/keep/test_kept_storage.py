"""KeptWriter and KeptReader take the place of a disk under `dcp.save` and `dcp.load`, at any world size."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.keeping import Keep, workers
from tests.support.kept_checkpoint import checkpoint, strange_values
from tests.support.programs import TIMEOUT_S


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
