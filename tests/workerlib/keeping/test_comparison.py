"""When the state of a rank is compared with those of others, and what becomes of one that cannot be."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.support.kept_script import Script
from workerlib.contract.channel_messages import FirstState, NotSaved
from workerlib.keeping.step_saver import COMPARED_AFTER

pytestmark = pytest.mark.slow


def test_a_state_is_compared_once_an_optimizer_has_changed_it(script: Script) -> None:
    """A gradient scaler leaves out steps: until the first one, ranks that will differ have the same state."""
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight])
    with script.runs({"weight": weight, "optimizer": optimizer}) as (_, kept):
        kept.step(0)
        assert kept._saver.commits.problem
        weight.grad = torch.ones(2)
        optimizer.step()
        kept.step(1)
        assert not kept._saver.commits.problem
        script.node.await_message(0, FirstState)
    assert sum(isinstance(message, FirstState) for message in script.node.nodes[0].messages) == 1


def test_numbers_are_kept_from_the_first_step_on(script: Script) -> None:
    numbers = {"tokens": 0}
    with script.runs({"numbers": numbers}) as (_, kept):
        numbers["tokens"] = 5
        kept.step(0)
        script.saved(kept)
    with script.runs({"numbers": (fresh := {"tokens": 0})}) as (done, _):
        assert (done, fresh) == (0, numbers)


@pytest.mark.usefixtures("group")
def test_a_tensor_that_only_collectives_change_is_saved_at_intervals(script: Script) -> None:
    """No such change is counted, and a rank that waits in a collective may have a part of its result."""
    tensor = torch.zeros(2)
    with script.runs({"tensor": tensor}) as (_, kept):
        kept._saver.interval.raise_pause(3600.0)  # the next step is not due, however slow this machine is
        for step in range(COMPARED_AFTER + 1):
            dist.broadcast(tensor, 0)
            kept.step(step)
            script.await_memory(kept)
        dist.broadcast(tensor, 0)
        kept.step(step + 1)
        dist.broadcast(tensor, 0)
        assert script.not_saved(kept) == "tensors have changed since the last step was done"
    assert script.node.resume.step == COMPARED_AFTER


def test_a_state_that_can_no_longer_be_kept_when_it_is_compared_ends_no_training(script: Script) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters())
    with script.runs({"model": model, "optimizer": optimizer}) as (_, kept):
        model.register_parameter("late", nn.Parameter(torch.ones(1)))
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        kept.step(0)
        script.node.await_message(0, NotSaved)
        assert not any(isinstance(message, FirstState) for message in script.node.nodes[0].messages)
