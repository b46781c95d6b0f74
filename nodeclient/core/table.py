"""All transitions of a node: for each phase and stimulus the act, the next phase, and the reason.

A stimulus is the coordinator's goal, or something that happened here. The agent looks its goal up after each event, and
again whenever that changes the phase. So a goal that cannot be pursued yet, such as a next round while the old workers
end, is pursued later.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from coordinatord.protocol.errors import CompleteMap
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
    SAVED = "the workers have saved what they keep"
    STAGE_EXPIRED = "the time of this stage is over"
    CHOICE_EXPIRED = "half of the time to end is over, and the workers are not at the step that their script chose"
    ABANDONED = "the coordinator is out of reach for too long, or the node leaves without it"


GOALS = (Stimulus.WAIT, Stimulus.RUN, Stimulus.RUN_NEXT, Stimulus.STOP, Stimulus.STOP_NEXT, Stimulus.EXIT)


def stimulus_of(desired: Desired, run: str, round_number: int) -> Stimulus:
    """Return the stimulus of a goal for a node that is in this round of this run."""
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


class EndStage(StrEnum):
    """The stages in which the workers of a round end, in order. The phase is `stopping` in all of them."""

    HALTING = "halting"
    """They go on to the step that all workers of the round are to keep, and save it."""
    SAVING = "saving"
    """Each saves the last step that it has done."""
    LEAVING_ROUND = "leaving round"
    """They leave the round, for another one, as the same processes. This stage is over at its deadline, which
    `GroupEnding.update_deadline` moves to now once none can leave any more, or if no other round follows for them.
    While the goal is to stop, the agent also checks this after each event (`Act.STOP`)."""
    SIGNALLED = "signalled"
    """They were sent the signal to end."""
    KILLED = "killed"
    SWEEPING = "sweeping"
    """No worker lives. The node ends the processes that they left behind."""


ALIVE = tuple(stage for stage in EndStage if stage is not EndStage.SWEEPING)
"""The stages in which some worker lives."""

Place = Phase | EndStage
"""Where a node is: in a phase, or in a stage of the phase `stopping`."""


class Act(StrEnum):
    """What the agent does in a transition."""

    NONE = "none"
    """Do nothing."""
    PROBE = "probe"
    """Find out whether the master can be reached, before any worker is started."""
    START = "start"
    STOP = "stop"
    """Bring the workers to this stage of their end, or to the first one after it that applies to them."""
    SAVE_LATE = "save late"
    """Have each worker save the last step that it has done. A script that calls `should_stop` goes on to a step of its
    own choice after the signal to end, and may not come to it."""
    KILL = "kill"
    SWEEP = "sweep"
    SETTLE = "settle"
    """Enter the phase that follows from how the workers ended."""
    ENTER = "enter"
    """Enter the round of the goal without starting workers."""
    LEAVE = "leave"


class Row(Struct, frozen=True):
    """One transition."""

    act: Act
    to: Place | None
    """The next phase or stage; None if it depends on how the workers ended."""
    reason: str


_RESTING = (Phase.IDLE, Phase.STOPPED, Phase.SUCCEEDED, Phase.FAILED)
"""Phases in which a node has no workers, and can begin a round."""

WORKING = (Phase.STARTING, Phase.RUNNING)
"""Phases in which the workers have not been asked to end."""


def _table() -> dict[tuple[Place, Stimulus], Row]:
    """Make the table. Rows for many stimuli or stages come first, and later rows replace some of them."""
    table: dict[tuple[Place, Stimulus], Row] = {}
    table |= {(Phase.PREPARING, goal): Row(Act.NONE, Phase.PREPARING, "it cannot have workers yet") for goal in GOALS}
    table |= {
        (Phase.PREPARING, Stimulus.WAIT): Row(Act.ENTER, Phase.PREPARING, "it takes part as soon as it is ready"),
        (Phase.PREPARING, Stimulus.EXIT): Row(Act.LEAVE, Phase.PREPARING, "the goal is to exit"),
        (Phase.PREPARING, Stimulus.ABANDONED): Row(Act.NONE, Phase.PREPARING, "no worker lives"),
        (Phase.PREPARING, Stimulus.PREPARED): Row(Act.NONE, Phase.IDLE, "its workers can be started"),
    }
    for phase in _RESTING:
        table |= {
            (phase, Stimulus.WAIT): Row(Act.ENTER, Phase.IDLE, "ready for a round"),
            (phase, Stimulus.RUN): Row(Act.NONE, phase, "this round is behind it"),
            (phase, Stimulus.RUN_NEXT): Row(Act.PROBE, Phase.STARTING, "a round was formed"),
            (phase, Stimulus.STOP): Row(Act.NONE, phase, "no worker of it lives"),
            (phase, Stimulus.STOP_NEXT): Row(Act.ENTER, Phase.STOPPED, "a round ended before it began here"),
            (phase, Stimulus.EXIT): Row(Act.LEAVE, phase, "the goal is to exit"),
            (phase, Stimulus.ABANDONED): Row(Act.NONE, phase, "no worker lives"),
        }
    for phase in WORKING:
        table |= {
            (phase, Stimulus.WAIT): Row(Act.STOP, EndStage.HALTING, "the round is over"),
            (phase, Stimulus.RUN): Row(Act.NONE, phase, "as it should be"),
            (phase, Stimulus.RUN_NEXT): Row(Act.STOP, EndStage.HALTING, "a later round was formed"),
            (phase, Stimulus.STOP): Row(Act.STOP, EndStage.HALTING, "the round is over"),
            (phase, Stimulus.STOP_NEXT): Row(Act.STOP, EndStage.HALTING, "a later round is over as well"),
            (phase, Stimulus.EXIT): Row(Act.STOP, EndStage.HALTING, "the goal is to exit"),
            (phase, Stimulus.FAILED): Row(Act.STOP, EndStage.HALTING, "a worker failed"),
            (phase, Stimulus.SUCCEEDED): Row(Act.SWEEP, EndStage.SWEEPING, "all workers succeeded"),
            (phase, Stimulus.ABANDONED): Row(Act.STOP, EndStage.HALTING, "it goes on without the coordinator"),
        }
    table[Phase.STARTING, Stimulus.REACHED] = Row(Act.START, Phase.STARTING, "the master of the round can be reached")
    table[Phase.STARTING, Stimulus.STARTED] = Row(Act.NONE, Phase.RUNNING, "all workers are started")
    for stage in EndStage:
        table |= {(stage, goal): Row(Act.NONE, stage, "its workers are ending") for goal in GOALS}
        table |= {
            (stage, Stimulus.STARTED): Row(Act.NONE, stage, "its workers began to end while some still started"),
            (stage, Stimulus.ABANDONED): Row(Act.NONE, stage, "its workers are ending"),
        }
    for stage in ALIVE:
        table[stage, Stimulus.DEAD] = Row(Act.SWEEP, EndStage.SWEEPING, "the last worker is dead")
        if stage is not EndStage.KILLED:
            less = "its workers are ending, and may have less time now"
            table[stage, Stimulus.ABANDONED] = Row(Act.STOP, stage, less)
    named = Row(Act.STOP, EndStage.HALTING, "the step that all keep may have been named, or given up")
    table |= {(EndStage.HALTING, goal): named for goal in GOALS}
    saved = Row(Act.STOP, EndStage.LEAVING_ROUND, "what the workers keep is saved")
    table |= {
        (EndStage.HALTING, Stimulus.STAGE_EXPIRED): Row(
            Act.STOP, EndStage.SAVING, "the workers did not come to a step that all keep"
        ),
        (EndStage.HALTING, Stimulus.SAVED): saved,
        (EndStage.SAVING, Stimulus.STAGE_EXPIRED): Row(
            Act.STOP, EndStage.LEAVING_ROUND, "the workers had the time to save"
        ),
        (EndStage.SAVING, Stimulus.SAVED): saved,
        (EndStage.LEAVING_ROUND, Stimulus.STOP): Row(
            Act.STOP, EndStage.LEAVING_ROUND, "its workers may not be able to leave the round any more"
        ),
        (EndStage.LEAVING_ROUND, Stimulus.STAGE_EXPIRED): Row(
            Act.STOP, EndStage.SIGNALLED, "the workers do not leave the round, so they end"
        ),
        (EndStage.SIGNALLED, Stimulus.CHOICE_EXPIRED): Row(
            Act.SAVE_LATE, EndStage.SIGNALLED, "the workers may not come to the step that their script chose"
        ),
        (EndStage.SIGNALLED, Stimulus.STAGE_EXPIRED): Row(Act.KILL, EndStage.KILLED, "the workers did not end in time"),
        (EndStage.SWEEPING, Stimulus.SWEPT): Row(Act.SETTLE, None, "nothing of the round is left"),
    }
    return table


TABLE = CompleteMap[tuple[Place, Stimulus], Row]("phases of a node")
"""The transitions. A missing one is a bug: such a stimulus cannot come there. In a stage, FAILED and SUCCEEDED cannot,
since `WorkerGroup` names only DEAD once workers are ending, and REACHED cannot, since the agent ignores probes then.
SAVED comes only in the two stages that wait for it (`GroupEnding.record_saved`), and STAGE_EXPIRED and CHOICE_EXPIRED
only in those with such a deadline (`GroupEnding.deadlines`). Before the first stage, the last worker's end is FAILED or
SUCCEEDED, and not DEAD."""
TABLE |= _table()
