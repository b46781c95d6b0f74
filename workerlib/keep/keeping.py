"""Begins to keep the state of a script's objects, for `Context.keep`."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any

import torch

from workerlib.env import KEEP, WorkerEnvironment
from workerlib.keep.adapter import KeptObject
from workerlib.keep.agent_channel import AgentChannel
from workerlib.keep.generations import Generations
from workerlib.keep.keeper import StepKeeper
from workerlib.keep.kept_errors import KeptStateError, UnreachableError
from workerlib.keep.kept_objects import adapt
from workerlib.keep.small_state import SmallStates
from workerlib.record import declare_final

LOG = logging.getLogger("workerlib.keep")


def keep(environment: WorkerEnvironment, objects: Mapping[str, Any]) -> tuple[int, StepKeeper | None]:
    """Bring objects to the newest common state, and keep them from now on; return the step, and their keeper.

    Raises `KeptStateError` for state that cannot be kept or brought back.
    """
    try:
        adapters, generations, small = _prepare(environment, objects)
    except KeptStateError as error:
        if error.__cause__ is None:  # else an object of the script has failed, perhaps only this time
            declare_final(error)
        raise
    path = os.environ.get(KEEP)
    if path is None:
        LOG.info("no state is kept: this launcher offers no memory for it")
        return -1, None
    modules = [kept for kept in objects.values() if isinstance(kept, torch.nn.Module)]
    try:
        keeper = StepKeeper(environment, adapters, generations, small, AgentChannel(path))
        return keeper.begin(modules), keeper
    except OSError as error:
        raise UnreachableError(path, error) from error


def _prepare(
    environment: WorkerEnvironment, objects: Mapping[str, Any]
) -> tuple[Mapping[str, KeptObject], Generations, SmallStates]:
    """Adapt a script's objects. Raises `KeptStateError` for state that cannot be kept, whatever was kept before."""
    adapters = adapt(objects)
    if not adapters:
        raise KeptStateError("keep() was given nothing: give it what training depends on, as keep(model=model, ...)")
    generations, small = Generations(adapters, environment.world_size), SmallStates(adapters)
    generations.bytes_needed(0)
    small.take_first({})
    return adapters, generations, small
