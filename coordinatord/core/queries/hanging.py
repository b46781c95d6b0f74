"""When to look at the workers of a run that does no step, and what follows from the looks."""

from __future__ import annotations

import math

from coordinatord.core.state.durable import State
from coordinatord.core.state.run import Run
from coordinatord.core.values.time_ledger import Activity
from coordinatord.protocol.messages import Launcher


def next_look(run: Run) -> float | None:
    """Return when to look at the workers, or to give a look up; None unless training has stalled, or if none is wanted.

    There is no look while a node is not connected, nor while workers are in a section, which has its own limit.
    """
    if run.durable.state is not State.RUNNING or run.durable.ledger.activity is not Activity.STALLED:
        return None
    if run.spec.hang_timeout_s == 0 or run.spec.launcher is Launcher.TORCHRUN:
        return None
    if any(member.session is None for member in run.inside):
        return None  # the node comes back, or is lost
    return max(run.hang.due_at, section_until(run))


def section_until(run: Run) -> float:
    """Return until when the section of the workers may go on; a time in the past if they are in none."""
    named = run.progress.sections.longest
    return -math.inf if named is None else named.ends_at


def is_hung(run: Run) -> bool:
    """Whether the round hangs: workers wait for one that will not come, or for longer than `--hang-timeout` allows."""
    found = run.hang.found
    return found is not None and (found.is_hang or bool(run.spec.hang_timeout_s))


def awaits_busy(run: Run) -> bool:
    """Whether workers wait for one that computes, which is not on record yet."""
    return run.hang.found is not None and not is_hung(run) and not run.hang.noted
