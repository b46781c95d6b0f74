"""A worker without memory for its big state gets that of a worker that has ended, and saves into it."""

from __future__ import annotations

import pytest
import torch

from tests.support.kept_script import Objects, Script, do_steps, network, state_of
from tests.support.programs import TIMEOUT_S
from workerlib.keep.arena import ArenaSizes
from workerlib.keep.channel_messages import Saved
from workerlib.keep.keeper import StepKeeper

FOR_ALL = ArenaSizes.at_least(100_000, 20_000)


def trained(script: Script, kept: StepKeeper, objects: Objects) -> str:
    """Do steps, save into lent memory, and return a digest of what is saved."""
    do_steps(kept, objects["model"], objects["optimizer"])
    assert kept._saver.memory.answered.wait(TIMEOUT_S)
    arena = script.node.lend(0, FOR_ALL)
    answer = script.save(kept)
    assert isinstance(answer, Saved), answer
    assert answer.step == 2
    assert [place.read() for place in arena.smalls] == [None] * len(arena.smalls), "they are those of the other rank"
    return state_of(objects)


@pytest.mark.parametrize("savers", [1, 0], ids=["refused", "no saver"])
def test_what_is_saved_into_lent_memory_comes_back(
    script: Script, monkeypatch: pytest.MonkeyPatch, savers: int
) -> None:
    """The worker was refused memory of its own, or it is not one of those that save."""
    monkeypatch.setattr("workerlib.keep.step_saver.SAVERS", savers)
    script.node.refuse = savers > 0
    model = network()
    objects: Objects = {"model": model, "optimizer": torch.optim.AdamW(model.parameters())}
    with script.runs(objects) as (_, kept):
        expected = trained(script, kept, objects)
    fresh = network()
    back: Objects = {"model": fresh, "optimizer": torch.optim.AdamW(fresh.parameters())}
    with script.runs(back) as (done, _):
        assert done == 2
        assert state_of(back) == expected
