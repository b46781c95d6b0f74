"""Invariants of messages to nodes: the last one has the present goal, and no outdated message is sent again."""

from __future__ import annotations

from msgspec.structs import replace

from coordinatord.core.machine import Coordinator
from coordinatord.core.rounds.queries.desired_state import desired
from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.state.member import Member, MemberState
from coordinatord.core.rounds.state.run import Run
from coordinatord.protocol.messages import Degraded, Desired, Goal, Refused, Result
from tests.sim.invariants.laws import Facts, Laws
from tests.sim.network import Session

GOAL_OF = {State.STARTING: Goal.RUN, State.RUNNING: Goal.RUN, State.STOPPING: Goal.STOP}
"""The goal of a node in the round, by the state of the run."""


class MessageLaws(Laws):
    """Watches the messages to the nodes of one world."""

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._last_sent: dict[tuple[int, int], Desired] = {}
        """The last message to each session, keyed by (life of the coordinator, session)."""
        self._sent_as: dict[tuple[int, int], MemberState] = {}
        """The member state at the first sending of that message."""

    def sent(self, session: Session, message: Desired | Degraded | Refused) -> None:
        """Check that a message rests on durable records, and that a repeated one is still current."""
        if not isinstance(message, Desired):
            return
        key = session.life, session.number
        run, member = self.world.daemon.machine._sessions.get(session.number, (None, None))
        again = self._last_sent.get(key) is message
        self._last_sent[key] = message
        if run is None or member is None:
            return
        if not again:
            self._sent_as[key] = member.state
        elif self._sent_as.get(key, member.state) is not member.state and not self.world.daemon.writing:
            self._judge_again(run, member, message)

    def settled(self, machine: Coordinator) -> None:
        """Check that the nodes were sent all that is durable."""
        for run_id, node in machine._leases._at:
            self.check(node in machine.registry.runs[run_id].members, "%s has a lease, and is no member", node)
        if machine.store_error is not None or self.facts.leaves_out(machine):
            return
        for number, (run, member) in machine._sessions.items():
            self.check(member.session.id == number, "%s has a connection too many", member.node)
            observed = member.observed
            missed = observed.run == run.id and observed.round > run.durable.round and not run.durable.state.ended
            self.check(not missed, "%s knows of round %d, and none is recorded", member.node, observed.round)
            waits = run.durable.state is State.FORMING and member.state is MemberState.READY
            forever = waits and run.gathering.join_timeouts.get(member.node) is None
            self.check(not forever, "%s waits for a round without a time limit", member.node)
            self._judge_revision(run, member)
            last = self._last_sent.get((self.world.daemon.life, number))
            is_open = number in self.world.daemon._sessions  # the machine may not have handled its end yet
            if last is not None and is_open and not member.lease.expired:
                wanted = _wanted(run, member)
                received = (
                    last.goal,
                    last.round if last.goal in {Goal.RUN, Goal.STOP} else run.durable.round,
                    last.planned,
                )
                self.check(received == wanted, "%s was sent %s, and %s is wanted", member.node, received, wanted)

    def _judge_revision(self, run: Run, member: Member) -> None:
        """Check that a message which would be repeated equals one that is made anew."""
        sent = member.session.sent
        if (
            sent is None
            or member.lease.expired
            or member.session.sent_revision != run.revision
            or sent.goal is not Goal.RUN
            or sent.report is not None
            or sent.resume is not None
            or sent.copies
        ):
            return
        self._judge_again(run, member, sent)

    def _judge_again(self, run: Run, member: Member, sent: Desired) -> None:
        anew = desired(run, member, sent.heartbeat_s, self.world.daemon.clock.read())
        self.check(replace(anew, lease_s=sent.lease_s) == sent, "%s is sent again, in place of %s", sent, anew)


def _wanted(run: Run, member: Member) -> tuple[Goal, int, bool]:
    """Return the goal and round that a node must have been sent, and whether they are planned."""
    if run.durable.state.ended or member.durable.outcome is not None:
        outcome = member.durable.outcome or run.durable.outcome
        return Goal.EXIT, run.durable.round, outcome is not None and outcome.result in {Result.LEFT, Result.STOPPED}
    if member.durable.in_round:
        goal = GOAL_OF[run.durable.state]
        return goal, run.durable.round, goal is Goal.STOP and run.durable.planned
    on_purpose = run.durable.state is State.STOPPING and run.durable.planned and run.is_about_round(member.observed)
    straggles = member.observed.phase.has_workers
    return (Goal.STOP if straggles else Goal.WAIT), run.durable.round, straggles and on_purpose
