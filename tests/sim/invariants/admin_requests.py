"""Invariants of operators' requests: each answer is durable, and all later decisions agree with it."""

from __future__ import annotations

from collections.abc import Sequence

from coordinatord.core.judging.run_judging import RunJudging
from coordinatord.core.keeping.known import kept_of
from coordinatord.core.keeping.write_plan import END_S
from coordinatord.core.machine import Coordinator
from coordinatord.core.rounds.effects import Answer
from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.state.member import UNHEARD
from coordinatord.core.rounds.values.admin_requests import (
    AdminResult,
    DrainNode,
    ForgetJob,
    PardonNode,
    PreflightJob,
    QuarantineNode,
    Request,
    RestartJob,
    StopJob,
    UndrainNode,
)
from coordinatord.core.rounds.values.records import (
    HostJudged,
    JobStopAsked,
    NodeDrained,
    NodeJoined,
    NodeUndrained,
    Record,
    RoundFormed,
)
from tests.sim.invariants.laws import Facts, Laws
from tests.sim.invariants.root_cause import ROUGHLY


class AdminLaws(Laws):
    """Checks the answers to operators, and whether they hold."""

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._to_end: set[str] = set()
        """Runs that an operator wants to end."""
        self._ending: dict[str, float] = {}
        """The time since which a run has had no workers and has written nothing to the disk, by run."""
        self._drained: set[str] = set()
        self._undrained: set[str] = set()
        self._judged: set[str] = set()

    def decided(self, records: Sequence[Record]) -> None:
        """Check that no decision contradicts an operator."""
        cluster = self.world.daemon.machine.cluster
        for record in records:
            match record:
                case NodeJoined():
                    why = cluster.durable.why_drained(record.job, record.node, record.offer.host)
                    self.check(why is None, "%s is let in: %s", record.node, why)
                case RoundFormed():
                    members = cluster.jobs[record.job].members
                    for ranks in record.nodes:
                        why = cluster.durable.why_drained(record.job, ranks.node, members[ranks.node].offer.host)
                        self.check(why is None, "%s is given a round: %s", ranks.node, why)

    def durable(self, record: Record) -> None:
        """Check that no round follows when an operator wants a run to end."""
        if isinstance(record, JobStopAsked):
            self._to_end.add(record.run)
        elif isinstance(record, NodeDrained):
            self._drained.add(record.node)
        elif isinstance(record, NodeUndrained):
            self._undrained.add(record.node)
        elif isinstance(record, HostJudged):
            self._judged.add(record.node)
        elif isinstance(record, RoundFormed):
            self.check(record.run not in self._to_end, "run %s is to end, and a round is formed", record.run)

    def settled(self, machine: Coordinator) -> None:
        """Check that a run that is to end waits for nothing between two rounds, except for its disk.

        A restarted coordinator knows what is to be written once it has heard all nodes. A failed attempt is repeated
        for a while. Where a node is back with workers of an older round, its newest step waits for their end.
        """
        now = self.world.queue.now
        for run in machine.jobs.values():
            if run.id not in self._to_end or run.durable.state is not State.FORMING:
                continue
            disk, reports = kept_of(run).disk, [member.observed for member in run.members.values()]
            straggles = disk.every_s is not None and any(seen.phase.has_workers and seen.kept for seen in reports)
            unheard = any(seen is UNHEARD for seen in reports) and run.durable.has_had_rounds
            if disk.attempt or unheard:
                self._ending.pop(run.id, None)
                continue
            again = (disk.problem or straggles) and now - self._ending.setdefault(run.id, now) <= END_S / ROUGHLY
            self.check(again, "run %s is to end, has no workers and goes on", run.id)

    def set_back(self, records: Sequence[Record], now: float) -> None:
        """Note that the store holds these records alone."""
        self._to_end = {record.run for record in records if isinstance(record, JobStopAsked)}

    def answered(self, request: Request, run_id: str | None, answer: Answer) -> None:
        """Check that an answer to an operator rests on durable records; `run_id` is the run as of the request."""
        self.check(bool(answer.text), "%s is answered without a text", request)
        if answer.result is AdminResult.UNKNOWN_NODE:
            # One that came while the answer waited for the disk is not durable yet.
            members = [member for run in self.facts.replica.cluster.jobs.values() for member in run.members.values()]
            members = [member for member in members if member.outcome is None]
            known = any(request.target in {member.node, member.offer.host} for member in members)
            self.check(not known, "%s is answered %s", request, answer)
        if answer.result is not AdminResult.DONE:
            return
        cluster = self.facts.replica.cluster
        run = cluster.jobs.get(request.target)
        match request:
            case DrainNode():
                done = request.target in self._drained
            case UndrainNode():
                done = request.target in self._undrained
            case QuarantineNode() | PardonNode():
                done = not self._judged.isdisjoint(answer.text.split())  # the host may be that of a namesake
            case StopJob():
                done = run_id in self._to_end
            case RestartJob():
                done = run is not None and run.state is not State.RUNNING
            case PreflightJob():  # it need not be durable
                live = self.world.daemon.machine.jobs.get(request.target)
                tests = None if live is None or live.id != run_id else live.judging
                done = not isinstance(tests, RunJudging) or bool(tests.preflight.why)
            case ForgetJob():
                done = run is None or run.id != run_id  # a node may have come at once, and opened another
            case _:
                done = False
        self.check(done, "%s is answered %s, and that is not durable", request, answer)
