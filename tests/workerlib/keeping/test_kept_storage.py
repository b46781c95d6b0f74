"""KeptWriter and KeptReader take the place of a disk under `dcp.save` and `dcp.load`, at any world size."""

import io
import os
import random
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed.checkpoint.planner import WriteItem

from tests.support.keeping import Gone, Keep, play, workers
from tests.support.kept_checkpoint import (
    checkpoint,
    own_values,
    save_before_planned_end,
    save_five,
    strange_values,
    without_memory,
)
from tests.support.programs import TIMEOUT_S, wait_until
from tests.support.torch_names import skip_without
from workerlib.contract.channel_messages import BEFORE_NAMED, Halted, Interval, Saved
from workerlib.keeping import kept_storage
from workerlib.keeping.kept_errors import KeptStateError

pytestmark = pytest.mark.slow


def test_a_state_dict_that_was_saved_is_loaded_at_another_world_size(tmp_path: Path) -> None:
    skip_without("torch.distributed.fsdp:fully_shard")
    keep = Keep(tmp_path, 3)
    said: dict[int, list[str]] = {}
    for number, world_size in enumerate((3, 2, 3), 1):
        play(keep, checkpoint, world_size, number, tmp_path, 4)
        lines = {(tmp_path / f"{number}-{rank}").read_text() for rank in range(world_size)}
        assert len(lines) == 1
        said[number] = lines.pop().splitlines()
        keep.choose()
    keep.close()
    assert said[1][0].startswith("-1 ")
    assert [said[number][0] for number in (2, 3)] == [said[number][1] for number in (1, 2)]
    assert said[3][1].startswith("11 ")


def test_a_value_that_only_code_could_bring_back_is_neither_kept_nor_loaded(tmp_path: Path) -> None:
    keep = Keep(tmp_path, 1)
    for number in (1, 2):
        play(keep, strange_values, 1, number, tmp_path)
        assert keep.choose().step == 4
    keep.close()
    assert not (tmp_path / "mark").exists(), "nothing of it has run"
    errors = (tmp_path / "errors").read_text()
    assert errors.count("note is no plain value, and bytes that others may have written could run code") == 2


@pytest.mark.parametrize("plan_caching", [pytest.param(False, marks=pytest.mark.long), True])
def test_each_rank_gets_back_what_it_had_under_a_key_of_its_own(tmp_path: Path, *, plan_caching: bool) -> None:
    skip_without("torch.distributed.checkpoint:SavePlan.usable")
    keep = Keep(tmp_path, 2)
    for number in (1, 2):
        play(keep, own_values, 2, number, tmp_path, plan_caching=plan_caching)
        assert keep.choose().step == 3 * number - 1
        assert [part.big for part in keep.resume.parts] == [True, True], "no part stands for another one"
    keep.close()
    assert [(tmp_path / f"2-{rank}").read_text() for rank in range(2)] == ["6.0 60 5", "6.0 66 5"]


def test_a_part_of_which_a_node_was_lost_is_never_said_to_be_whole(tmp_path: Path) -> None:
    skip_without("torch.distributed.checkpoint:SavePlan.usable")
    keep = Keep(tmp_path, 2)
    play(keep, own_values, 2, 1, tmp_path, plan_caching=True)
    assert {(commit.shard, commit.shards) for commit in keep.commits(0)} == {(0, 2)}
    keep.lose(0)
    assert keep.choose().step == -1
    keep.close()


@pytest.mark.parametrize("launched", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_training_goes_on_where_there_is_no_memory_and_is_told_once(tmp_path: Path, *, launched: bool) -> None:
    keep = Keep(tmp_path, 1)
    keep.refuse = True
    play(keep, without_memory, 1, 1, tmp_path, launched=launched)
    keep.close()
    assert (tmp_path / "done").exists()
    why = "--keep-memory is too small" if launched else "this launcher offers no memory for it"
    assert (tmp_path / "log").read_text().count(f"is not kept, and training goes on: {why}") == 1


def test_a_save_that_finds_no_place_is_counted(tmp_path: Path) -> None:
    keep = Keep(tmp_path, 1)
    node = keep.nodes[0]
    with workers(keep, save_five, 1, 1, tmp_path, range(5)) as [process]:
        keep.await_message(0, Saved)
        wait_until("saves", lambda: sum(isinstance(message, Saved) for message in node.messages) == 3)
        assert node.arena is not None
        node.arena.protect([(1, 0), (1, 1), (1, 2)])  # so no place is left
        (tmp_path / "protected").touch()
        process.join(TIMEOUT_S)
        assert process.exitcode == 0
    keep.await_message(0, Gone)
    assert [message.skipped for message in node.messages if isinstance(message, Interval)] == [1, 2]
    assert all(message.seconds > 0 for message in node.messages if isinstance(message, Saved))
    assert {commit.step for commit in keep.commits(0)} == {0, 1, 2}
    keep.close()


def test_where_two_steps_are_protected_the_newest_one_makes_way_also_if_all_numbers_are_odd(tmp_path: Path) -> None:
    keep = Keep(tmp_path, 1)
    node = keep.nodes[0]
    with workers(keep, save_five, 1, 1, tmp_path, range(7, 47, 8)) as [process]:
        wait_until("saves", lambda: sum(isinstance(message, Saved) for message in node.messages) == 3)
        assert node.arena is not None
        node.arena.protect([(1, 7), (1, 15)])
        (tmp_path / "protected").touch()
        process.join(TIMEOUT_S)
        assert process.exitcode == 0
    assert {commit.step for commit in keep.commits(0)} == {7, 15, 39}
    keep.close()


def test_the_save_before_a_planned_end_finds_a_place(tmp_path: Path) -> None:
    keep = Keep(tmp_path, 1)
    node = keep.nodes[0]
    with workers(keep, save_before_planned_end, 1, 1, tmp_path) as [process]:
        wait_until("saves", lambda: sum(isinstance(message, Saved) for message in node.messages) == 3)
        assert node.arena is not None
        node.arena.protect([(1, 0), (1, 1)])
        keep.halt(0, BEFORE_NAMED)
        keep.await_message(0, Halted)
        (tmp_path / "protected").touch()
        keep.halt(0, 3)
        process.join(TIMEOUT_S)
        assert process.exitcode == 0
    assert {commit.step for commit in keep.commits(0)} == {0, 1, 3}
    keep.close()


class Command:
    """Its pickle runs a command."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Say what brings it back."""
        return os.system, ("true",)


def check_plain(value: object) -> None:
    file = io.BytesIO()
    torch.save(value, file)
    kept_storage._check_pickle("value", file.getvalue())


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


@dataclass(frozen=True)
class OldPlan:
    """A `SavePlan` of torch 2.6, which cannot be left out."""

    items: list[WriteItem]
    storage_data: Any = None
    planner_data: Any = None


def test_plans_of_an_old_torch_are_numbered_too() -> None:
    plans: list[Any] = [OldPlan([]), OldPlan([])]
    prepared = [kept_storage.KeptWriter(1).prepare_local_plan(plan) for plan in plans]
    parts = [plan.storage_data for plan in kept_storage.number_shards(prepared)]
    assert [(part.shard, part.shards) for part in parts] == [(0, 1), (0, 1)]
