"""A worker that leaves its round while nodeclient wants its state saved: the save waits for no step that never ends."""

from __future__ import annotations

import threading

import pytest
import torch

from tests.support.kept_script import Objects, Script, do_steps, network, train
from tests.support.programs import TIMEOUT_S, wait_until
from workerlib.keep import keeper
from workerlib.keep.channel_messages import Saved
from workerlib.keep.kept_errors import LeftRoundError

LISTENER = "workerlib-keep"


def test_a_step_that_is_not_begun_any_more_holds_up_no_save(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "WAIT_S", TIMEOUT_S)
    model = network()
    objects: Objects = {"model": model, "optimizer": torch.optim.AdamW(model.parameters())}
    with script.runs(objects) as (_, kept):
        do_steps(kept, model, objects["optimizer"])
        script.await_memory(kept)
        kept.let_leave()
        with pytest.raises(LeftRoundError):
            kept.step(3)
        assert isinstance(answer := script.save(kept), Saved), answer
        assert answer.step == 2


def test_a_save_is_given_up_when_the_worker_is_out_of_the_round_within_a_step(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that is not out of its round in half a second is ended, though it could have stayed."""
    monkeypatch.setattr(keeper, "WAIT_S", 2 * TIMEOUT_S)
    model = network()
    objects: Objects = {"model": model, "optimizer": torch.optim.AdamW(model.parameters())}
    with script.runs(objects) as (_, kept):
        do_steps(kept, model, objects["optimizer"])
        script.await_memory(kept)
        train(model, objects["optimizer"])
        asking = threading.Thread(target=script.node.save, args=[0])
        asking.start()
        wait_until("the question", lambda: kept._lock._question is not None)
        kept.let_leave()
        with pytest.raises(LeftRoundError):
            model(torch.randn(8, 4))
        kept.leave_round()
        asking.join()
        assert not any(thread.name == LISTENER for thread in threading.enumerate())
