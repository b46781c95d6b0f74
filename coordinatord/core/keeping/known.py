"""What is known of the kept state of one run."""

from __future__ import annotations

from coordinatord.core.keeping.checkpoint_watch import CheckpointWatch
from coordinatord.core.keeping.copy_plans import CopyPlans
from coordinatord.core.keeping.first_states import FirstStates
from coordinatord.core.keeping.halting import Halting
from coordinatord.core.keeping.kept_index import KeptIndex, Parts
from coordinatord.core.keeping.persisting import Persisting
from coordinatord.core.keeping.protection import Protection
from coordinatord.core.keeping.resume_plan import ResumePlan
from coordinatord.core.rounds.state.durable import DurableRun
from coordinatord.core.rounds.state.run import Run
from coordinatord.protocol.kept_state import KeptStep


class KeptState:
    """What is known of the kept state of one run; nothing of it is recorded."""

    def __init__(self, run: Run) -> None:
        """Begin with what the records of the run hold."""
        self.run = run
        self.changes = 0
        """How often something has changed that nodes are sent."""
        self.index = KeptIndex(run.durable)
        self.copies = CopyPlans()
        self.disk = Persisting()
        self.protection = Protection(self.index, self.copies, self.disk, _resumed(run.durable))
        self.plan: ResumePlan | None = None
        """Which node gets which parts from which other one in the current round. None if it is to be made, or made
        anew: parts of its step have gone, or some that it lacked may have come."""
        self.failed: dict[str, str] = {}
        """Why nodes of the current round could not get what their workers resume from."""
        self.first_states = FirstStates()
        self.halting = Halting()
        self.checkpoints = CheckpointWatch()
        self.stays_until: dict[str, float] = {}
        """The time until which nodes that leave may stay to hand over what they keep; in the past if none needs it."""

    def note_parts(self, node: str, parts: Parts) -> bool:
        """Take in what a node keeps; return whether that has changed, or is the first report."""
        changes = self.index.note(node, parts)
        for change in changes or ():
            if self.plan is not None and change.at == self.plan.at and (change.lost or not change.was_whole):
                self.plan = None
            self.copies.note_change(node, change)
        return changes is not None

    def begin_round(self, at: KeptStep | None) -> None:
        """Begin a round that resumes from a step in memory, or from none."""
        self.protection.begin_round(at)
        self.copies.begin_round()
        self.first_states.begin_round()
        self.plan = None
        self.failed.clear()

    @property
    def copied(self) -> KeptStep | None:
        """The newest step that outlives the loss of all hosts of any one failure domain; None if none does."""
        steps = self.protection.steps or ()
        return max((at for at in steps if self.copies.outlives(self.index.holders(at))), default=None)

    def copy_of(self, node: str) -> tuple[str, KeptStep] | None:
        """Return the node that has a copy of what only this node keeps, and of which step; None if none has.

        A step that is no longer protected does not count: its copy may have been overwritten already.
        """
        for at in sorted(self.copies.plans.keys() & {*(self.protection.steps or ())}, reverse=True):
            plan = self.copies.plans[at]
            taker = plan.pairs.get(node, "")
            if node in plan.wanted.get(taker, {}) and plan.has_copies(taker, self.index.holders(at), only=node):
                return taker, at
        return None


def _resumed(durable: DurableRun) -> KeptStep | None:
    """Return the step that a round resumes from which has done no step yet: it is protected from the beginning."""
    resume = durable.resume
    is_protected = resume is not None and resume.disk is None and not durable.stepped and not durable.state.ended
    return resume.at if resume is not None and is_protected else None


def kept_of(run: Run) -> KeptState:
    """Return what is known of the kept state of a run; a coordinator without this wing keeps nothing."""
    return run.keeping if isinstance(run.keeping, KeptState) else KeptState(run)
