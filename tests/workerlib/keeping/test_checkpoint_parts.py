"""Ranks whose plans have the same items have the same part, and none hears a number that others do not hear."""

from dataclasses import replace

import pytest
import torch
from torch.distributed.checkpoint._dedup_save_plans import dedup_save_plans
from torch.distributed.checkpoint.default_planner import create_default_global_save_plan, create_default_local_save_plan
from torch.distributed.checkpoint.planner import SavePlan

from tests.support.torch_names import skip_without
from workerlib.keeping.kept_storage import PlanShard, number_shards, own_shard

pytestmark = pytest.mark.slow


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
