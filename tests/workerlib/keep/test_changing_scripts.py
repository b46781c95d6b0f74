"""State that changes where nobody expects it: a group of parameters is added, or a step begins during a save."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.support.kept_script import Script, network, train
from tests.support.kept_training import digest_of
from workerlib.keep.channel_messages import NotSaved, Saved


def test_a_group_of_parameters_that_is_added_later_is_kept_as_well(script: Script) -> None:
    def made() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = network()
        return model, torch.optim.Adam(model[2].parameters())  # type: ignore[index]  # the last layer

    model, optimizer = made()
    with script.runs({"model": model, "optimizer": optimizer}) as (_, kept):
        train(model, optimizer)
        kept.step(0)
        optimizer.add_param_group({"params": list(model[0].parameters())})  # type: ignore[index]  # the first layer
        for step in (1, 2):
            train(model, optimizer)
            kept.step(step)
        assert isinstance(answer := script.save(kept), Saved), answer
    fresh, fresh_optimizer = made()
    fresh_optimizer.add_param_group({"params": list(fresh[0].parameters())})  # type: ignore[index]  # as above
    with script.runs({"model": fresh, "optimizer": fresh_optimizer}) as (done, _):
        assert done == 2
        assert digest_of(fresh_optimizer.state_dict()) == digest_of(optimizer.state_dict())


class Weights(dict[str, torch.Tensor]):
    """Weights of which one changes when somebody looks at them, as if training went on meanwhile."""

    changes = False

    def items(self) -> Any:
        """Change one."""
        if self.changes:
            self["last"].add_(1)
        return super().items()


def test_a_step_that_begins_while_the_one_before_is_copied_spoils_no_state(script: Script) -> None:
    weights = Weights(first=torch.zeros(4), last=torch.zeros(4))
    with script.runs({"weights": weights}) as (_, kept):
        for step in range(2):
            for weight in weights.values():
                weight.add_(1)
            kept.step(step)
            script.await_memory(kept)
        weights.changes = True
        answer = script.save(kept)
        assert isinstance(answer, NotSaved)
        assert answer.why == "tensors have changed while they were copied"
        weights.changes = False
    assert script.node.choose().step == -1
