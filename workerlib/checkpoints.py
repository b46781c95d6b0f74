"""Checkpoints that a script writes by itself: when one is wanted before a planned end, and that it is written.

Where nodeclient offers its channel, all ranks learn the same step by it, see `keep.planned_end`. Under another launcher
they agree on it by a collective, after the signal that asks them to stop.
"""

# ruff: noqa: PLC0415  # importing workerlib stays cheap: few scripts need the channel

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING

from workerlib import progress
from workerlib.agreement import any_of, should_stop
from workerlib.env import KEEP, WorkerEnvironment
from workerlib.stop import REQUEST

if TYPE_CHECKING:
    from workerlib.keep.planned_end import PlannedEnd

LOG = logging.getLogger(__name__)

LOOK_S = 0.05
"""How often a worker that waits for its end looks whether a signal was noted."""

_planned_end: PlannedEnd | None = None
"""The connection to nodeclient; None where it offers none, and before the first question."""

_by_collective: bool | None = None
"""Whether the ranks agree among themselves; None before the first question."""

_questions = 0
"""The questions before the first step was reported."""


def should_checkpoint() -> bool:
    """Whether to write a checkpoint of the step that was just reported, because this round is about to end on purpose.

    It is true on all ranks after the same step. Write the checkpoint then, and call `checkpointed` on each rank: that
    ends this worker. Call it on all ranks after each `step`, or after the same ones. It is no collective and costs a
    microsecond, but for the first call: in that the ranks make sure that nodeclient has a channel for each of them.
    Where it has none, as under torchrun, each call is one all-reduce of four bytes, and the first one installs handlers
    of signals as `should_stop` does.
    """
    global _by_collective, _questions  # noqa: PLW0603 - one process is one worker
    if _by_collective is None:
        _connect_if_offered()
        _by_collective = any_of(_planned_end is None)
        if _planned_end is not None and not _by_collective:
            _planned_end.expect_checkpoints()
    if _by_collective or _planned_end is None:
        return should_stop()
    step = progress.last_step()
    if step < 0:
        _questions += 1
        if _questions == 2:  # noqa: PLR2004 - one before the first step is in order
            LOG.warning("should_checkpoint() is never true before the first step is reported: call step(n) before it")
        return False
    return _planned_end.wants_checkpoint(step)


def checkpointed(step: int) -> None:
    """Say that this rank has written its part of a checkpoint of a step, also of one that nobody asked for.

    If it was asked for, the worker ends here: nodeclient ends it once all workers of its node have said so. Under
    another launcher, or if the script handles the signal that ends it, `SystemExit` is raised. `ValueError` is raised
    for what is no step.
    """
    whole = progress.as_step(step)
    if whole is None:
        raise ValueError(f"a step must be a whole number from 0 to 2**53 - 1, not {str(step)[:40]!r}")
    if _by_collective is None:
        _connect_if_offered()
    is_the_end = REQUEST.agreed
    if _planned_end is not None and not _by_collective:
        is_the_end = _planned_end.note_checkpoint(whole)
        while is_the_end and not REQUEST.received:
            threading.Event().wait(LOOK_S)
    if is_the_end:
        raise SystemExit


def connect(planned_end: PlannedEnd) -> None:
    """Use a connection to nodeclient that this process has already."""
    global _planned_end  # noqa: PLW0603 - as above
    _planned_end = planned_end


def end() -> None:
    """Note that training is over: no checkpoint follows."""
    if _planned_end is not None:
        _planned_end.end()


def begin_round() -> None:
    """Forget the connection: this process goes on in another round, and makes a new one."""
    global _planned_end  # noqa: PLW0603 - as above
    _planned_end = None


def are_asked_for_by_script() -> bool:
    """Whether the script writes checkpoints by itself."""
    return _by_collective is not None


def are_asked_for() -> bool:
    """Whether the script has called one of the two functions, so that there may be a connection."""
    return _planned_end is not None or _by_collective is not None


def _connect_if_offered() -> None:
    path = os.environ.get(KEEP)
    if _planned_end is not None or path is None:
        return
    from workerlib.keep.agent_channel import AgentChannel
    from workerlib.keep.channel_messages import Hello
    from workerlib.keep.planned_end import PlannedEnd

    environment = WorkerEnvironment.from_environ(os.environ)
    try:
        channel = AgentChannel(path)
        channel.send(Hello(environment.local_rank, environment.round, os.getpid()))
    except OSError as error:
        text = "nodeclient cannot be reached at %s, so no checkpoint is asked for before a planned end: %s"
        LOG.warning(text, path, error.strerror)
        return
    planned_end = PlannedEnd(channel)
    planned_end.listen()
    os.register_at_fork(after_in_child=planned_end.abandon)
    connect(planned_end)
