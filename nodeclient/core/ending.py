"""How the workers of a round end: in stages with deadlines. A planned end also has a deadline as a whole.

Workers first get time to save the state that they keep, then to leave the round as processes that the next round
reuses, then to exit after a signal, and are killed at last. A stage that does not apply is skipped: workers that keep
no state have nothing to save, and those that cannot be reused do not leave the round. `table` has the transitions from
stage to stage: the agent calls `enter` and `kill` for them, and `end_by` and `update_deadline` after each event.

In a planned end, workers are killed `--stop-timeout` after its beginning, or after the moment at which the node was
asked to leave, if that was earlier. What one stage does not need of this time is left for the later ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from signal import Signals

from msgspec import Struct

from coordinatord.protocol.fields import CONSEQUENCES_MAX, DURATION_S_MAX
from coordinatord.protocol.kept_state import Halt
from coordinatord.protocol.messages import Killed
from nodeclient.core import leftover_stages, notices
from nodeclient.core.agent_settings import CHECKPOINT_SHARE, STAGE_SHARE
from nodeclient.core.effects import Effect, HaltWorkers, Kill, LeaveRound, Level, Notice, SaveKept, Terminate
from nodeclient.core.events import Keeping, KeptSaved
from nodeclient.core.reuse import Reuse
from nodeclient.core.table import EndStage, Stimulus


class Terms(Struct, frozen=True):
    """The conditions on which workers end, as of now: a failure or a signal may change them. Durations in seconds."""

    alive: AbstractSet[int]
    """The local ranks of the workers that are in the round."""
    keeping: Keeping | None
    """How they keep state; None if they keep none, or have no time to save it."""
    halt: Halt | None
    """The step that all workers of the round are to keep; None without one."""
    planned: bool
    """Whether nothing has gone wrong, so that they have time to save."""
    grace_s: float
    """How long they may take to end once they get the signal; in a planned end, the time for all stages."""
    leave_within_s: float | None
    """How long they may take to leave the round for another one; None if no other round follows for them."""
    signum: int
    """The signal that asks them to end."""
    kills: bool
    """Whether this node kills those that do not end in time, as in `Settings`."""
    hung: str
    """Which worker of the round was known to hang when it was stopped, for people; empty if none was."""


class GroupEnding:
    """The end of the workers of one round. Times are in the agent's clock."""

    def __init__(self) -> None:
        self.stage: EndStage | None = None
        """The present stage; None before the first one."""
        self.until: float | None = None
        """The deadline of the stage; None if it has none."""
        self._end_by = math.inf
        """When workers that live are killed, whatever the stage; infinity if that depends on the stages only."""
        self._began_at: float | None = None
        """When the first stage began; None before."""
        self._signalled_at: float | None = None
        """When the workers were sent the signal to end, or none lived any more; None before."""
        self.signum: int = Signals.SIGTERM
        """The signal that asks the workers to end."""
        self.cut_off = False
        """Whether they end because the coordinator is out of reach, though none of them has failed."""
        self.planned = False
        """Whether the workers were given time to save. The coordinator may call the stop unplanned later, because their
        round has ended without this node or the run has failed. They keep that time all the same."""
        self.killed: Killed | None = None
        """The workers that were killed before they had saved their state, if any."""
        self._may_save = False
        """Whether the workers have time to save their state between the signal and SIGKILL."""
        self._halt: Halt | None = None
        """The step that the workers were last asked to halt after."""
        self._put_off = False
        """Whether workers put off the requested save until a step that their script chooses."""

    def deadlines(self) -> list[tuple[float, Stimulus]]:
        """Return each deadline with its stimulus: that of the stage, and that of a save that workers put off."""
        if self.until is None:
            return []
        deadlines = [(self.until, Stimulus.STAGE_EXPIRED)]
        if self._put_off and self._signalled_at is not None:
            at = self._signalled_at + STAGE_SHARE * (self.until - self._signalled_at)
            deadlines.insert(0, (at, Stimulus.CHOICE_EXPIRED))  # of two at the same time, the first one counts
        return deadlines

    def enter(self, stage: EndStage, terms: Terms, reuse: Reuse, now: float) -> list[Effect]:
        """Enter a stage, or the first one after it that applies; return its effects.

        A further call for the present stage may shorten it, never lengthen it.
        """
        if self._began_at is None:
            self._began_at, self.signum = now, terms.signum
        self.planned |= terms.planned
        if terms.planned:
            self.end_by(self._began_at + terms.grace_s, now)
        entries = (  # in the order of `EndStage`
            (EndStage.HALTING, self._halt_workers),
            (EndStage.SAVING, self._save),
            (EndStage.LEAVING_ROUND, self._leave_round),
        )
        for candidate, begin in entries[[*EndStage].index(stage) :]:
            effects = begin(terms, reuse, now)
            if effects is not None:
                self.stage = candidate
                return effects
        effects = self._terminate(terms, reuse, now)
        self.stage = EndStage.SIGNALLED
        return effects

    # Each of these returns None if its stage does not apply, and an empty list if there is nothing to do but wait.

    def _halt_workers(self, terms: Terms, _: Reuse, now: float) -> list[Effect] | None:
        if terms.keeping is None or terms.halt is None:
            return None
        if self.stage is not EndStage.HALTING:
            share = CHECKPOINT_SHARE if terms.keeping.writes_checkpoints else STAGE_SHARE
            self.until = min(now + terms.grace_s, self._share_at(now, share))
        elif terms.halt == self._halt:
            return []
        self._halt = terms.halt
        return [HaltWorkers(terms.halt.step)]

    def _save(self, terms: Terms, _: Reuse, now: float) -> list[Effect] | None:
        if terms.keeping is None:
            return None
        if self.stage is EndStage.SAVING:
            return []
        self.until = min(now + terms.keeping.save_within_s, self._share_at(now))
        order = SaveKept(terms.planned or self.stage is EndStage.HALTING)  # a halt is ordered in planned ends only
        if self.stage is not EndStage.HALTING or terms.halt is None:
            return [order]
        writes = terms.keeping.writes_checkpoints
        text = notices.step_not_common(terms.halt.step, terms.hung, writes_checkpoints=writes)
        return [Notice(Level.WARNING, text, "step_not_common"), order]

    def _leave_round(self, terms: Terms, reuse: Reuse, now: float) -> list[Effect] | None:
        if terms.leave_within_s is None:
            return None
        if self.stage is EndStage.LEAVING_ROUND:
            return [] if self.until is not None and now < self.until else None
        if not reuse.all_may_leave(terms.alive):
            return None
        self.until = self._with_aborts(reuse, min(now + terms.leave_within_s, self._share_at(now)))
        return [LeaveRound(terms.planned)]

    def _terminate(self, terms: Terms, reuse: Reuse, now: float) -> list[Effect]:
        late = self.stage is EndStage.LEAVING_ROUND and self.until is not None and now >= self.until
        begins = self.stage is not EndStage.SIGNALLED
        no_round_follows = self.stage is EndStage.LEAVING_ROUND and not late  # this has cut the stage short
        if begins and not no_round_follows:
            reuse.record_obstacles(terms.alive, late=late)
        may_save = terms.planned and terms.kills
        grace_s = 0.0 if late and not may_save else terms.grace_s  # they have used their time to leave the round
        until = min(now + grace_s, self._end_by)
        if begins:
            self._signalled_at, self.signum = now, terms.signum
        if begins or self.until is None or until < self.until:  # a further call may only shorten the stage
            self.until, self._may_save = until, may_save
        return [Terminate(terms.signum, terms.planned)] if begins else []

    def end_by(self, at: float, now: float) -> None:
        """Have the workers end by this time, unless they have to end earlier; this may shorten the present stage.

        It never shortens `HALTING`: a planned end gets its limit before that stage begins, and a later request to leave
        has a later limit.
        """
        if at >= self._end_by:
            return
        self._end_by = at
        if self.until is not None:
            self.until = min(self.until, self._end_by if self.stage is EndStage.SIGNALLED else self._share_at(now))

    def _share_at(self, now: float, share: float = STAGE_SHARE) -> float:
        """Return the end of a stage that begins now, with this share of the time left; infinity without a limit."""
        return now + share * (self._end_by - now)

    def _with_aborts(self, reuse: Reuse, until: float) -> float:
        """Return the end of the stage in which workers leave the round: `until`, or later if some abort NCCL.

        Then the stage lasts until the last of these has to be done, but takes no more than `STAGE_SHARE` of the time
        that was left when that worker began to abort.
        """
        return max(until, min(reuse.aborts_until, self._share_at(reuse.aborts_since)))

    def update_deadline(self, alive: AbstractSet[int], reuse: Reuse, now: float) -> None:
        """Give workers that leave the round the time to abort NCCL, but end the wait once none can leave."""
        if self.stage is EndStage.LEAVING_ROUND and self.until is not None:
            waits = reuse.any_may_leave(alive)
            self.until = self._with_aborts(reuse, self.until) if waits else min(self.until, now)

    def kill(self, ranks: list[int], left: Sequence[str], grace_s: float, hung: str) -> list[Effect]:
        """Kill all workers; return the effects, with notices if the workers had time to save.

        `ranks` are those of the workers that have not exited, and that had `grace_s` to end. `left` names what workers
        that have exited left running, and `hung` is that of `Terms`.
        """
        kill_at, self.until, self.stage = self.until, None, EndStage.KILLED
        effects: list[Effect] = [Kill()]
        if not self._may_save or kill_at is None or self._signalled_at is None:
            return effects
        if ranks:
            self.killed = Killed(tuple(ranks[:CONSEQUENCES_MAX]), len(ranks), min(grace_s, DURATION_S_MAX))
            text = notices.killed(self.killed, self.signum, max(0.0, kill_at - self._signalled_at), hung)
            effects.append(Notice(Level.WARNING, text, "workers_killed"))
        if left:
            effects.append(Notice(Level.WARNING, leftover_stages.killed(left), "remark"))
        return effects

    def begin_sweep(self, now: float) -> float:
        """Enter the last stage, since no worker lives; return when the end began: now, if no stage came before."""
        self.stage, self.until = EndStage.SWEEPING, None
        if self._began_at is None:
            self._began_at = now
        if self._signalled_at is None:
            self._signalled_at = now
        return self._began_at

    def had_begun(self, at: float) -> bool:
        """Whether the end had begun by this time: an exit from then on may be a consequence of it."""
        return self._began_at is not None and at >= self._began_at

    def had_signalled(self, at: float) -> bool:
        """Whether the workers had been sent the signal to end by this time."""
        return self._signalled_at is not None and at >= self._signalled_at

    def record_saved(self, event: KeptSaved) -> bool:
        """Record the answer to a request to save; return whether the stage waits for it."""
        self._put_off |= event.put_off
        return self.stage in {EndStage.HALTING, EndStage.SAVING}

    def save_late(self) -> list[Effect]:
        """Return the second request to save, for workers that put off the first one. There is no third."""
        self._put_off = False
        return [SaveKept(planned=True, late=True)]
