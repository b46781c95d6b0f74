"""All transitions of a node: what it does in each phase for each stimulus, and why.

The goals of the coordinator are levels: they are looked up again whenever the phase changes. A goal that had to wait,
such as a next round while the old workers end, is thus reached in the end.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from coordinatord.protocol.errors import Table
from coordinatord.protocol.messages import Desired, Goal, Phase


class Stimulus(StrEnum):
    """All stimuli of the table: the goals of the coordinator first, then local events."""

    WAIT = "the goal is to wait"
    RUN = "the goal is to run the round that this node is in"
    RUN_NEXT = "the goal is to run a round that this node is not in yet"
    STOP = "the goal is to stop the round that this node is in"
    STOP_NEXT = "the goal is to stop a round that this node has not begun"
    EXIT = "the goal is to exit"

    PREPARED = "the modules of --preload are imported, or will not be"
    REACHED = "the master of the round can be reached"
    STARTED = "all workers are started"
    FAILED = "a worker failed"
    SUCCEEDED = "all workers have exited with 0"
    DEAD = "the last worker is dead"
    SWEPT = "nothing of the round is left"
    LEAVE_OVER = "workers that were asked to leave the round are not out of it in the time that they had"
    SAVED = "the workers have saved what they keep, or had the time to"
    PUT_OFF_OVER = "the workers have not come to a step of their own choice in half of the time that they have to end"
    HALT_OVER = "the workers have not come to the step that all were to keep, in the time that they had"
    GRACE_OVER = "the workers had the time to end"
    ABANDONED = "the coordinator is out of reach for too long, or the node leaves without it"


GOALS = (Stimulus.WAIT, Stimulus.RUN, Stimulus.RUN_NEXT, Stimulus.STOP, Stimulus.STOP_NEXT, Stimulus.EXIT)


def stimulus_of(desired: Desired, run: str, round_number: int) -> Stimulus:
    """Return the stimulus that a goal is to a node in this round of this run."""
    here = (desired.run, desired.round) == (run, round_number)
    match desired.goal:
        case Goal.WAIT:
            return Stimulus.WAIT
        case Goal.EXIT:
            return Stimulus.EXIT
        case Goal.RUN:
            return Stimulus.RUN if here else Stimulus.RUN_NEXT
        case Goal.STOP:
            return Stimulus.STOP if here else Stimulus.STOP_NEXT


class Act(StrEnum):
    """What the agent does in a transition."""

    STAY = "stay"
    PROBE = "probe"
    """Find out whether the master can be reached, before any worker is started."""
    START = "start"
    STOP = "stop"
    """Signal the workers to end; the reason decides how long they get. Those that keep state save it first."""
    SAVE = "save"
    """Have the workers save the last step that each has done, since no common one can be kept."""
    SAVE_LATE = "save late"
    """Have the workers save the last step that each has done: they may not come to the one that their script chose."""
    TERMINATE = "terminate"
    """Signal the workers to end, once they need not be asked to save any more."""
    FAIL = "fail"
    """Stop the workers, because one of them failed."""
    SUCCEED = "succeed"
    KILL = "kill"
    SWEEP = "sweep"
    SETTLE = "settle"
    """Take the phase that the end of the workers leads to."""
    ADOPT = "adopt"
    """Note a round that was over before it began here."""
    REST = "rest"
    LEAVE = "leave"


class Row(Struct, frozen=True):
    """What is done, and the phase that it leads to; None where the end of the workers decides."""

    act: Act
    phase: Phase | None
    reason: str


_RESTING = (Phase.IDLE, Phase.STOPPED, Phase.SUCCEEDED, Phase.FAILED)
WORKING = (Phase.STARTING, Phase.RUNNING)
"""Phases in which the workers have not been asked to end."""


def _table() -> dict[tuple[Phase, Stimulus], Row]:
    table: dict[tuple[Phase, Stimulus], Row] = {}
    table |= {(Phase.PREPARING, goal): Row(Act.STAY, Phase.PREPARING, "it cannot have workers yet") for goal in GOALS}
    table |= {
        (Phase.PREPARING, Stimulus.WAIT): Row(Act.REST, Phase.PREPARING, "it takes part as soon as it is ready"),
        (Phase.PREPARING, Stimulus.EXIT): Row(Act.LEAVE, Phase.PREPARING, "the goal is to exit"),
        (Phase.PREPARING, Stimulus.ABANDONED): Row(Act.STAY, Phase.PREPARING, "no worker lives"),
        (Phase.PREPARING, Stimulus.PREPARED): Row(Act.STAY, Phase.IDLE, "its workers can be started"),
    }
    for phase in _RESTING:
        table |= {
            (phase, Stimulus.WAIT): Row(Act.REST, Phase.IDLE, "ready for a round"),
            (phase, Stimulus.RUN): Row(Act.STAY, phase, "this round is behind it"),
            (phase, Stimulus.RUN_NEXT): Row(Act.PROBE, Phase.STARTING, "a round was formed"),
            (phase, Stimulus.STOP): Row(Act.STAY, phase, "no worker of it lives"),
            (phase, Stimulus.STOP_NEXT): Row(Act.ADOPT, Phase.STOPPED, "a round ended before it began here"),
            (phase, Stimulus.EXIT): Row(Act.LEAVE, phase, "the goal is to exit"),
            (phase, Stimulus.ABANDONED): Row(Act.STAY, phase, "no worker lives"),
        }
    for phase in WORKING:
        table |= {
            (phase, Stimulus.WAIT): Row(Act.STOP, Phase.STOPPING, "the round is over"),
            (phase, Stimulus.RUN): Row(Act.STAY, phase, "as it should be"),
            (phase, Stimulus.RUN_NEXT): Row(Act.STOP, Phase.STOPPING, "a later round was formed"),
            (phase, Stimulus.STOP): Row(Act.STOP, Phase.STOPPING, "the round is over"),
            (phase, Stimulus.STOP_NEXT): Row(Act.STOP, Phase.STOPPING, "a later round is over as well"),
            (phase, Stimulus.EXIT): Row(Act.STOP, Phase.STOPPING, "the goal is to exit"),
            (phase, Stimulus.FAILED): Row(Act.FAIL, Phase.STOPPING, "a worker failed"),
            (phase, Stimulus.SUCCEEDED): Row(Act.SUCCEED, Phase.STOPPING, "all workers succeeded"),
            (phase, Stimulus.ABANDONED): Row(Act.STOP, Phase.STOPPING, "cut off from the coordinator"),
        }
    table[Phase.STARTING, Stimulus.REACHED] = Row(Act.START, Phase.STARTING, "the master of the round can be reached")
    table[Phase.STARTING, Stimulus.STARTED] = Row(Act.STAY, Phase.RUNNING, "all workers are started")
    table |= {(Phase.STOPPING, goal): Row(Act.STAY, Phase.STOPPING, "its workers are ending") for goal in GOALS}
    table |= {
        (Phase.STOPPING, Stimulus.STARTED): Row(Act.STAY, Phase.STOPPING, "a worker failed while others started"),
        (Phase.STOPPING, Stimulus.STOP): Row(Act.STOP, Phase.STOPPING, "its workers are ending"),
        (Phase.STOPPING, Stimulus.ABANDONED): Row(Act.STOP, Phase.STOPPING, "its workers are ending"),
        (Phase.STOPPING, Stimulus.HALT_OVER): Row(
            Act.SAVE, Phase.STOPPING, "the workers keep the last step that each has done"
        ),
        (Phase.STOPPING, Stimulus.PUT_OFF_OVER): Row(
            Act.SAVE_LATE, Phase.STOPPING, "the workers may not come to a step of their own choice"
        ),
        (Phase.STOPPING, Stimulus.SAVED): Row(Act.TERMINATE, Phase.STOPPING, "what the workers keep is saved"),
        (Phase.STOPPING, Stimulus.LEAVE_OVER): Row(
            Act.TERMINATE, Phase.STOPPING, "the workers do not leave the round, so they end"
        ),
        (Phase.STOPPING, Stimulus.GRACE_OVER): Row(Act.KILL, Phase.STOPPING, "the workers did not end in time"),
        (Phase.STOPPING, Stimulus.DEAD): Row(Act.SWEEP, Phase.STOPPING, "the last worker is dead"),
        (Phase.STOPPING, Stimulus.SWEPT): Row(Act.SETTLE, None, "nothing of the round is left"),
    }
    return table


TABLE = Table[tuple[Phase, Stimulus], Row]("phases of a node")
TABLE |= _table()
