"""A script that was changed between two rounds: it fails in words, and never goes on with a part of what was kept.

The state may come from memory or from the disk, and at another world size: workers take it in the same way.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.kept_script import Objects, Script, do_steps, network
from workerlib.contract.channel_messages import Saved
from workerlib.keeping.kept_errors import UnfitStateError

pytestmark = pytest.mark.slow

REMEDY = "run the script as it was, or begin anew with another directory of --persist"

Change = Callable[[Objects], Objects]


def objects_of(model: nn.Module) -> Objects:
    """Return what the script keeps. Its optimizer has no state of parameters, so nothing else shows a lost layer."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    return {"model": model, "optimizer": optimizer, "scheduler": scheduler, "notes": {"mean": torch.zeros(2), "n": 0}}


def with_network(*layers: nn.Module) -> Change:
    return lambda _: objects_of(nn.Sequential(*layers))


def with_layer(objects: Objects) -> Objects:
    return objects_of(nn.Sequential(*objects["model"], nn.Linear(2, 2)))


def without_layer(objects: Objects) -> Objects:
    return objects_of(objects["model"][:-1])


def with_type(dtype: torch.dtype) -> Change:
    return lambda objects: objects_of(objects["model"].to(dtype))


def renamed(before: str, after: str) -> Change:
    return lambda objects: {after if name == before else name: kept for name, kept in objects.items()}


def without(name: str) -> Change:
    return lambda objects: {known: kept for known, kept in objects.items() if known != name}


def with_object(name: str, kept: Any) -> Change:
    return lambda objects: {**objects, name: kept}


def with_adam(objects: Objects) -> Objects:
    return {**objects, "optimizer": torch.optim.Adam(objects["model"].parameters())}


CHANGES: dict[str, tuple[Change, str]] = {
    "a layer more": (with_layer, "model.3.weight is not in the kept state"),
    "a layer fewer": (without_layer, "model.2.bias was kept, and no object of keep() has it"),
    "another size": (
        with_network(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 2)),
        "model.0.weight was kept with the size (6, 4), but has (5, 4)",
    ),
    "another type": (with_type(torch.float64), "model.0.weight was kept as torch.float32, but is torch.float64"),
    "a buffer fewer": (
        with_network(nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 2)),
        "the buffer model.1.num_batches_tracked was kept, and no module has it",
    ),
    "a module renamed": (renamed("model", "net"), "net.0.weight is not in the kept state"),
    "an optimizer renamed": (
        renamed("optimizer", "optim"),
        "optim is not in the kept state, which has notes, optimizer, scheduler",
    ),
    "an object fewer": (without("scheduler"), "scheduler was kept, and keep() was not given it"),
    "an object more": (with_object("more", {"n": 1}), "more is not in the kept state, which has notes, optimizer"),
    "an optimizer of another class": (
        with_adam,
        "optimizer was kept without betas, eps, as an optimizer of another class",
    ),
    "a list for a dict": (with_object("notes", [torch.zeros(2), 0]), "notes is a list, and was kept as another kind"),
    "a scheduler for an optimizer": (
        lambda objects: {**objects, "optimizer": objects["scheduler"], "scheduler": objects["optimizer"]},
        "scheduler cannot load the state kept under that name: KeyError('groups')",
    ),
}


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Script]:
    """Keep three steps of a script, with two ranks."""
    with pytest.MonkeyPatch.context() as patch:
        script = Script(Path(tmp_path_factory.mktemp("node")), patch)
        objects = objects_of(network())
        with script.runs(objects) as (_, keeper):
            do_steps(keeper, objects["model"], objects["optimizer"])
            assert isinstance(answer := script.save(keeper), Saved), answer
        yield script
        script.node.close()


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize(("change", "words"), CHANGES.values(), ids=CHANGES.keys())
def test_a_script_that_was_changed_says_what_does_not_fit(
    kept: Script, change: Change, words: str, world_size: int
) -> None:
    with pytest.raises(UnfitStateError) as raised, kept.runs(change(objects_of(network())), world_size):
        pass
    assert str(raised.value).startswith(words), raised.value
    assert REMEDY in str(raised.value)


def test_the_same_script_goes_on_after_all_that(kept: Script) -> None:
    with kept.runs(objects_of(network())) as (done, _):
        assert done == 2
