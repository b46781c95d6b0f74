"""KeptWriter and KeptReader take the place of a disk under `dcp.save` and `dcp.load`, at any world size."""

import io
import logging
import os
import random
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.checkpoint._dedup_save_plans import dedup_save_plans
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import create_default_global_save_plan, create_default_local_save_plan
from torch.distributed.checkpoint.planner import SavePlan, WriteItem
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from tests.support.environments import environment
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
from workerlib import Context, KeptReader, KeptWriter
from workerlib.contract.channel_messages import BEFORE_NAMED, Halted, Interval, Saved
from workerlib.contract.env import KEEP
from workerlib.keeping import checkpoints, kept_storage, restoring
from workerlib.keeping.keep_channel import KeepChannel
from workerlib.keeping.kept_errors import KeptStateError
from workerlib.keeping.kept_storage import PlanShard, number_shards, own_shard

pytestmark = [pytest.mark.filterwarnings("ignore:torch.distributed is (disabled|unavailable)"), pytest.mark.slow]


def test_a_state_dict_that_was_saved_is_loaded_at_another_world_size(keep: Keep, tmp_path: Path) -> None:
    skip_without("torch.distributed.fsdp:fully_shard")
    said: dict[int, list[str]] = {}
    for number, world_size in enumerate((3, 2, 3), 1):
        play(keep, checkpoint, world_size, number, tmp_path, 4)
        lines = {(tmp_path / f"{number}-{rank}").read_text() for rank in range(world_size)}
        assert len(lines) == 1
        said[number] = lines.pop().splitlines()
        keep.choose()
    assert said[1][0].startswith("-1 ")
    assert [said[number][0] for number in (2, 3)] == [said[number][1] for number in (1, 2)]
    assert said[3][1].startswith("11 ")


def test_a_value_that_only_code_could_bring_back_is_neither_kept_nor_loaded(keep: Keep, tmp_path: Path) -> None:
    for number in (1, 2):
        play(keep, strange_values, 1, number, tmp_path)
        assert keep.choose().step == 4
    assert not (tmp_path / "mark").exists(), "nothing of it has run"
    errors = (tmp_path / "errors").read_text()
    assert errors.count("note is no plain value, and bytes that others may have written could run code") == 2


@pytest.mark.parametrize("plan_caching", [pytest.param(False, marks=pytest.mark.long), True])
def test_each_rank_gets_back_what_it_had_under_a_key_of_its_own(
    keep: Keep, tmp_path: Path, *, plan_caching: bool
) -> None:
    skip_without("torch.distributed.checkpoint:SavePlan.usable")
    for number in (1, 2):
        play(keep, own_values, 2, number, tmp_path, plan_caching=plan_caching)
        assert keep.choose().step == 3 * number - 1
        assert [part.big for part in keep.resume.parts] == [True, True], "no part stands for another one"
    assert [(tmp_path / f"2-{rank}").read_text() for rank in range(2)] == ["6.0 60 5", "6.0 66 5"]


def test_a_part_of_which_a_node_was_lost_is_never_said_to_be_whole(keep: Keep, tmp_path: Path) -> None:
    skip_without("torch.distributed.checkpoint:SavePlan.usable")
    play(keep, own_values, 2, 1, tmp_path, plan_caching=True)
    assert {(commit.shard, commit.shards) for commit in keep.commits(0)} == {(0, 2)}
    keep.lose(0)
    assert keep.choose().step == -1


@pytest.mark.parametrize("launched", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_training_goes_on_where_there_is_no_memory_and_is_told_once(
    keep: Keep, tmp_path: Path, *, launched: bool
) -> None:
    keep.refuse = True
    play(keep, without_memory, 1, 1, tmp_path, launched=launched)
    assert (tmp_path / "done").exists()
    why = "--keep-memory is too small" if launched else "this launcher offers no memory for it"
    assert (tmp_path / "log").read_text().count(f"is not kept, and training goes on: {why}") == 1


def test_a_save_that_finds_no_place_is_counted(keep: Keep, tmp_path: Path) -> None:
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


def test_where_two_steps_are_protected_the_newest_one_makes_way_also_if_all_numbers_are_odd(
    keep: Keep, tmp_path: Path
) -> None:
    node = keep.nodes[0]
    with workers(keep, save_five, 1, 1, tmp_path, range(7, 47, 8)) as [process]:
        wait_until("saves", lambda: sum(isinstance(message, Saved) for message in node.messages) == 3)
        assert node.arena is not None
        node.arena.protect([(1, 7), (1, 15)])
        (tmp_path / "protected").touch()
        process.join(TIMEOUT_S)
        assert process.exitcode == 0
    assert {commit.step for commit in keep.commits(0)} == {7, 15, 39}


def test_the_save_before_a_planned_end_finds_a_place(keep: Keep, tmp_path: Path) -> None:
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


def plans_of(*names: str) -> list[SavePlan]:
    """Return what each rank plans to save, of tensors with names of one letter, as it is said to the others."""
    plans = [
        create_default_local_save_plan({name: torch.zeros(2) for name in own}, is_coordinator=True) for own in names
    ]
    return [replace(plan, storage_data=own_shard(7, plan.items)) for plan in plans]


def numbers(plans: list[SavePlan]) -> list[tuple[int, int] | None]:
    """Return the part of each rank once torch has left each item to one of them."""
    spread, _ = create_default_global_save_plan(dedup_save_plans(plans))
    found = [plan.storage_data for plan in number_shards(spread)]
    return [
        (said.shard, said.shards) if isinstance(said, PlanShard) and said.save == 7 and said.shards else None
        for said in found
    ]


def test_what_all_ranks_have_is_one_part() -> None:
    assert numbers(plans_of("wb", "bw", "wb")) == [(0, 1)] * 3


def test_a_key_of_its_own_makes_a_rank_a_part_of_its_own() -> None:
    assert numbers(plans_of("wx", "w", "w", "wx")) == [(0, 2), (1, 2), (1, 2), (0, 2)]


def test_nobody_hears_a_number_if_the_plan_of_one_rank_is_left_out() -> None:
    skip_without("torch.distributed.checkpoint:SavePlan.usable")
    first, second = plans_of("w", "wx")
    assert numbers([first, SavePlan([], usable=False), second]) == [None] * 3


STATE: dict[str, Any] = {"w": torch.ones(4)}


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Keep]:
    """Let this process be the one worker of a node; it forgets all of its connections at the end."""
    keep = Keep(tmp_path, 1)
    for name, value in environment(0, 1, 1, 1).to_environ().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv(KEEP, str(keep.nodes[0].path))
    yield keep
    kept_storage._open_connection.cache_clear()
    if checkpoints._planned_end is not None:
        checkpoints._planned_end.close()
    checkpoints.begin_round()
    keep.close()


@pytest.fixture
def context() -> Context:
    """Return what `init` gives to this worker."""
    return Context(environment(0, 1, 1, 1), torch.device("cpu"))


@pytest.mark.usefixtures("node")
def test_a_reader_and_keep_are_not_mixed(context: Context) -> None:
    assert KeptReader().step == -1
    with pytest.raises(KeptStateError, match=r"ctx\.keep came after KeptReader or KeptWriter: keep state by ctx\.keep"):
        context.keep(model=nn.Linear(2, 2))
    assert KeptReader().step == -1, "it goes on as before"


@pytest.mark.usefixtures("node")
def test_keep_and_a_writer_are_not_mixed(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_module("workerlib.init"), "_keeper", None)
    context.keep(model=nn.Linear(2, 2))
    with pytest.raises(CheckpointException, match=r"KeptReader or KeptWriter came after ctx\.keep"):
        save(STATE, storage_writer=KeptWriter(1))
    context.close()


def test_a_connection_that_the_node_refuses_is_explained(tmp_path: Path) -> None:
    """A process that a worker has started may make a reader too, or one that is left of an earlier round."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(tmp_path / "refuses"))
        listener.listen()
        channel = KeepChannel(str(tmp_path / "refuses"), environment(0, 1, 1, 1))
        listener.accept()[0].close()
        words = "so this worker ends: it has closed the connection, and takes only one from each worker of its round"
        try:
            with pytest.raises(KeptStateError, match=words):
                restoring.request_state(channel)
        finally:
            channel.close()


@pytest.mark.usefixtures("node")
def test_a_reader_without_its_node_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(KEEP, str(tmp_path / "gone"))
    for _ in range(2):
        with pytest.raises(KeptStateError, match=r"nodeclient cannot be reached at .*gone"):
            KeptReader()


@pytest.mark.usefixtures("node")
def test_nothing_is_loaded_where_nothing_is_kept() -> None:
    with pytest.raises(CheckpointException, match=r"no step is kept, .*: load only if the reader's step is >= 0"):
        load(STATE, storage_reader=KeptReader())


@pytest.mark.parametrize("step", [-1, 2**53, 1.5, "a", None])
def test_a_writer_takes_a_step_alone(step: Any) -> None:
    with pytest.raises(ValueError, match=r"a step must be a whole number from 0 to 2\*\*53 - 1, not"):
        KeptWriter(step)


@pytest.mark.usefixtures("node")
def test_a_reader_comes_before_the_first_save() -> None:
    """A save frees the memory of the state that was loaded."""
    save(STATE, storage_writer=KeptWriter(1))
    with pytest.raises(KeptStateError, match="KeptReader came after a save of this round: make one reader"):
        KeptReader()


def test_a_save_waits_for_no_memory_once_its_connection_has_ended(node: Keep, caplog: pytest.LogCaptureFixture) -> None:
    node.gives.clear()
    KeptReader()
    connection = kept_storage._open_connection()

    def end() -> None:
        wait_until("the request", lambda: not connection._answered.is_set())
        end_of_node = node.nodes[0].connection
        assert end_of_node is not None
        end_of_node.shutdown(socket.SHUT_RDWR)

    ending = threading.Thread(target=end)
    ending.start()
    save(STATE, storage_writer=KeptWriter(1))
    ending.join()
    node.gives.set()
    assert "and training goes on: the connection to nodeclient has ended" in caplog.text


def test_a_step_that_was_saved_is_not_saved_again(node: Keep, caplog: pytest.LogCaptureFixture) -> None:
    """If another rank saved it only once, the step would come back with two contents."""
    for step, content in ((4, 1.0), (4, 2.0), (3, 3.0), (torch.tensor(5), 5.0)):
        save({"w": torch.full((4,), content)}, storage_writer=KeptWriter(step))  # type: ignore[arg-type]
    assert sorted(commit.step for commit in node.commits(0)) == [4, 5]
    [warning] = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "its step is not higher than that of an earlier save" in warning
