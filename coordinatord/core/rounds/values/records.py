"""The kinds of records: the facts about runs that outlive the daemon.

A record is made when the state of a run changes, or something happens that must not be forgotten. So records are few:
most reports of nodes make none. Each has a `reason`, which is also its log line, and what people see. The store writes
them, and `transitions/apply` applies them: as they are made, and again after a restart. Numbers are absolute (the
restarts used so far, not "one more"), so that old rounds can be deleted one by one.

A field that came later than its record has a default, with which old records are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Annotated, ClassVar

from msgspec import Meta, Struct

from coordinatord.core.rounds.values.judged_host import CHARGES_MAX, Charge, Judge
from coordinatord.core.rounds.values.ranks import Ranks
from coordinatord.core.rounds.values.resume_point import SPOILED_MAX, ResumePoint, SpoiledStep
from coordinatord.core.rounds.values.time_ledger import SPAN_MAX, Span, Spent
from coordinatord.protocol.fields import (
    CONSEQUENCES_MAX,
    NAME_MAX,
    RANKS_MAX,
    WINDOW_RESTARTS_MAX,
    Address,
    Count,
    Counter,
    Name,
    Port,
    Sentence,
    Step,
)
from coordinatord.protocol.kept_state import KeptStep
from coordinatord.protocol.messages import Failure, JobSpec, NodeOffer, Outcome, Report, WorkerStarts
from coordinatord.protocol.schema import Strict, printable

REASON_MAX = 4_096
"""The most characters of a reason: the longest one names eight nodes, quotes a worker's message, and names
consequences."""

Incarnation = Annotated[int, Meta(ge=0, le=2**63 - 1)]
"""The number of a nodeclient process; a younger process of the same node has a higher one."""
Seen = Annotated[str, printable(253, least=1)]
"""An address as a connection showed it."""
AGE_MAX = SPAN_MAX
Age = Annotated[float, Meta(ge=0, le=AGE_MAX)]
"""Seconds before the record was made; `AGE_MAX` if that is not known."""

TokenName = Annotated[str, printable(128)]
"""The name of an access token, which is not the secret."""

Condition = Annotated[str, printable(64)]
"""The name of the condition whose sentence is the reason; empty in old records."""


class Record(Strict, frozen=True):
    """One fact in the history of a run."""

    KIND: ClassVar[str]
    """The name of this kind of record in databases, over HTTP and in logs: that of its class."""

    job: Name
    run: Name
    reason: Annotated[str, printable(REASON_MAX, least=1)]

    def __init_subclass__(cls) -> None:
        """Name the kind."""
        cls.KIND = cls.__name__

    @classmethod
    @cache
    def kind_words(cls) -> tuple[str, ...]:
        """Return the kind as words: `NodeLeftBehind` is node, left, behind."""
        spaced = "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in cls.KIND)
        return tuple(spaced.split())


class RunOpened(Record, frozen=True):
    """The first node of a run came. The run replaces the job's last one."""

    opener: Name
    spec: JobSpec
    """The node's settings; all nodes of the run must have the same."""


class NodeRecord(Record, frozen=True):
    """One fact about a nodeclient process."""

    node: Name
    incarnation: Incarnation


class NodeJoined(NodeRecord, frozen=True):
    """A node became a member of a run."""

    offer: NodeOffer
    peer_address: Seen
    local_address: Seen
    round: Counter
    """The last round that the node remembers, of any run."""
    token: TokenName = ""
    """The name of the node's access token; empty where none is required, and in old records."""


class NodeLost(NodeRecord, frozen=True):
    """A member was lost: it fell silent, or a younger process with the same node id replaced it."""

    silent_s: Age
    leaving: bool
    """Whether it had announced that it would leave, and was gone before the coordinator answered."""
    silent: bool = False
    """Whether it fell silent while its connection was open, which shows that its host or its network went. The end of
    its process would have closed the connection."""


class NodeReleased(NodeRecord, frozen=True):
    """A member was released while the run goes on: it asked to leave, or waited for too long."""

    outcome: Outcome


class NodeSucceeded(NodeRecord, frozen=True):
    """All workers of one node exited with 0: its part of the round is done, even if the node is lost later."""

    round: Counter


class NodeLeftBehind(NodeRecord, frozen=True):
    """A node could not end its workers in time: it remains a member, but the round ends without it."""

    round: Counter
    silent_s: Age


class RoundRecord(Record, frozen=True):
    """One fact about a round."""

    round: Counter


class RoundFormed(RoundRecord, frozen=True):
    """A round was formed of these nodes, with these ranks, which never change."""

    nodes: Annotated[tuple[Ranks, ...], Meta(min_length=1, max_length=RANKS_MAX)]
    """The ranks by group rank."""
    master_address: Address
    master_port: Port
    spent: Spent
    """The time of the run so far, by activity, as in each record with which another activity begins."""
    resume: ResumePoint | None = None
    """The step that its workers resume from; None if no node keeps a whole one."""
    spoiled: Annotated[tuple[SpoiledStep, ...], Meta(max_length=SPOILED_MAX)] = ()
    """The spoiled steps, which no round resumes from any more, in the order in which they were found."""
    doubted: KeptStep | None = None
    """The first step in which ranks may differ, if this round resumes from it, or a later one, all the same."""
    why_anew: Sentence = ""
    """Why the round resumes from no step, although nodes kept some; empty if it resumes from one, or none was kept."""


class RoundRemembered(RoundRecord, frozen=True):
    """A `RoundFormed` without its nodes, as a history of rounds needs it.

    It is never stored. The store makes it of a `RoundFormed`, so as not to read its nodes, up to 10,000.
    """

    nodes: Count
    workers: Count
    spent: Spent


class RoundsMissed(RoundRecord, frozen=True):
    """Nodes know of a later round than the records: the records are an old copy of the history.

    `round` is the latest round that a node knows, and the next one has a higher number.
    """


class RoundStarted(RoundRecord, frozen=True):
    """All workers of a round are started."""

    steps_awaited: bool
    """Whether workers of this run report steps, so that training begins with the first one (`TrainingBegan`)."""
    spent: Spent
    begun: WorkerStarts | None = None
    """How the workers were started; None if no faster start than cold was possible, and in old records."""


class ActivityRecord(RoundRecord, frozen=True):
    """The time of the run counts for another activity from here on, see `time_ledger.Activity`."""

    spent: Spent


class TrainingBegan(ActivityRecord, frozen=True):
    """A worker has reported the first step of a round; the time before belongs to its start."""

    step: Step | None = None
    """The step; None in old records."""


class FirstStepOverdue(ActivityRecord, frozen=True):
    """No worker of a round has done its first step in time; if no earlier round had steps, none may ever come."""


class TrainingCaughtUp(ActivityRecord, frozen=True):
    """The workers of a round have reached the furthest step of earlier rounds; up to it, they did steps again."""


class TrainingStalled(ActivityRecord, frozen=True):
    """No worker of a round has done a step for much longer than steps have taken recently."""


class TrainingResumed(ActivityRecord, frozen=True):
    """A worker of a round that had stalled has done a step."""


class NodesSilent(ActivityRecord, frozen=True):
    """No node of a round is heard: they are gone, or the coordinator is cut off."""


class NodesHeard(ActivityRecord, frozen=True):
    """A node of a round is heard again, after all had been silent."""


class BusyWorkerAwaited(RoundRecord, frozen=True):
    """All workers of a stalled round wait for one that may still compute; nothing is done about it."""


class ExitOverdue(RoundRecord, frozen=True):
    """Some workers of a round have ended without an error, and others go on for long; recorded once in a round."""


class WorkersUnseen(RoundRecord, frozen=True):
    """No worker of a round shows where it stands, so a hang would not be noticed; recorded once in a run."""


class PreflightBegan(Record, frozen=True):
    """Nodes without workers are tested in pairs. This is no durable state: a restarted coordinator has no preflight."""


class PreflightEnded(Record, frozen=True):
    """A preflight is over; the reason says what it found, or why it was stopped. There is none if its run ended."""


class ReplicasDiverged(RoundRecord, frozen=True):
    """Ranks of a round that should have the same parameters and optimizer state have different ones."""

    step: Step
    """The first step at which they were seen to differ."""
    agreed: Step | None
    """The last step of the round at which all such ranks were alike; None if none is known."""
    ranks: Annotated[tuple[Count, ...], Meta(max_length=CONSEQUENCES_MAX)]
    """The ranks that differ from most of the others; empty if nobody can say which are wrong. Of many, these are the
    first few and the last one: they show whether all are on one node."""
    back_to: KeptStep | None = None
    """The kept step that the next round can go back to; None if this round goes on."""

    @property
    def since(self) -> KeptStep:
        """The first step that may be wrong on some rank."""
        return KeptStep(self.round, 0 if self.agreed is None else self.agreed + 1)


class FirstFailure(Strict, frozen=True):
    """The earliest failure of a worker that was known when its round was stopped."""

    node: Name
    host: Address
    failure: Failure
    """The failure with its age as of the record."""


class RoundStopped(RoundRecord, frozen=True):
    """A round is being stopped; the reason is the trigger, which need not be the root cause."""

    planned: bool
    """Whether all is well, so that the workers get the time to save their state."""
    first_failure: FirstFailure | None
    """The earliest failure. Nodes report failures again to a restarted coordinator, but this node may be lost then."""
    spent: Spent
    condition: Condition


class RoundEnded(RoundRecord, frozen=True):
    """All workers of a round are gone, and the root cause is judged."""

    charged: bool
    """Whether the end of the round has used up one of the run's restarts."""
    restarts_used: Counter
    report: Report | None
    """The root cause, if a worker failed by itself."""
    spent: Spent
    repeats: Counter
    """How many rounds in a row before this one had the same error, without a step in between; a pause follows."""
    reached: Step | None = None
    """The furthest known step that any worker of this round or an earlier one has reported."""
    charged_at: Annotated[tuple[Span, ...], Meta(max_length=WINDOW_RESTARTS_MAX)] = ()
    """When the restarts within the window were charged, by the run's ledger, in order; empty without a window."""
    futile: Counter = 0
    """How many rounds in a row, this one included, have failed without a new step; see `--max-futile-rounds`."""
    excused: Report | None = None
    """An error of the script that a lost node may have caused, so that it is shown and not charged."""


class RunEnded(Record, frozen=True):
    """A run is over."""

    outcome: Outcome
    report: Report | None
    """The root cause, if workers failed for good."""
    spent: Spent
    condition: Condition
    step: Step | None = None
    """The last step that all workers had reached; if the last round had none, the furthest of the run, if any."""
    spoiled: Annotated[tuple[SpoiledStep, ...], Meta(max_length=SPOILED_MAX)] = ()
    """The kept steps that the next run does not choose from the disk either."""
    doubted: KeptStep | None = None
    """The first step in which ranks may differ, as of the last round."""


class JobStopAsked(Record, frozen=True):
    """An operator wants the run to end: its workers save their state, and no round follows."""


class JobForgotten(Record, frozen=True):
    """A job that had ended made room for another, or an operator wanted it gone."""


class ClusterRecord(Record, frozen=True):
    """A fact about the whole cluster, of no job and no run."""

    job: Annotated[str, printable(0)]
    run: Annotated[str, printable(0)]
    node: Address
    """A node id or a host name; of `HostJudged`, always a host name."""


class NodeDrained(ClusterRecord, frozen=True):
    """A node, or all nodes of a host, are to leave their jobs and be let in by none."""

    only_job: Annotated[str, printable(NAME_MAX)] = ""
    """The job that drains the node for its own reasons, and the only one to do without it; empty if an operator does,
    for all jobs. Ids of nodes are chosen by their users, so another job may have a node of the same id."""


class NodeUndrained(ClusterRecord, frozen=True):
    """Jobs let the node in again."""


class HostJudged(ClusterRecord, frozen=True):
    """A host's charges have changed, or whether rounds do without it; the record replaces the host's last one."""

    charges: Annotated[tuple[Charge, ...], Meta(max_length=CHARGES_MAX)] = ()
    quarantined: Sentence = ""
    """Why rounds do without it if they can; empty if they do not."""
    by: Judge = Judge.CHARGES


def _kinds(parent: type[Record]) -> Iterator[type[Record]]:
    """Yield the kinds of records under a class, in the order of this module."""
    for kind in parent.__subclasses__():
        yield from _kinds(kind) if kind.__subclasses__() else (kind,)


KINDS: dict[str, type[Record]] = {kind.KIND: kind for kind in _kinds(Record) if kind is not RoundRemembered}
"""Every kind of record that is stored, by its name."""


class Reason(Struct, frozen=True):
    """Why a run changes its state."""

    condition: str
    """The name of a condition of the table, or of an operator's request if no row was taken."""
    sentence: str
    """The row's sentence with the names and numbers filled in."""
