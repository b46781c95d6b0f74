"""A worker without memory for its big state gets that of a worker that has ended, and saves into it."""

import resource
from pathlib import Path

import pytest
import torch

from tests.support.kept_script import Objects, Script, do_steps, network, state_of
from tests.support.programs import TIMEOUT_S
from workerlib.contract.arena import ArenaSizes
from workerlib.contract.channel_messages import NotSaved
from workerlib.keeping.keeper import StepKeeper

pytestmark = pytest.mark.slow

FOR_ALL = ArenaSizes.at_least(100_000, 20_000)


def trained(script: Script, kept: StepKeeper, objects: Objects) -> str:
    """Do steps, save into lent memory, and return a digest of what is saved."""
    do_steps(kept, objects["model"], objects["optimizer"])
    assert kept._saver.memory.answered.wait(TIMEOUT_S)
    arena = script.node.lend(0, FOR_ALL)
    assert script.saved(kept) == 2
    assert [place.read() for place in arena.smalls] == [None] * len(arena.smalls), "they are those of the other rank"
    return state_of(objects)


@pytest.mark.parametrize("savers", [1, 0], ids=["refused", "no saver"])
def test_what_is_saved_into_lent_memory_comes_back(
    script: Script, monkeypatch: pytest.MonkeyPatch, savers: int
) -> None:
    """The worker was refused memory of its own, or it is not one of those that save."""
    monkeypatch.setattr("workerlib.keeping.step_saver.SAVERS", savers)
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


def test_nothing_waits_for_memory_that_was_refused(script: Script) -> None:
    script.node.refuse = True
    with script.trains() as (model, optimizer, kept):
        do_steps(kept, model, optimizer)
        assert kept._saver.memory.answered.wait(TIMEOUT_S)
        assert not kept._saver.memory.awaited


def test_memory_that_a_worker_may_not_map_is_refused_in_words(script: Script, caplog: pytest.LogCaptureFixture) -> None:
    limits, mapped = resource.getrlimit(resource.RLIMIT_AS), int(Path("/proc/self/statm").read_text().split()[0])
    script.node.refuse = True
    with script.trains() as (model, optimizer, kept):
        do_steps(kept, model, optimizer)
        assert kept._saver.memory.answered.wait(TIMEOUT_S)
        kept._saver.memory.refused = False
        most = mapped * resource.getpagesize() + 600_000_000
        resource.setrlimit(resource.RLIMIT_AS, (most, limits[1]))
        try:
            script.node.lend(0, ArenaSizes.at_least(130_000_000, 4_096))  # the node of the test maps it as well
            answer = script.save(kept)
        finally:
            resource.setrlimit(resource.RLIMIT_AS, limits)
    assert isinstance(answer, NotSaved), answer
    assert "is not kept: Cannot allocate memory; ulimit -v or the host's memory limits it" in caplog.text
