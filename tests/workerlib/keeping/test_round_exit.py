"""A worker that leaves its round when nodeclient wants its state saved: neither of the two waits for the other."""

import threading
from contextlib import suppress

import pytest
import torch

from tests.support.kept_script import Script, do_steps, train
from tests.support.programs import TIMEOUT_S, wait_until
from workerlib.contract.channel_messages import BEFORE_NAMED, Halted, Saved
from workerlib.keeping import keeper
from workerlib.keeping.kept_errors import LeftRoundError

pytestmark = pytest.mark.slow

LISTENER = "workerlib-keep"


def test_a_step_that_is_not_begun_any_more_holds_up_no_save(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "WAIT_S", TIMEOUT_S)
    with script.trains() as (model, optimizer, kept):
        do_steps(kept, model, optimizer)
        script.await_memory(kept)
        kept.interrupt()
        with pytest.raises(LeftRoundError):
            kept.step(3)
        assert script.saved(kept) == 2


def test_a_save_is_given_up_when_the_worker_is_out_of_the_round_within_a_step(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that is not out of its round in half a second is ended, though it could have stayed."""
    monkeypatch.setattr(keeper, "WAIT_S", 2 * TIMEOUT_S)
    with script.trains() as (model, optimizer, kept):
        do_steps(kept, model, optimizer)
        script.await_memory(kept)
        train(model, optimizer)
        asking = threading.Thread(target=script.node.save, args=[0])
        asking.start()
        wait_until("the question", lambda: kept._lock._request is not None)
        kept.interrupt()
        with pytest.raises(LeftRoundError):
            model(torch.randn(8, 4))
        kept.leave_round()
        asking.join()
        assert not any(thread.name == LISTENER for thread in threading.enumerate())


def test_nothing_of_the_script_runs_in_vain_after_the_last_step_of_a_planned_end(script: Script) -> None:
    """Otherwise the worker waits for data, or computes a forward, before it hears that the round is over."""
    with script.trains() as (model, optimizer, kept):
        kept.is_reused = True
        do_steps(kept, model, optimizer)
        script.await_memory(kept)
        script.node.halt(0, BEFORE_NAMED)
        script.node.await_message(0, Halted)
        answers: list[object] = []

        def end_round() -> None:
            answers.extend(script.node.halt(0, 3))
            with suppress(AssertionError):
                wait_until("the script to stand still", kept._lock._changed._waiters.__len__)  # type: ignore[attr-defined]
                answers.append("it stands still")
            kept.interrupt()

        train(model, optimizer)
        ending = threading.Thread(target=end_round)
        ending.start()
        with pytest.raises(LeftRoundError):
            kept.step(3)
        ending.join()
        saved, last = answers
        assert isinstance(saved, Saved)
        assert (saved.step, last) == (3, "it stands still")
