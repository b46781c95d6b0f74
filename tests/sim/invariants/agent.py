"""Invariants of a node's conduct: when its workers end, what it reports, when it gives up.

They are checked by what happens on its host, at times of its own clock. `nodes` checks which rounds nodes start.
"""

from __future__ import annotations

import signal
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.protocol.messages import Goal, Observed, Phase, RefusalCode
from nodeclient.core import events
from nodeclient.core.agent_settings import BACK_WITHIN_S, LEAVE_WITHIN_S, STAGE_SHARE
from nodeclient.core.effects import (
    Effect,
    Exit,
    HaltWorkers,
    Kill,
    LeaveRound,
    Park,
    Probe,
    Reconnect,
    SaveKept,
    SendObserved,
    Start,
    Terminate,
)
from nodeclient.core.reuse import PARK_S
from nodeclient.core.table import EndStage
from tests.sim.invariants.laws import Facts, Laws
from tests.sim.kept_memory import SAVE_WITHIN_S
from tests.sim.workers import Round

if TYPE_CHECKING:  # the world imports its invariants
    from tests.sim.host import Host

SLACK_S = 1.0
"""The tolerance: an alarm is punctual, but its effect may wait for another one. It is far below every grace."""

CONNECTING_S = 6.0
"""How long a node that connects cannot know whether it is cut off: one attempt, and the pause before it. The same holds
while a silent connection stands, for the lease that it was granted last."""

FOR_GOOD = {RefusalCode.SUPERSEDED, RefusalCode.SPEC_DIFFERS, RefusalCode.FORGOTTEN}
"""Refusals without a retry."""


class Conduct:
    """The acts of one nodeclient, and the events that it received."""

    def __init__(self, host: Host) -> None:
        now = host.clock.read()
        self.port = host.agent._sweeping.port if host.agent else 0
        """The port that it has reserved."""
        self.searching_since: float | None = now
        self.answered = False
        """Whether the coordinator has sent anything in the present session."""
        self.joined_at = now
        """When its last session began."""
        self.leave_asked_at: float | None = None
        self.leave_signal: int = signal.SIGTERM
        """The signal that asked it to leave."""
        self.may_end_until = 0.0
        """The time until which its workers may end by themselves, though it was asked to leave: they had trained."""
        self.saves_since: float | None = None
        """When its workers were asked to save what they keep, before they are asked to end."""
        self.asked_at = 0.0
        """When its workers were last asked to end."""
        self.ends_since: float | None = None
        """When the end of its workers began: they were asked to save, to leave the round, or to end."""
        self.planned = False
        """Whether its workers were asked to save or to end in a planned stop."""
        self.cut_off = False
        """Whether that was because the coordinator was out of reach for too long."""
        self.failed_at: float | None = None
        """When a worker of the present round first failed, before it was asked to end."""
        self.failed_again_at: list[float] = []
        """When further workers failed. The failure of one of these counts if the first had merely lost its
        connection."""
        self.failed_round: Round = ("", 0)
        self.failed_in: set[Round] = set()
        """Rounds in which a worker failed here, or could not be started."""
        self.last_report: tuple[object, ...] | None = None
        """Its last report, without the fields that change by themselves."""
        self.refused_for_good = False
        self.held_since: float | None = None
        """The time since which it has had processes wait for a round."""
        self.unreachable: set[int] = set()
        """The local ranks of processes that wait for a round, and have lost their connection to the nodeclient."""

    def record_end(self, effect: Effect, now: float) -> None:
        """Record when the end of the workers begins, if this effect is its first one."""
        if isinstance(effect, HaltWorkers | SaveKept | LeaveRound | Terminate) and self.ends_since is None:
            self.ends_since = now

    @property
    def told_at(self) -> float | None:
        """When `--stop-timeout` began for its workers; None if it limits the end of none."""
        if self.ends_since is None:
            return None
        planned_at = self.ends_since if self.planned or self.cut_off else None
        return min((at for at in (planned_at, self.leave_asked_at) if at is not None), default=None)


class AgentLaws(Laws):
    """Watches the conduct of each nodeclient."""

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._conducts: dict[tuple[str, int], Conduct] = {}
        self.taken_over = 0
        """Processes that went into another round."""
        self.held = 0
        """Processes that waited for another round."""
        self.put_off = 0
        """Reports of nodes that were asked to leave, and let their workers end by themselves."""

    def conduct(self, host: Host) -> Conduct:
        """Return the conduct of the nodeclient of a host."""
        key = (host.name, host.incarnation)
        if key not in self._conducts:
            self._conducts[key] = Conduct(host)
        return self._conducts[key]

    # Events

    def happens(self, host: Host, event: events.Event) -> None:
        """Check a node that is about to handle an event."""
        agent, conduct, now = host.agent, self.conduct(host), host.clock.read()
        assert agent is not None
        self._judge_patience(host, conduct, now)
        self._judge_saving(host, conduct, now)
        self._judge_end(host, conduct, now)
        report = _ageless(agent.observed(now, beat=False))
        late = agent._connection.connected and conduct.last_report is not None and _is_due(report, conduct.last_report)
        self.check(not late, "%s has not reported %s", host.name, report)
        if isinstance(event, events.Unreached):
            conduct.failed_in.add((event.run, event.round))
        self._judge_held(host, conduct, now)
        if isinstance(event, events.WorkerExited | events.CollectiveFailed | events.StartFailed):
            known = isinstance(event, events.WorkerExited) and event.local_rank in host.workers.staying.failed
            never_began = isinstance(event, events.StartFailed) and not agent._group.begun
            in_round = event.local_rank in agent._group.alive or never_began
            fails = event.exit_code and in_round and not known
            if fails:
                conduct.failed_in.add((agent.run, agent.round))
            if fails and agent.phase in {Phase.STARTING, Phase.RUNNING} and conduct.failed_at is None:
                conduct.failed_at, conduct.failed_round = now, (agent.run, agent.round)
            elif fails:
                conduct.failed_again_at.append(now)
            return
        self._note(host, conduct, event, now)

    def _note(self, host: Host, conduct: Conduct, event: events.Event, now: float) -> None:
        agent = host.agent
        assert agent is not None
        match event:
            case events.SessionOpened():
                conduct.answered, conduct.joined_at = False, now
                conduct.last_report = _ageless(agent.observed(now, beat=False))
            case events.DesiredReceived() | events.CoordinatorDegraded():
                conduct.answered, conduct.searching_since = True, None
            case events.SessionClosed():
                if conduct.answered:
                    conduct.answered, conduct.searching_since = False, now
            case events.LeaveRequested():
                is_first = conduct.leave_asked_at is None
                wait_s = STAGE_SHARE * self.world.scenario.stop_timeout_s
                conduct.may_end_until = now + wait_s if is_first and event.training_is_over else 0.0
                conduct.leave_asked_at = now if conduct.leave_asked_at is None else conduct.leave_asked_at
                conduct.leave_signal = event.signum
            case events.Swept(port):
                conduct.port = port
            case events.ReuseReported(rank, able=False) if rank in host.workers.staying.held:
                conduct.unreachable.add(rank)
            case events.TurnedAway(refused) if not refused.retry:
                self.check(refused.code in FOR_GOOD, "%s is refused for good: %s", host.name, refused.message)
                conduct.refused_for_good = True

    def _judge_patience(self, host: Host, conduct: Conduct, now: float) -> None:
        agent = host.agent
        assert agent is not None
        working = agent.phase in {Phase.STARTING, Phase.RUNNING}
        recently = self.world.queue.now - host.troubled_until < SLACK_S
        if conduct.searching_since is not None and not agent._connection.connected and not recently:
            alone = now - conduct.searching_since
            connecting = max(CONNECTING_S, agent._connection.lease_s + SLACK_S)
            grace = self.world.scenario.policy.outage_grace_s
            has_goal = agent._desired is not None
            self.check(
                not (working and has_goal) or alone < grace + connecting,
                "%s lets its workers go on, cut off for %.1f s",
                host.name,
                alone,
            )
            # By then, workers of another round may live. A nodeclient that was stopped notices the time only when it is
            # resumed, and then its workers still have their time to end.
            noticed = max(grace + connecting, host.woken_at + SLACK_S - conduct.searching_since)
            ended = self.world.scenario.stop_timeout_s + noticed
            is_stopping = agent.phase is Phase.STOPPING and agent._group.ending.stage is not EndStage.SIGNALLED
            self.check(
                not (agent.phase.has_workers and has_goal) or is_stopping or alone < ended,
                "%s lets its workers live, cut off for %.1f s",
                host.name,
                alone,
            )
            waited = now - max(conduct.searching_since, agent._sweeping.over_at)
            most = self.world.scenario.join_timeout_s + connecting
            self.check(agent.phase.has_workers or waited < most, "%s looks for %.1f s", host.name, waited)
        if conduct.leave_asked_at is not None and not recently:
            left = now - conduct.leave_asked_at
            heard = agent._desired is not None and agent._desired.goal in {Goal.STOP, Goal.EXIT}
            patience_s = BACK_WITHIN_S if agent._leaving.has_state else 0.0
            leaves_at = max(conduct.leave_asked_at, conduct.may_end_until)
            may_be_back = now <= max(agent._connection.searching_since + patience_s, leaves_at) + SLACK_S
            asked_at = max(leaves_at, conduct.joined_at)
            may_decide = now <= asked_at + LEAVE_WITHIN_S + SLACK_S
            on_time = may_decide if agent._connection.connected else may_be_back
            late = working and not heard and not on_time
            self.check(not late, "%s was asked to leave %.1f s ago, and works on", host.name, left)

    def _judge_held(self, host: Host, conduct: Conduct, now: float) -> None:
        agent = host.agent
        assert agent is not None
        if not host.workers.staying.held or agent.phase.has_workers:
            conduct.held_since = None if not host.workers.staying.held else now
            return
        recently = self.world.queue.now - host.troubled_until < SLACK_S
        held_s = now - (now if conduct.held_since is None else conduct.held_since)
        self.check(held_s < PARK_S + SLACK_S or recently, "%s has processes wait for %.1f s", host.name, held_s)

    def _judge_saving(self, host: Host, conduct: Conduct, now: float) -> None:
        agent = host.agent
        assert agent is not None
        if conduct.saves_since is None or agent._group.ending.stage not in {EndStage.HALTING, EndStage.SAVING}:
            return
        most = STAGE_SHARE * self.world.scenario.stop_timeout_s + SAVE_WITHIN_S + SLACK_S
        took = now - max(conduct.saves_since, host.woken_at)
        self.check(took < most, "%s lets its workers save for %.1f s before they are asked to end", host.name, took)

    def _judge_end(self, host: Host, conduct: Conduct, now: float) -> None:
        """Check that no worker lives on when its node has had `--stop-timeout` to end it, in all stages together."""
        since, agent = conduct.told_at, host.agent
        assert agent is not None
        if since is None or agent._group.ending.stage in {None, EndStage.KILLED, EndStage.SWEEPING}:
            return
        took, most = now - max(since, host.woken_at), self.world.scenario.stop_timeout_s
        self.check(took < most + SLACK_S, "%s ends its workers for %.1f s", host.name, took)

    # Effects

    def stays(self, host: Host, start: Start, held: AbstractSet[int], out: AbstractSet[int]) -> None:
        """Check that a round takes over all processes that wait, if they left their round, and only to resume."""
        self.check(set(start.reused) == held, "%s takes over %s, and %s wait", host.name, start.reused, sorted(held))
        lost = self.conduct(host).unreachable
        self.check(not lost & held, "%s takes over %s, and cannot reach %s", host.name, held, sorted(lost))
        lost.clear()
        self.check(held <= out, "%s takes over %s, and %s are out of their round", host.name, held, sorted(out))
        self.taken_over += len(start.reused)
        agent = host.agent
        assert agent is not None
        # A node that has all of it already is not told again what it resumes from.
        resumes = agent._kept._round == (start.run, start.round) and agent._kept._resume is not None
        self.check(not held or resumes, "%s begins from nothing in processes of an older round", host.name)

    def does(self, host: Host, effect: Effect) -> None:
        """Check an effect that is about to be carried out."""
        conduct, now = self.conduct(host), host.clock.read()
        conduct.record_end(effect, now)
        match effect:
            case Probe():
                conduct.saves_since, conduct.ends_since, conduct.planned = None, None, False
                conduct.failed_at = None  # another round, which may fail before a worker of it is started
                conduct.failed_again_at.clear()
            case Start():
                self._judge_start(host, conduct, effect)
            case HaltWorkers() | SaveKept(late=False):
                conduct.saves_since = now if conduct.saves_since is None else conduct.saves_since
                conduct.planned |= _is_planned(host)
            case Terminate(signum, _):
                conduct.saves_since = None
                self.check(signum == conduct.leave_signal, "%s sends its workers signal %d", host.name, signum)
                agent = host.agent
                assert agent is not None
                conduct.asked_at = now
                conduct.planned |= _is_planned(host)
                has_goal_to_end = agent._desired is not None and agent._desired.goal is not Goal.RUN
                conduct.cut_off = not agent._connection.connected and conduct.failed_at is None and not has_goal_to_end
            case Kill():
                self._judge_kill(host, conduct, now)
            case SendObserved(observed):
                conduct.last_report = _ageless(observed)
                self._judge_report(host, conduct, observed, now)
            case Reconnect():
                self._judge_doubt(host)
            case Park():
                conduct.held_since = now
                self.held += 1
            case Exit(code):
                self.check(not host.workers.staying.held, "%s ends, and has processes wait", host.name)
                for_good = code != ExitCode.REFUSED or conduct.refused_for_good
                self.check(for_good, "%s ends for a refusal that was not for good", host.name)

    def _judge_start(self, host: Host, conduct: Conduct, start: Start) -> None:
        self.check(host.workers.training is None, "%s starts a round before all is swept", host.name)
        self.check(host.test is None, "%s starts a round beside a test with another node", host.name)
        part = start.assignment
        held = part.group_rank != 0 or part.master_port == conduct.port
        self.check(held or self.world.scenario.network.harsh, "%s does not hold port %d", host.name, part.master_port)

    def _judge_kill(self, host: Host, conduct: Conduct, now: float) -> None:
        """Check that workers get all of their time, and no more.

        In a planned stop only the node's own user may cut it: that the round ends without the node does not.
        """
        agent = host.agent
        assert agent is not None
        waited, most = now - conduct.asked_at, self.world.scenario.stop_timeout_s
        recently = self.world.queue.now - host.troubled_until < most + SLACK_S
        self.check(waited < most + SLACK_S or recently, "%s kills its workers after %.1f s", host.name, waited)
        in_peace = not agent._leaving.hurry and (conduct.planned or conduct.cut_off)
        had = now - (now if conduct.told_at is None else conduct.told_at)
        self.check(not in_peace or had > most * 0.99, "%s lets its workers save for %.1f s", host.name, had)

    def _judge_report(self, host: Host, conduct: Conduct, observed: Observed, now: float) -> None:
        over = not observed.phase.has_workers
        swept = host.workers.training is None
        self.check(swept or not over, "%s reports that it is %s before all is swept", host.name, observed.phase)
        asked = conduct.leave_asked_at is not None
        may_end = (
            now < conduct.may_end_until and observed.phase in {Phase.RUNNING, Phase.SUCCEEDED} and _is_to_run(host)
        )
        self.put_off += may_end
        self.check(observed.leaving or may_end or not asked, "%s does not report that it was asked to leave", host.name)
        self.check(not observed.leaving or not may_end, "%s does not let its workers end by themselves", host.name)
        self.check(asked or not observed.leaving, "%s reports that it leaves, and was not asked to", host.name)
        here = observed.failure is None or (observed.run, observed.round) in conduct.failed_in
        self.check(here, "%s reports that a worker failed in round %d", host.name, observed.round)
        forgotten = conduct.failed_at is not None and observed.failure is None
        forgotten = forgotten and (observed.run, observed.round) == conduct.failed_round
        self.check(not forgotten, "%s has forgotten that a worker failed in round %d", host.name, observed.round)
        if observed.failure is not None and conduct.failed_at is not None:
            ages = [now - failed_at for failed_at in (conduct.failed_at, *conduct.failed_again_at)]
            is_dated = any(abs(observed.failure.age_s - age) < 0.01 for age in ages)
            self.check(is_dated, "%s reports a failure with a wrong age", host.name)

    def _judge_doubt(self, host: Host) -> None:
        """Check that a healthy node has a reason to give up its connection to the coordinator."""
        daemon, network = self.world.daemon, self.world.scenario.network
        assert host.agent is not None
        patience_s = host.agent._connection.lease_s + SLACK_S
        quiet = host.well and self.world.queue.now - host.troubled_until > patience_s
        awake = daemon.up and not daemon.paused and self.world.queue.now - self.facts.slept_at > patience_s
        session = host.session
        here = (
            session is not None
            and not session.broken
            and session.life == daemon.life
            and session.number in daemon.machine._sessions
        )
        fair = not (quiet and awake and here) or network.harsh or network.spike_chance > 0
        self.check(fair, "%s doubts a coordinator that is well", host.name)

    def judge_end(self) -> None:
        """Check that every nodeclient which lives is connected, and pursues its goal."""
        for host in self.world.hosts.values():
            agent, session = host.agent, host.session
            if agent is None:
                continue
            in_touch = session is not None and not session.broken and agent._connection.connected
            self.check(in_touch, "stuck: %s is out of touch; %s", host.name, self.world.situation)
            gone = agent._desired is not None and agent._desired.goal is Goal.EXIT
            self.check(not gone, "stuck: %s has the goal to exit; %s", host.name, self.world.situation)


def _ageless(observed: Observed) -> tuple[object, ...]:
    """Return a report without the fields that change by themselves."""
    failed = observed.failure is not None
    return observed.run, observed.round, str(observed.phase), observed.port, observed.leaving, failed


def _is_due(report: tuple[object, ...], last: tuple[object, ...]) -> bool:
    """Whether a node has to send this report at once, given its last one: it need not if it only obeys a goal."""
    if last[2] == Phase.PREPARING != report[2]:
        return True
    if report[2] in {Phase.IDLE, Phase.STARTING, Phase.STOPPING}:
        failed = bool(report[5]) and (*report[:2], report[5]) != (*last[:2], last[5])
        return failed or report[3:5] != last[3:5]  # port, leaving
    return report != last


def _is_planned(host: Host) -> bool:
    desired = None if host.agent is None else host.agent._desired
    return desired is not None and desired.goal is Goal.STOP and desired.planned


def _is_to_run(host: Host) -> bool:
    """Return whether the coordinator's last word to a node was to run the round that it is in."""
    agent = host.agent
    desired = None if agent is None else agent._desired
    is_here = agent is not None and desired is not None and (desired.run, desired.round) == (agent.run, agent.round)
    return is_here and desired is not None and desired.goal is Goal.RUN
