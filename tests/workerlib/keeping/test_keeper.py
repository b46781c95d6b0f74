"""What a worker answers its node, whatever it does meanwhile, and what becomes of a training that cannot be kept."""

import os
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from nodeclient.diagnosis.error_file import read_error_file
from tests.support.kept_script import Objects, Script, do_steps, network_and_optimizer, state_of, train
from tests.support.programs import TIMEOUT_S, wait_until
from workerlib.contract.channel_messages import BEFORE_NAMED, Halted, NotSaved, Saved
from workerlib.keeping import keeper
from workerlib.keeping.kept_errors import LeftRoundError

pytestmark = pytest.mark.slow


def test_a_worker_that_is_alone_saves_its_last_step_while_it_does_something_else(script: Script) -> None:
    """It may be in an evaluation, a data loader or a compilation that takes longer than anybody waits."""
    objects = network_and_optimizer(torch.optim.AdamW)
    with script.runs(objects, world_size=1) as (_, kept):
        do_steps(kept, objects["model"], objects["optimizer"])
        expected = state_of(objects)
        objects["model"](torch.randn(8, 4)).sum().backward()  # it changes buffers and random numbers, and no parameter
        script.saved(kept)
    script.check_resumed(network_and_optimizer(torch.optim.AdamW), 2, expected, world_size=1)


def test_a_worker_that_is_alone_without_an_optimizer_is_not_saved_within_a_step(script: Script) -> None:
    """Nothing tells when its tensors change."""
    weights = torch.zeros(3)
    with script.runs({"weights": weights}, world_size=1) as (_, kept):
        for step in range(3):
            weights += 1
            kept.step(step)
        script.await_memory(kept)
        weights[:2] += 1
        answers = script.begin_save(kept)
        weights[2:] += 1
        kept.step(3)
        answers.result(TIMEOUT_S)
    assert script.node.choose().step == 3
    fresh = torch.zeros(3)
    with script.runs({"weights": fresh}, world_size=1):
        assert fresh.tolist() == [4] * 3


def test_a_question_that_waits_for_the_end_of_a_step_is_answered_when_training_ends(script: Script) -> None:
    weights = torch.zeros(3)
    with script.runs({"weights": weights}, world_size=1) as (_, kept):
        weights += 1
        kept.step(0)
        script.await_memory(kept)
        weights += 1
        answers = script.begin_save(kept)
    [answer] = answers.result(TIMEOUT_S)
    assert isinstance(answer, Saved | NotSaved), "the connection ended without an answer"


def test_a_value_that_can_be_kept_no_more_is_an_answer_and_not_the_end_of_a_training(script: Script) -> None:
    weights, notes = torch.zeros(3), dict[str, object](number=0)
    with script.runs({"weights": weights, "notes": notes}, world_size=1) as (_, kept):
        kept._saver.role.saves_small = False  # as where buffers are on a GPU
        for step in range(2):
            weights += 1
            kept.step(step)
        script.await_memory(kept)
        answers = script.begin_save(kept)
        notes["number"] = object()
        kept.step(2)
    [answer] = answers.result(TIMEOUT_S)
    assert isinstance(answer, NotSaved)
    assert "notes.number" in answer.why


def test_where_two_steps_are_protected_the_newest_one_makes_way_for_others_also_if_all_numbers_are_odd(
    script: Script,
) -> None:
    with script.runs({"weights": (weights := torch.zeros(3))}, world_size=1) as (_, kept):
        protected = list[tuple[int, int]]()
        for step in range(7, 4_000, 8):
            weights += 1
            kept.step(step)
            script.await_memory(kept)
            arena = script.node.nodes[0].arena
            assert arena is not None
            held = [(commit.round, commit.step) for place in arena.generations if (commit := place.read())]
            if len(held) == 3 and not protected:
                protected = sorted(held)[:2]
                arena.protect(protected)
                newest = max(held)
            if protected and max(held) > newest:
                break
        assert sorted(held)[:2] == protected
        assert max(held) > newest


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
        answers = script.begin_save(kept)
        kept.interrupt()
        with pytest.raises(LeftRoundError):
            model(torch.randn(8, 4))
        kept.leave_round()
        answers.result(TIMEOUT_S)
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


class Failing:
    """Something whose state cannot be had any more."""

    saves = True

    def state_dict(self) -> Objects:
        """Return it, or fail."""
        if not self.saves:
            raise ValueError("the file is closed")
        return {"position": 1}

    def load_state_dict(self, _: Objects) -> None:
        """Go on at the position."""


def test_an_object_that_fails_to_say_its_state_is_not_the_end_of_training(
    script: Script, caplog: pytest.LogCaptureFixture
) -> None:
    failing = Failing()
    with script.trains(file=failing) as (model, optimizer, kept):
        do_steps(kept, model, optimizer)
        failing.saves = False
        for step in (3, 4):
            train(model, optimizer)
            kept.step(step)
        assert script.not_saved(kept).startswith(why := "file cannot be kept: its state_dict() has failed: ValueError(")
    assert caplog.text.count(why) == 1


PROGRAM = """
import sys, types
from tests.workerlib.keeping.test_keeper import Failing
from workerlib.keeping.keeper import keep
Failing.saves = False
keep(types.SimpleNamespace(world_size=1), {"file": Failing() if sys.argv[1] == "failing" else object()})
"""


@pytest.mark.parametrize(("kept", "final"), [("failing", None), ("object", True)])
def test_an_object_that_fails_may_do_better_in_another_round(kept: str, final: object, tmp_path: Path) -> None:
    path = tmp_path / "error.json"
    environ = {**os.environ, "TORCHELASTIC_ERROR_FILE": str(path)}
    done = subprocess.run([sys.executable, "-c", PROGRAM, kept], env=environ, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 1
    found = read_error_file(path)
    assert (found and found.final) is final
