"""The module that gets a hook for its forward: also where its own hooks do not run."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from workerlib.keeping.process_hooks import hooked_module

pytestmark = pytest.mark.slow


def plain(module: nn.Module) -> nn.Module:
    return module


def compiled(module: nn.Module) -> nn.Module:
    wrapped: nn.Module = torch.compile(module, backend="eager")  # type: ignore[assignment]  # a module, of a module
    return wrapped


def compiled_in_place(module: nn.Module) -> nn.Module:
    module.compile(backend="eager")
    return module


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize(("make", "within"), [(plain, True), (compiled, False), (compiled_in_place, False)])
def test_the_module_within_ddp_has_the_hook_unless_it_is_compiled(
    make: Callable[[nn.Module], nn.Module], within: bool
) -> None:
    inner = make(nn.Linear(2, 2))
    around = DistributedDataParallel(inner)
    assert hooked_module(around) is (inner if within else around)
    assert hooked_module(inner) is inner
