"""The interfaces by which a run calls its three wings, which are parts of the coordinator that it could do without.

* The keeping wing is for *kept state*: training state that outlives workers, in the memory of their nodes, with copies
  on other nodes, or on a disk. The next round *resumes* from a step of it.
* The watching wing looks at where workers are in their code, to find one that all others wait for.
* The judging wing decides which host is at fault when rounds fail, and has suspect nodes tested.

The kernel decides whether a round is formed, stopped and ended. A wing changes only its own state, answers questions,
and says when to call it. The base classes are wings that do nothing, with which a run works as well. The wings
themselves are in `coordinatord/core/keeping`, `watching` and `judging`.

`run` is a `Run` and `cluster` a `Cluster`. Their modules import this one, so here they are `Any`.
"""

# ruff: noqa: ARG002 - a wing that does nothing needs no argument

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypedDict

from msgspec import Struct

from coordinatord.core.rounds.effects import Look
from coordinatord.core.rounds.events import Compared, Looked
from coordinatord.core.rounds.state.member import Member
from coordinatord.core.rounds.values.admin_requests import AdminResult
from coordinatord.core.rounds.values.due_times import NOW
from coordinatord.core.rounds.values.records import HostJudged, NodeDrained, Record, ReplicasDiverged
from coordinatord.core.rounds.values.resume_point import ResumePoint, SpoiledStep
from coordinatord.core.rounds.values.root_cause import WorkerFailure
from coordinatord.protocol.kept_state import Halt, KeptCopy, KeptStep, PersistOrder, Resume
from coordinatord.protocol.messages import Goal, Report
from coordinatord.protocol.pair_messages import PairOrder


class Wait(Struct, frozen=True):
    """How long a node or run waits before its end, because memory holds training state that is nowhere else."""

    until: float | None = NOW
    """When the wait ends: `NOW` if there is none, and None if it goes on, and its end is not known yet."""
    why: str = ""
    """Why it waits, as a clause."""
    last_step: str = ""
    """Where the newest step is, or which step is lost, as the end of a sentence."""


class Waits(Struct, frozen=True):
    """All waits of a run and its nodes, as they are until the run or its nodes change."""

    run: Wait = Wait()
    """The wait of the run, if it is to end. Its `last_step` is left out: see `KeepingWing.last_step`."""
    disk_until: float | None = None
    """The latest time at which a run that is to end stops waiting for the disk. The wait of `run` may end earlier. None
    if the run is not to end, or if that time is not known."""
    nodes: Mapping[str, Wait] = {}
    """The wait of each node that hands over its state before it leaves."""


class KeptAtOnce(TypedDict):
    """The fields of `Desired` about kept state that are sent at once: workers, or nodes that leave, wait for them."""

    halt: Halt | None
    persist: PersistOrder | None
    alike: bool | None


class KeptDesired(TypedDict):
    """The other fields of `Desired` about kept state."""

    resume: Resume | None
    protected: tuple[KeptStep, ...] | None
    copies: tuple[KeptCopy, ...]


class KeepingWing:
    """The wing for training state that outlives workers; this one keeps none.

    A report of a node comes first to `record_progress` and `report`, and a record to `follow`. Then `before_table` is
    called, and the table of transitions asks the queries and waits, and has the wing `act`. When it has come to rest,
    nodes are sent `desired`.
    """

    changes: int = 0
    """Counts the changes that may change the message to a running node; see `Run.revision`."""
    obstacle: str = ""
    """Why no round is to be formed now, as it might lose all training; else empty. See `before_table`."""
    waits: Waits = Waits()
    """Who waits before an end, and for what. See `before_table`."""

    def __init__(self, run: Any) -> None:
        """Begin with a run; nothing is known to be kept yet."""

    # Inputs

    def report(self, member: Member) -> bool:
        """Record what a member has just reported; return whether all nodes have to be notified."""
        return False

    def record_progress(self, member: Member) -> None:
        """Record how far a member is with its write to a disk; called for each of its reports, before `report`."""

    @property
    def awaits_report(self) -> bool:
        """Whether to call `report` even if a node repeats its last report."""
        return False

    def remove(self, member: Member) -> None:
        """Remove a node that is no longer a member."""

    def follow(self, record: Record) -> None:
        """Bring the wing up to date with a record, after the run: it reads what the record has changed there."""

    def after_restart(self, now: float) -> None:
        """Go on after a restart of the coordinator."""

    # Queries

    def resume_point(self, nodes: Sequence[Member], before: KeptStep | None = None) -> ResumePoint | None:
        """Return the step that a round of these nodes resumes from; None if it begins without kept state.

        With `before`, it is a step older than that, which nothing overwrites or deletes while workers go on.
        """
        return None

    def bad_steps(self, point: ResumePoint | None) -> tuple[tuple[SpoiledStep, ...], KeptStep | None]:
        """Return the spoiled steps, and the first step in which ranks may differ, if a round resumes from `point`."""
        return (), None

    def resume_text(self, nodes: Sequence[Member]) -> str:
        """Say what a round of these nodes resumes from, as the end of a sentence; empty if nothing has been kept."""
        return ""

    @property
    def unstepped(self) -> str:
        """Which ranks train and never report a step, so that no step is kept: the end of a sentence, or empty."""
        return ""

    def staying_step(self, since: KeptStep) -> str:
        """Say which step stays on the disk though ranks may differ from `since` on, as the end of a sentence."""
        return ""

    @property
    def reached(self) -> int | None:
        """The newest step of the current or last round that is kept whole; None without one."""
        return None

    @property
    def restore_problem(self) -> str:
        """Why nodes of the round cannot get what it resumes from; empty if they can."""
        return ""

    @property
    def checkpoint_at(self) -> float | None:
        """When the script's last checkpoint became known, in this round or before; `LONG_AGO` without any.

        None if workers lose no step when they are asked to end, so that nobody has to wait for a checkpoint.
        """
        return None

    @property
    def disk_step(self) -> int | None:
        """The newest step on the disk, from which the job can go on; None if none is known."""
        return None

    @property
    def has_disk(self) -> bool:
        """Whether nodes write kept state to a disk before they leave."""
        return False

    # Waits

    def may_be_needed(self, member: Member) -> bool:
        """Whether others may need the kept state of a node whose workers have ended before theirs."""
        return False

    def begin_handover(self, members: Sequence[Member], now: float) -> Collection[str]:
        """Begin the wait of each of these members, which are to leave, that cannot leave yet; return their nodes."""
        return ()

    def leaves_once(self, member: Member) -> str:
        """Say what a node that hands over waits for, to complete "it leaves as soon as ..."."""
        return ""

    def wait_at_timeout(self, member: Member) -> Wait:
        """Return the wait of a node whose `--join-timeout` has expired."""
        return Wait()

    def end_unwritten(self, why: str, now: float) -> None:
        """Have a run that waits for the disk end now. `why` says who wants that; `waits.disk_until` has to be set."""

    @property
    def last_step(self) -> str:
        """Where the newest step of a run that ends is, or why it is lost, as the end of a sentence."""
        return ""

    def before_end(self) -> str:
        """Say what happens before a run without a round ends, as the beginning of a sentence."""
        return ""

    @property
    def lost_step(self) -> str:
        """The step that is lost as the run ends, and why, as the end of a sentence; empty if none is."""
        return ""

    # Its own actions

    def before_table(self, now: float) -> None:
        """Bring up to date what follows from the members, `obstacle` and `waits`; called before the table is asked."""

    def next_at(self) -> float | None:
        """Return when to call `act`; None if nothing is due."""
        return None

    def act(self, now: float) -> Iterable[Member]:
        """Do what is due; return the nodes that may have to be sent something."""
        return ()

    def end_round(self, now: float) -> Iterable[Member]:
        """Act at the end of a round, before nodes leave; return as `act` does."""
        return ()

    # Outputs to nodes

    def choose_sources(self) -> None:
        """Choose from which nodes each node gets the state that it resumes from; called when a round was formed."""

    def desired_at_once(self, member: Member, goal: Goal) -> KeptAtOnce:
        """Return the fields that a node is sent at once, with its goal."""
        return KeptAtOnce(halt=None, persist=None, alike=None)

    def desired(self, member: Member, goal: Goal) -> KeptDesired:
        """Return the other fields to send a node with its goal."""
        return KeptDesired(resume=None, protected=None, copies=())

    def halt_sentence(self) -> str:
        """Say after which step all workers of a stopping round end; empty if there is none."""
        return ""


class WatchingWing:
    """The wing for workers that hold up the others, and for ranks with other state than the rest; this one sees none.

    A *hang* is proved by two looks that show all others waiting for a worker that will not come. A *laggard* comes, and
    always last.
    """

    def __init__(self, run: Any) -> None:
        """Begin with a run whose workers were not looked at."""

    changes: int = 0
    """Counts the changes of the remark that no record makes; see `Run.revision`."""
    rests_at: float | None = None
    """When to ask workers for their arrivals in collectives, apart from the usual requests; None if those are enough.

    Workers that report no steps count as at rest, and may hang, once they have entered no collective for much longer
    than before. If their present pause is longer than any before, this is when they would come to count as at rest.
    """
    notice: str = ""
    """What the last looks have found, to show while the round goes on; empty if they found nothing."""

    @property
    def remark(self) -> str:
        """A warning to the users of nodes with running workers; empty if there is none."""
        return ""

    @property
    def unseen(self) -> str:
        """Why a hang would not be noticed so far; empty if one would, or it is not known."""
        return ""

    def follow(self, record: Record) -> None:
        """Bring the wing up to date with a record, before the run is: earlier looks may no longer count."""

    def record_answers(self, event: Looked | Compared, now: float) -> bool:
        """Record the workers' answers; return whether the run has to be advanced."""
        return False

    def next_at(self) -> float | None:
        """Return when to call `act`; None if nothing is due."""
        return None

    def act(self, now: float) -> Record | Look | None:
        """Return a record of the result of the looks, or a look to begin; None if a node cannot be asked."""
        return None

    @property
    def hang(self) -> WorkerFailure | None:
        """The hang that ends the round, as a failure of the worker that all others wait for; else None."""
        return None

    @property
    def stopped(self) -> str:
        """Says that a signal has stopped all workers of the round, by the last look; empty if it has not."""
        return ""

    @property
    def suspect(self) -> WorkerFailure | None:
        """The worker that hangs by the last looks, as a failure, whether or not it ends the round; None if none does.

        The failure is dated to the time from which the others waited for it.
        """
        return None

    @property
    def hung_before(self) -> str:
        """How many earlier rounds hung at the same place as this one, as the end of a sentence; empty if none did."""
        return ""

    def record_digests(self, member: Member) -> None:
        """Record the digests in a member's last report; called for each report about the present round."""

    @property
    def agreed(self) -> int | None:
        """The last step of the round after which all ranks had the same state; None if none is known."""
        return None

    @property
    def divergence(self) -> ReplicasDiverged | None:
        """The record that ranks of the round have different states; None if none have, or it is recorded."""
        return None

    def divergence_failure(self, now: float) -> WorkerFailure | None:
        """Return the divergence that is on record of the round, as a failure of a rank; None if there is none."""
        return None

    def late(self) -> tuple[str, str]:
        """Return the node that was late in the current or last round, and how late; else two empty texts."""
        return "", ""

    def laggard_drain(self) -> NodeDrained | None:
        """Return the record that drains a laggard's node, if the job wants that and can do without it; else None."""
        return None


class JudgingWing:
    """The wing that charges, tests and quarantines hosts; this one judges none.

    Methods yield records, and the kernel applies each before it takes the next. They get the cluster because a host may
    have nodes of several jobs.
    """

    def __init__(self, run: Any) -> None:
        """Begin with a run of which no node was tested."""

    @property
    def orders(self) -> Mapping[str, PairOrder]:
        """The tests that nodes are asked to run, by node."""
        return {}

    @property
    def delays_until(self) -> float:
        """When the next round no longer waits for tests; `NOW` if it waits for none."""
        return NOW

    def obstacle(self) -> str:
        """Say why the next round waits for tests; empty if it does not."""
        return ""

    def judge(self, report: Report | None, cluster: Any, now: float) -> Iterable[HostJudged]:
        """Judge the host that ended the round; without a report, no worker failed by itself."""
        return ()

    def check(self, member: Member, cluster: Any, now: float) -> Iterable[HostJudged]:
        """Judge the host of a member by its last health check, unless it was judged by that already."""
        return ()

    def report(self, member: Member) -> bool:
        """Record the result of a test that a member has just reported; return whether to call `check`."""
        return False

    def remove(self, member: Member) -> None:
        """Remove a node that is no longer a member."""

    def postpone(self, by: float) -> None:
        """Put off all deadlines by so many seconds, as `Run.postpone` does."""

    def next_at(self) -> float | None:
        """Return when to call `act`; None if nothing is due."""
        return None

    def act(self, cluster: Any, now: float) -> Iterable[Record]:
        """Do what is due; any member may have to be sent something."""
        return ()

    def preflight_answer(self) -> tuple[AdminResult, str]:
        """Return the answer to an operator who wants nodes tested: whether that can begin now, and of which nodes."""
        return AdminResult.REFUSED, "this coordinator tests no nodes"

    def begin_preflight(self, why: str, now: float) -> Iterable[Record]:
        """Have nodes tested, as `preflight_answer` says."""
        return ()

    def stop_tests(self, why: str, hosts: Collection[str] | None = None) -> Record | None:
        """End all tests, or with `hosts` only if one is on these; return the record of that, None if none has ended."""
        return None
