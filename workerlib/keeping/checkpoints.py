"""Tells a script that writes checkpoints of its own when to write the last one before a planned end of its round.

All ranks have to write the checkpoint of the same step. Under nodeclient, `planned_end` receives that step, without a
collective. Under another launcher, the ranks agree on one by a collective, after the signal that asks them to stop.
"""

from __future__ import annotations

import logging
import os
import time

from workerlib import progress, responder
from workerlib.contract.env import KEEP, WorkerEnvironment
from workerlib.keeping.keep_channel import connect_if_offered
from workerlib.keeping.kept_errors import KeptStateError
from workerlib.keeping.planned_end import PlannedEnd
from workerlib.stop import STOP_REQUEST, any_of, should_stop

LOG = logging.getLogger(__name__)

CHECK_S = 0.05
"""How often a worker that waits for its end checks whether a signal was recorded."""

_planned_end: PlannedEnd | None = None
"""This worker's side of a planned end, with its connection to nodeclient; None if nodeclient offers none, and before
the first call of a function below."""

_used_by = ""
"""Who keeps state over this connection, for messages: `ctx.keep`, or the reader and writer; empty if nobody does."""

_by_collective: bool | None = None
"""Whether the ranks agree by a collective; None before the first call of `should_checkpoint`."""

_early_calls = 0
"""The calls of `should_checkpoint` before the first step was reported."""


def should_checkpoint() -> bool:
    """Whether to write a checkpoint of the step that was just reported, because a planned end of this round comes.

    The answer is true on all ranks after the same step. Then write the checkpoint, and call `checkpointed` on each
    rank: that ends this worker. Call this function on all ranks after each `step`, or after the same ones. The first
    call is a collective, by which the ranks check that nodeclient has a channel for each of them. Each later call costs
    a microsecond. Without channels, as under torchrun, each call is one all-reduce of four bytes, and the first one
    installs handlers of signals as `should_stop` does.
    """
    global _by_collective, _early_calls  # noqa: PLW0603 - one process is one worker
    if _by_collective is None:
        _connect_if_offered()
        _by_collective = any_of(_planned_end is None)  # all ranks have to ask in the same way
        if _planned_end is not None and not _by_collective:
            _planned_end.expect_checkpoints()
    if _by_collective or _planned_end is None:
        return should_stop()
    step = progress.last_step()
    if step < 0:
        _early_calls += 1
        if _early_calls == 2:  # noqa: PLR2004 - one call before the first step is in order
            LOG.warning("should_checkpoint() is never true before the first step is reported: call step(n) before it")
        return False
    return _planned_end.wants_checkpoint(step)


def checkpointed(step: int) -> None:
    """Report that this rank has written its part of a checkpoint of a step; call it after every checkpoint.

    If `should_checkpoint` asked for it, the worker ends here: nodeclient ends it once all workers of its node have
    reported. Under another launcher, or if the script handles the signal that ends it, `SystemExit` is raised. Raises
    `ValueError` for a number that is not a step.
    """
    responder.begin()  # so that nodeclient can ask where this worker waits
    whole = progress.whole_step(step)
    if _by_collective is None:
        _connect_if_offered()
    is_end = STOP_REQUEST.agreed
    if _planned_end is not None and not _by_collective:
        if _planned_end.is_writing_last:
            STOP_REQUEST.listen_beside()  # before the report, upon which the signal comes
        is_end = _planned_end.record_checkpoint(whole)
        while is_end and not STOP_REQUEST.received:
            time.sleep(CHECK_S)  # noqa: TID251 - a signal handler may set no event
    if is_end:
        raise SystemExit


def is_last() -> bool:
    """Whether a checkpoint that the script writes now is the last one of this round."""
    return STOP_REQUEST.agreed or (_planned_end is not None and _planned_end.is_writing_last)


def connect(planned_end: PlannedEnd, used_by: str = "") -> None:
    """Use this connection to nodeclient; `used_by` names the function or classes that keep state over it, if any."""
    global _planned_end, _used_by
    _planned_end, _used_by = planned_end, used_by


def end() -> None:
    """Record that training is over: no checkpoint follows."""
    if _planned_end is not None:
        _planned_end.end_training()


def begin_round() -> None:
    """Forget the connection of the earlier round, and how its ranks agree: this process begins like a new one."""
    global _planned_end, _used_by, _by_collective, _early_calls
    _planned_end, _used_by, _by_collective, _early_calls = None, "", None, 0


def script_asks() -> bool:
    """Whether the script has called `should_checkpoint`, and so ends with a checkpoint before a planned end."""
    return _by_collective is not None


def check_unused(what: str) -> None:
    """Raise `KeptStateError` if the connection that `what` needs is in use: nodeclient accepts one of each worker."""
    if _used_by:
        raise KeptStateError(f"{what} came after {_used_by}: keep state by ctx.keep, or by KeptReader and KeptWriter")
    if _planned_end is not None or _by_collective is not None:
        raise KeptStateError(f"{what} came after should_checkpoint() or checkpointed(): it has to come before")


def _connect_if_offered() -> None:
    if _planned_end is not None or KEEP not in os.environ:
        return
    try:
        channel = connect_if_offered(WorkerEnvironment.from_environ(os.environ))
    except KeptStateError as error:
        LOG.warning("no checkpoint is asked for before a planned end: %s", error)
        return
    if channel is not None:
        planned_end = PlannedEnd(channel)
        planned_end.listen()
        connect(planned_end)
