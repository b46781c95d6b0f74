"""A worker that is alone keeps what no other one has: nothing but itself can save that."""

import threading

import pytest
import torch

from tests.support.kept_script import Objects, Script, do_steps, network, state_of
from tests.support.programs import wait_until
from workerlib.contract.channel_messages import NotSaved, Saved

pytestmark = pytest.mark.slow


def test_a_worker_that_is_alone_saves_its_last_step_while_it_does_something_else(script: Script) -> None:
    """It may be in an evaluation, a data loader or a compilation that takes longer than anybody waits."""
    model = network()
    objects: Objects = {"model": model, "optimizer": torch.optim.AdamW(model.parameters())}
    with script.runs(objects, world_size=1) as (_, kept):
        do_steps(kept, model, objects["optimizer"])
        expected = state_of(objects)
        model(torch.randn(8, 4)).sum().backward()  # it changes buffers and random numbers, and no parameter
        script.saved(kept)
    fresh = network()
    back: Objects = {"model": fresh, "optimizer": torch.optim.AdamW(fresh.parameters())}
    with script.runs(back, world_size=1) as (done, _):
        assert done == 2
        assert state_of(back) == expected


def test_a_worker_that_is_alone_without_an_optimizer_is_not_saved_within_a_step(script: Script) -> None:
    """Nothing tells when its tensors change."""
    weights = torch.zeros(3)
    with script.runs({"weights": weights}, world_size=1) as (_, kept):
        for step in range(3):
            weights += 1
            kept.step(step)
        script.await_memory(kept)
        weights[:2] += 1
        asking = threading.Thread(target=script.node.save, args=[0])
        asking.start()
        wait_until("the question", lambda: kept._lock._request is not None)
        weights[2:] += 1
        kept.step(3)
        asking.join()
    assert script.node.choose().step == 3
    fresh = torch.zeros(3)
    with script.runs({"weights": fresh}, world_size=1):
        assert fresh.tolist() == [4] * 3


def test_a_question_that_waits_for_the_end_of_a_step_is_answered_when_training_ends(script: Script) -> None:
    weights, answers = torch.zeros(3), []
    with script.runs({"weights": weights}, world_size=1) as (_, kept):
        weights += 1
        kept.step(0)
        script.await_memory(kept)
        weights += 1
        asking = threading.Thread(target=lambda: answers.extend(script.node.save(0)))
        asking.start()
        wait_until("the question", lambda: kept._lock._request is not None)
    asking.join()
    [answer] = answers
    assert isinstance(answer, Saved | NotSaved), "the connection ended without an answer"


def test_a_value_that_can_be_kept_no_more_is_an_answer_and_not_the_end_of_a_training(script: Script) -> None:
    weights, notes, answers = torch.zeros(3), dict[str, object](number=0), []
    with script.runs({"weights": weights, "notes": notes}, world_size=1) as (_, kept):
        kept._saver.role.saves_small = False  # as where buffers are on a GPU
        for step in range(2):
            weights += 1
            kept.step(step)
        script.await_memory(kept)
        asking = threading.Thread(target=lambda: answers.extend(script.node.save(0)))
        asking.start()
        wait_until("the question", lambda: kept._lock._request is not None)
        notes["number"] = object()
        kept.step(2)
        asking.join()
    [answer] = answers
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
