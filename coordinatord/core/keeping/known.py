"""All that the coordinator knows of one run's kept state, as one object that the functions of this wing take.

Most attributes have a module of their own. Here is what follows from several of them.
"""

from __future__ import annotations

from coordinatord.core.keeping.checkpoint_watch import CheckpointWatch
from coordinatord.core.keeping.copy_plan import CopyPlans
from coordinatord.core.keeping.halting import Halting
from coordinatord.core.keeping.kept_index import KeptIndex, Parts
from coordinatord.core.keeping.protection import Protection
from coordinatord.core.keeping.resume_plan import ResumePlan
from coordinatord.core.keeping.write_progress import Persisting
from coordinatord.core.rounds.state.run import Run
from coordinatord.protocol.kept_state import KeptStep


class FirstStates:
    """Finds out whether all ranks of a round have the same state, so that one rank's copy of it stands for all.

    Sharded tensors show their sharding. Other tensors do not show whether all ranks have the same (DDP) or each its
    own, as in the stages of a pipeline. So each worker sends a digest of its state after the first step of a round that
    began from nothing. Nodes tell their workers the answer, `alike`; until then, workers save no weights.
    """

    def __init__(self) -> None:
        self.alike: bool | None = None
        """Whether all ranks had the same state; None before that is known."""
        self._of_node: dict[str, tuple[int, ...]] = {}

    def record(self, node: str, digests: tuple[int, ...], nodes: int) -> bool:
        """Record a node's digests in a round of so many `nodes`; return whether that settles `alike`.

        Once all of its workers have a digest, a node reports one if all are equal, else two of them.
        """
        if not digests or self.alike is not None:
            return False
        self._of_node[node] = digests
        if len({digest for of_node in self._of_node.values() for digest in of_node}) > 1:
            self.alike = False
        elif len(self._of_node) == nodes:
            self.alike = True
        return self.alike is not None


class KeptState:
    """The knowledge of this wing about one run. Nothing of it is recorded: after a restart, nodes report it again."""

    def __init__(self, run: Run) -> None:
        """Begin with what the records of the run say: the step that the round resumed from."""
        self.run = run
        self.changes = 0
        """A counter that `holdings` and `RunKeeping` raise at each change that affects what nodes are sent, so that
        unchanged messages need not be built again."""
        self.index = KeptIndex(run.durable)
        self.copies = CopyPlans()
        self.disk = Persisting()
        self.protection = Protection(self.index, self.copies, self.disk, run.durable)
        self.plan: ResumePlan | None = None
        """The plan by which nodes of the current round fetch their parts. None if it has to be made anew, because a
        holder has lost parts, or holders of missing parts may have reported."""
        self.failed: dict[str, str] = {}
        """Why nodes of the current round could not fetch the state that their workers resume from, by node."""
        self.first_states = FirstStates()
        self.halting = Halting()
        self.checkpoints = CheckpointWatch()
        self.hand_over_by: dict[str, float] = {}
        """The time until which each departing node may stay to hand over its state."""

    def record_parts(self, node: str, parts: Parts) -> bool:
        """Record the parts that a node keeps; return whether they have changed, or are its first report."""
        changes = self.index.record(node, parts)
        for change in changes or ():
            if self.plan is not None and change.at == self.plan.at and (change.lost or not change.was_whole):
                self.plan = None
            self.copies.drop_outdated(node, change)
        return changes is not None

    def begin_round(self, at: KeptStep | None) -> None:
        """Begin a round that resumes from a step in memory, or from none.

        `RunKeeping` begins `checkpoints` and `halting` at their own times. `disk` outlasts rounds.
        """
        self.protection.begin_round(at)
        self.copies.begin_round()
        self.first_states = FirstStates()
        self.plan = None
        self.failed.clear()

    def steps_redone_from(self, step: int) -> int | None:
        """Return how many steps a round does again if it resumes from `step`; None if that is not known.

        The last round may have come further than the records say. After a restart of the coordinator, only the nodes of
        that round know. If they are gone too, the number stays unknown until a round makes new steps.
        """
        durable, furthest = self.run.durable, self.run.furthest
        # The last round has made steps, or it was not known how many it would do again.
        may_be_further = durable.stepped or (durable.resume is not None and durable.resume.redone is None)
        is_heard = self.run.furthest_here is not None  # in this life of the daemon; else only the records count
        if furthest is None or (may_be_further and not is_heard):
            return None
        return max(0, furthest - step)

    @property
    def may_redo_more(self) -> bool:
        """Whether a round may redo more steps than `steps_redone_from` says: the last round has lost all of its nodes.

        Their workers may have done steps that are not reported. It stays true until a round makes new steps.
        """
        durable = self.run.durable
        has_lost_all = durable.order.keys() <= {loss.node for loss in durable.losses}
        before = durable.resume is not None and durable.resume.redone_at_least
        return has_lost_all or (before and not durable.stepped)

    @property
    def copied(self) -> KeptStep | None:
        """The newest step that survives the loss of all hosts of any one failure domain; None if none does."""
        steps = self.protection.steps or ()
        return max((at for at in steps if self.copies.survives_any_loss(self.index.holders(at))), default=None)

    def copy_of(self, node: str) -> tuple[str, KeptStep] | None:
        """Return the node with the newest copy of a node's state, and the step of the copy; None if there is no copy.

        A step that is no longer protected does not count: its copy may have been overwritten already.
        """
        for at in sorted(self.copies.plans.keys() & {*(self.protection.steps or ())}, reverse=True):
            plan = self.copies.plans[at]
            taker = plan.buddy_of.get(node, "")
            # A buddy takes no copy from a node whose shards two domains have already.
            if node in plan.wanted.get(taker, {}) and plan.has_copies(taker, self.index.holders(at), only=node):
                return taker, at
        return None


def kept_of(run: Run) -> KeptState:
    """Return the kept state of a run, or an empty one where the run has no such wing, as in tests of the kernel."""
    return run.keeping if isinstance(run.keeping, KeptState) else KeptState(run)
