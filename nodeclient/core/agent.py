"""The agent of a node: it works towards the coordinator's goal, and reports the state of the node.

`Agent.handle` is the only entry for events. A handler records the event. If the event may change the node's phase, the
handler applies a stimulus: `table` names the act that follows in the present phase, and this module carries it out.
After every event the agent pursues the coordinator's goal in the same way, until the phase no longer changes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import itemgetter
from signal import Signals
from typing import Any

from coordinatord.protocol.errors import CompleteMap
from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.protocol.fields import DURATION_S_MAX
from coordinatord.protocol.messages import Desired, Goal, Observed, Phase, RefusalCode
from nodeclient.core import effects, events, notices
from nodeclient.core.agent_settings import Settings
from nodeclient.core.connection_state import TEMPORARY, ConnectionState
from nodeclient.core.effects import Level, Notice, Park
from nodeclient.core.ending import Terms
from nodeclient.core.host_tests import HostTests
from nodeclient.core.kept_goals import KeptGoals
from nodeclient.core.leaving import Leaving, unreported_success
from nodeclient.core.reuse import Reuse
from nodeclient.core.sweeping import Sweeping
from nodeclient.core.table import TABLE, WORKING, Act, EndStage, Stimulus, stimulus_of
from nodeclient.core.worker_group import WorkerGroup

REPORT_WITHIN_S = 30.0
"""How long a node searches for a coordinator, to report a success of the run that only this node knows of. A restarted
coordinator is back within seconds."""


class Agent:
    """Decides for one node. Times are in seconds of a clock that never goes back."""

    def __init__(self, settings: Settings, port: int, now: float) -> None:
        """Begin without workers or a connection. `port` is reserved for the first round."""
        self._settings = settings
        self.phase = Phase.PREPARING if settings.preloads else Phase.IDLE
        self._desired: Desired | None = None
        self._group = WorkerGroup()
        self._reuse = Reuse(settings.nccl_abort_timeout_s)
        self._sweeping = Sweeping(settings.stop_timeout_s, port, now)
        self._tests = HostTests(checks_health=settings.checks_health)
        self._connection = ConnectionState(now)
        self._kept = KeptGoals()
        self._leaving = Leaving(settings.stop_timeout_s)
        self.exited = False
        self._effects: list[effects.Effect] = []

    @property
    def run(self) -> str:
        """The run of the present or last round; empty before the first one."""
        return self._group.run

    @property
    def round(self) -> int:
        """The number of the present or last round; 0 before the first one."""
        return self._group.round

    @property
    def connected(self) -> bool:
        """Whether there is a session with a coordinator."""
        return self._connection.connected

    def handle(self, event: events.Event, now: float) -> list[effects.Effect]:
        """Handle one event; return the effects, in the order in which they are carried out; none after the exit."""
        self._effects = []
        if not self.exited:
            self._HANDLERS[type(event)](self, event, now)
            if not self._may_end_well:  # then there is no reason any more to put off the report that it leaves
                self._leaving.report(now)
            # The event may have changed the deadlines of the workers' end, by which `_pursue` may enter the next stage.
            # Tests, kept state and the report depend on the phase after that.
            end_by = self._leaving.workers_end_by
            if end_by is not None:
                self._group.ending.end_by(end_by, now)
            self._group.ending.update_deadline(self._group.alive, self._reuse, now)
            self._effects += self._reuse.dismiss_disconnected(self.phase)
            self._pursue(now)
            self._effects += self._tests.pursue_pair(self._desired, self.phase)
            if self._settings.keeps and not self.exited:
                self._effects += self._kept.pursue(self._desired, self.run, self.round)
            self._report(now)
        return sorted(self._effects, key=lambda effect: effect.turn)

    def next_deadline(self) -> float | None:
        """Return the time of the next deadline, for `Tick`; None if there is none, as after the exit."""
        return None if self.exited else min((at for at, _ in self._deadlines()), default=None)

    def observed(self, now: float, *, beat: bool) -> Observed:
        """Return the state of the node for the coordinator; `beat` marks a heartbeat."""
        sweeps_after_success = self.phase is Phase.STOPPING and self._group.result is Phase.SUCCEEDED
        return Observed(
            run=self.run,
            round=self.round,
            phase=Phase.RUNNING if sweeps_after_success else self.phase,  # a success counts once nothing is left
            port=self._sweeping.port,
            leaving=self._leaving.is_reported,
            failure=self._group.exits.failure(now) or self._group.exits.failed_too(now),
            heard_s=self._connection.heard_s(now),
            beat=beat,
            idle_s=0.0 if self.phase.has_workers else min(now - self._sweeping.over_at, DURATION_S_MAX),
            ended=self._group.exits.ended(now),
            killed=self._group.ending.killed,
            cut_off=self._group.ending.cut_off,
            begun=self._reuse.begun,
            pids=self._group.living,
            held_up=self._sweeping.held_up,
            check=self._tests.last_check,
            pair=self._tests.last_pair,
        )

    def awaits_own(self, now: float) -> bool:
        """Whether the node waits for the coordinator that knows its own run, and joins no other one.

        It insists on that one while it has workers of the run, and for the outage grace. After that it joins any
        coordinator. A node that has succeeded always insists: otherwise it would be told to train again.
        """
        insists = self.phase.has_workers or not self._connection.is_grace_over(now)
        insists = insists and not self._settings.coordinator_forgets
        return bool(self.run) and (insists or self.phase is Phase.SUCCEEDED)

    # Events

    def _on_search_began(self, _: events.SearchBegan, now: float) -> None:
        self._connection.begin_search(now)
        self._effects += self._tests.begin_check(is_idle=True)

    def _on_session_opened(self, event: events.SessionOpened, now: float) -> None:
        self._connection.open(event.coordinator, self.observed(now, beat=False), now)

    def _on_session_closed(self, event: events.SessionClosed, now: float) -> None:
        if self._connection.close(event.reason, now) and self._leaving.exit is None:
            leaves_in_s = self._leaving.leaves_in_s(self._connection, self.phase, now)
            text = notices.lost(event.reason, leaves_in_s, works=self.phase.has_workers)
            self._notice(Level.WARNING, "coordinator_lost", text)
        elif self._connection.shown.is_new_error(event.reason):
            working = self.phase in WORKING
            self._effects.append(self._connection.search_notice(self._search_deadline(), working=working))
        self._leaving.decide_by = None  # no decision can come without a session

    def _on_desired(self, event: events.DesiredReceived, now: float) -> None:
        desired = event.desired
        let_in = self._connection.record_desired(desired, now)
        if let_in:
            self._notice(Level.INFO, "connected", f"connected to the coordinator at {self._connection.coordinator}")
        if desired.run == self.run and desired.round < self.round:
            return  # it is about a round that is over: this node has entered a later one
        self._effects += self._connection.shown.unseen(desired, now, let_in=let_in)
        self._leaving.on_desired(desired, now)
        self._desired = desired

    def _on_degraded(self, event: events.CoordinatorDegraded, now: float) -> None:
        self._connection.record_alive(now)
        reason = event.degraded.reason
        if self._connection.shown.is_new_error(reason):
            text = f"the coordinator is alive but decides nothing, so nothing changes: {reason}"
            self._notice(Level.WARNING, "coordinator_undecided", text)
        self._leaving.on_undecided(now)

    def _on_turned_away(self, event: events.TurnedAway, now: float) -> None:
        refused, let_in = event.refused, self._desired is not None  # in this session or an earlier one
        if refused.retry or (let_in and refused.code in TEMPORARY):
            final_at = None if let_in or event.patience_s is None else now + event.patience_s
            self._connection.record_refusal(refused, final_at)
            self._on_session_closed(events.SessionClosed(refused.message), now)
        else:
            hurry = refused.code is RefusalCode.SUPERSEDED  # the new process waits until these workers end
            self._end_with(effects.Exit(ExitCode.REFUSED, notices.refused(refused)), now, hurry=hurry)

    def _on_probed(self, event: events.Reached | events.Unreached, now: float) -> None:
        if self.phase is not Phase.STARTING or self._group.begun or (event.run, event.round) != (self.run, self.round):
            return  # the probe was for an older round
        if isinstance(event, events.Reached):
            self._apply(Stimulus.REACHED, now)
        else:  # none of the workers is started
            self._on_worker_end(events.StartFailed(0, ExitCode.UNAVAILABLE, event.message), now)

    def _on_keeping(self, event: events.Keeping, _: float) -> None:
        self._group.keeping = event
        self._leaving.has_state = True

    def _on_workers_started(self, event: events.WorkersStarted, now: float) -> None:
        self._reuse.on_started(event, self._settings.workers)
        self._group.pids = event.pids
        self._apply(Stimulus.STARTED, now)

    def _on_kept_saved(self, event: events.KeptSaved, now: float) -> None:
        if self._group.ending.record_saved(event):
            self._apply(Stimulus.SAVED, now)

    def _on_swept(self, event: events.Swept, now: float) -> None:
        self._sweeping.end(event.port, now)
        self._group.exits.early_output = event.early_output
        self._apply(Stimulus.SWEPT, now)

    def _on_sweep_failed(self, event: events.SweepFailed, now: float) -> None:
        if self._leaving.leaves and self._leaving.hurry:  # a user who sends a second signal does not want to wait
            self._exit(effects.Exit(ExitCode.OS_ERROR, event.message))
        else:
            self._effects.append(self._sweeping.fail(event.message))
            self._sweep(now)

    def _on_gpus_in_use(self, event: events.GpusInUse, now: float) -> None:
        is_sweep = self._group.ending.stage is EndStage.SWEEPING
        self._effects += self._sweeping.on_gpus(event.gpus, now, found_by_sweep=is_sweep)

    def _on_tick(self, _: events.Tick, now: float) -> None:
        """Act on the first deadline only, since that may cancel a later one. If it does not, another tick follows."""
        first = min(self._deadlines(), key=itemgetter(0), default=None)
        if first is not None and first[0] <= now:
            first[1](now)

    def _on_worker_end(self, event: events.WorkerEnd, now: float) -> None:
        stimulus, new = self._group.on_end(event, self._reuse, self._settings.workers, now)
        self._effects += new
        if stimulus is not None:
            self._apply(stimulus, now)

    def _on_worker_left(self, event: events.WorkerLeft, now: float) -> None:
        if self._reuse.park(event.local_rank, self._group.alive, self._group.ending.stage):
            self._group.alive.discard(event.local_rank)
            self._effects.append(Park(event.local_rank))
            if not self._group.alive:
                self._apply(Stimulus.DEAD, now)

    def _on_worker_outlived(self, event: events.WorkerOutlived, now: float) -> None:
        if event.local_rank in self._group.alive:
            self._group.outlived.add(event.local_rank, event.leftovers, now)

    def _tell_outlived(self, now: float) -> None:
        until = self._group.ending.until
        left_s = 0.0 if until is None else until - now
        if text := self._group.outlived.tell(left_s, leaves=self._leaving.leaves):
            self._notice(Level.INFO, "remark", text)

    # Leaving and giving up

    def _on_leave_requested(self, event: events.LeaveRequested, now: float) -> None:
        is_second, has_workers = self._leaving.leaves, bool(self._group.alive)
        may_put_off = event.training_is_over and self._may_end_well
        self._effects += self._leaving.on_request(
            event.signum, self._connection, self.phase, now, has_workers=has_workers, may_put_off=may_put_off
        )
        if is_second:
            self._leaving.report(now)
            self._report(now)  # now, since a node without workers exits below, and then sends nothing
            self._abandon(now, hurry=True)

    def _abandon(self, now: float, *, hurry: bool = False) -> None:
        """Leave without a decision of the coordinator; with `hurry`, workers get no time to save."""
        self._leaving.abandon(hurry=hurry, loses_step=self._loses_step)
        self._apply(Stimulus.ABANDONED, now)

    @property
    def _loses_step(self) -> bool:
        """Whether the round of this node has not succeeded, and no coordinator has ordered to write a step of it."""
        if self.phase in {Phase.PREPARING, Phase.IDLE} or self._group.result is Phase.SUCCEEDED:
            return False
        desired = self._desired  # an order that comes with the goal to run may be about an earlier step
        return desired is None or desired.goal is Goal.RUN or desired.persist is None

    def _end_with(self, decided: effects.Exit, now: float, *, hurry: bool = False) -> None:
        """End the workers, if there are any, and then the program, by a decision of this node; `hurry` as above."""
        self._leaving.end_with(decided, hurry=hurry)
        self._apply(Stimulus.ABANDONED, now)

    def _end_search(self, now: float) -> None:
        """Exit, because a node without workers has found no coordinator in time."""
        connection, failure = self._connection, self._group.exits.failure(now)
        ended = connection.exit_of_search(self._settings.join_timeout_s, self.phase, failure)
        self._leaving.end_with(unreported_success(connection.error) if self._knows_of_success else ended)

    def _on_embedded_coordinator_end(self, event: events.EmbeddedCoordinatorEnded, now: float) -> None:
        if self._leaving.exit is None:
            ended = f"the coordinator that this node brought along has ended ({event.how})"
            self._end_with(effects.Exit(ExitCode.UNAVAILABLE, f"{ended}: no round can be formed without it"), now)

    def _cut_off(self, now: float) -> None:
        """End the workers, because the outage grace is over, and look for the coordinator without them."""
        self._group.ending.cut_off = True
        self._notice(Level.ERROR, "cut_off", notices.cut_off(self._connection.outage_grace_s, self._settings))
        self._apply(Stimulus.ABANDONED, now)

    @property
    def _knows_of_success(self) -> bool:
        """Whether this node knows that the run has succeeded, since it is the only node of the round.

        The last goal must have been about this round, to run it or to stop it: a stop came too late to change anything,
        since all workers had exited.
        """
        assignment = self._group.assignment
        return (
            self.phase is Phase.SUCCEEDED
            and self._goal in {Stimulus.RUN, Stimulus.STOP}
            and assignment is not None
            and assignment.group_world_size == 1
        )

    @property
    def _may_end_well(self) -> bool:
        """Whether nothing keeps the workers of the round from ending by themselves, or all have exited with 0."""
        is_well = self.phase is Phase.RUNNING or self._group.result is Phase.SUCCEEDED
        return is_well and self._goal is Stimulus.RUN

    # Time

    def _deadlines(self) -> list[tuple[float, Callable[[float], None]]]:
        """Return each deadline with its action. They follow from the state, so none has to be cancelled."""
        dues: list[tuple[float, Callable[[float], None]]] = []
        dues += [(at, partial(self._apply, stimulus)) for at, stimulus in self._group.ending.deadlines()]
        if self._group.outlived.tell_at is not None and self._group.ending.stage is EndStage.SIGNALLED:
            dues.append((self._group.outlived.tell_at, self._tell_outlived))
        if self._reuse.parked_until is not None and not self.phase.has_workers:
            dues.append((self._reuse.parked_until, lambda _: self._effects.extend(self._reuse.dismiss())))
        if self._sweeping.again_at is not None:
            dues.append((self._sweeping.again_at, self._sweep))
        if self._tests.check_again_at is not None and not self.phase.has_workers:
            dues.append((self._tests.check_again_at, self._check_again))
        connection = self._connection
        dues += [(at, self._abandon) for at in self._leaving.deadlines(self.phase, connection)]
        if self._leaving.put_off_until is not None:
            dues.append((self._leaving.put_off_until, self._leaving.report))
        if connection.connected:
            dues.append((connection.drop_at, lambda now: self._effects.append(connection.drop(now))))
            dues.append((connection.beat_at, lambda _: None))  # `_report` sends it
        elif self.phase is not Phase.STOPPING:
            dues.append((self._search_deadline(), self._cut_off if self.phase in WORKING else self._end_search))
        return dues

    def _check_again(self, _: float) -> None:
        self._effects += self._tests.begin_check(is_idle=self._reuse.parked_until is None)

    def _search_deadline(self) -> float:
        """Return when the node stops looking for a coordinator."""
        patience_s = self._settings.join_timeout_s
        if self._knows_of_success:
            patience_s = min(patience_s, REPORT_WITHIN_S)
        return self._connection.search_deadline(self.phase, self._sweeping.over_at, patience_s)

    # The goal

    @property
    def _goal(self) -> Stimulus | None:
        return None if self._desired is None else stimulus_of(self._desired, self.run, self.round)

    def _pursue(self, now: float) -> None:
        """Work towards the goal, phase by phase, until the phase no longer changes."""
        while not self.exited:
            decided = self._leaving.exit_now(has_succeeded=self._knows_of_success)
            if decided is not None and not self.phase.has_workers:
                self._exit(decided)
                return
            goal, before = self._goal, self.phase
            if goal is not None:
                self._apply(goal, now)
            if self.phase is before:
                return

    def _apply(self, stimulus: Stimulus, now: float) -> None:
        """Carry out the act for a stimulus, and enter the next phase; an act that ends workers sets their stage."""
        works, row = self.phase in WORKING, TABLE[self._group.ending.stage or self.phase, stimulus]
        self._ACTS[row.act](self, row.to, now)
        if row.to is not None:
            self.phase = Phase.STOPPING if isinstance(row.to, EndStage) else row.to
        if works and row.act is Act.STOP and not self._group.alive:
            self._apply(Stimulus.DEAD, now)  # no worker had been started

    # Acts

    def _probe(self) -> None:
        """Enter the round of the goal, and find out whether its master can be reached, before workers are started."""
        desired = self._enter_round()
        assert desired.assignment is not None  # noqa: S101 - `run` carries one, see `messages`
        if desired.resume is None:
            self._effects += self._reuse.dismiss("the round begins from nothing, and so do its workers")
        delays_start = desired.assignment.group_rank > 0 and not self._reuse.are_all_parked(self._settings.workers)
        within_s = self._connection.probe_s
        self._effects.append(effects.Probe(desired.run, desired.round, desired.assignment, within_s, delays_start))

    def _start(self) -> None:
        group = self._group
        assert group.assignment is not None  # noqa: S101 - `_probe` made it with one
        group.begun, group.alive = True, set(range(self._settings.workers))
        self._effects += [effects.Start(self.run, self.round, group.assignment, group.origin, self._reuse.begin())]

    def _stop(self, stage: EndStage, now: float) -> None:
        """Enter a stage of ending the workers, or the first later one that applies."""
        desired, begins = self._desired, self._group.ending.stage is None
        self._effects += self._group.ending.enter(stage, self._terms, self._reuse, now)
        if begins and desired is not None and desired.goal is not Goal.RUN:
            is_own = self._leaving.leaves and desired.planned  # the round may be stopped for another one that leaves
            why = "this node leaves" if is_own else desired.reason
            self._notice(Level.INFO, "stopping", f"stopping the workers of round {self.round}: {why}")

    @property
    def _terms(self) -> Terms:
        """The terms on which the workers end, if they end now."""
        desired, group, leaving, settings = self._desired, self._group, self._leaving, self._settings
        cut_off = group.ending.cut_off
        on_purpose = leaving.exit is not None or cut_off or (desired is not None and desired.planned)
        planned = (group.ending.planned or on_purpose) and not leaving.hurry
        is_last = leaving.is_certain or cut_off or self._goal is Stimulus.EXIT
        return Terms(
            alive=group.alive,
            keeping=group.keeping if group.alive and not leaving.hurry else None,
            halt=None if desired is None or leaving.exit is not None else desired.halt,
            planned=planned,
            grace_s=settings.stop_timeout_s if planned else settings.abort_timeout_s,
            leave_within_s=None if is_last else settings.abort_timeout_s,
            signum=leaving.signum or Signals.SIGTERM,
            kills=settings.kills,
            hung=desired.remark if desired is not None and desired.goal is Goal.STOP else "",
        )

    def _kill(self) -> None:
        group = self._group
        ranks = [group.exits.rank(rank) for rank in sorted(group.alive - group.outlived.ranks)]
        left, stop_timeout_s = group.outlived.texts, self._settings.stop_timeout_s
        self._effects += group.ending.kill(ranks, left, stop_timeout_s, self._terms.hung)

    def _end_group(self, now: float) -> None:
        """Begin to sweep, since no worker of the round lives; after a failure, check this host for a next round."""
        terms = self._terms
        if self._group.result is not Phase.SUCCEEDED and not terms.planned and terms.leave_within_s is not None:
            # Not idle: what the workers have left behind may still hold memory of GPUs, and the sweep waits for that.
            self._effects += self._tests.begin_check(is_idle=False)
        self._sweep(now)

    def _sweep(self, now: float) -> None:
        self._effects.append(self._sweeping.begin(self._group, self._reuse, self._leaving, now))

    def _settle(self) -> None:
        """Enter the phase that the workers' end leads to, since nothing of the round is left."""
        self.phase, self._group.ending.stage = self._group.result, None  # `_apply` prefers a stage to the phase
        if self.phase is Phase.SUCCEEDED:
            self._notice(Level.INFO, "node_succeeded", f"all workers of this node succeeded in round {self.round}")

    def _enter_round(self) -> Desired:
        """Enter the round of the goal, and drop the state of an older round; return the goal."""
        desired = self._desired
        assert desired is not None  # noqa: S101 - goals come from it
        if (desired.run, desired.round) != (self.run, self.round):
            self._group = WorkerGroup(desired.run, desired.round, desired.assignment, desired.reason)
        return desired

    def _leave_as_directed(self) -> None:
        assert self._desired is not None  # noqa: S101 - goals come from it
        self._exit(self._leaving.exit_as_directed(self._desired))

    def _exit(self, decided: effects.Exit) -> None:
        self._effects += self._reuse.dismiss()
        self.exited = True
        self._effects.append(decided)

    def _notice(self, level: Level, event: str, text: str) -> None:
        self._effects.append(Notice(level, text, event))

    def _report(self, now: float) -> None:
        """Report the node's state if it has changed or a heartbeat is due."""
        if not self._connection.connected or self.exited:
            return
        observed = self.observed(now, beat=self._connection.beat_at <= now)
        if self._connection.record_report(observed, now):
            self._effects.append(effects.SendObserved(observed))

    _HANDLERS = CompleteMap[type, Callable[[Any, Any, float], object]]("events of a node")
    _HANDLERS |= {
        events.SearchBegan: _on_search_began,
        events.Prepared: lambda self, _, now: self._apply(Stimulus.PREPARED, now),
        events.SessionOpened: _on_session_opened,
        events.SessionClosed: _on_session_closed,
        events.DesiredReceived: _on_desired,
        events.CoordinatorDegraded: _on_degraded,
        events.TurnedAway: _on_turned_away,
        events.Reached: _on_probed,
        events.Unreached: _on_probed,
        events.WorkersStarted: _on_workers_started,
        events.StartFailed: _on_worker_end,
        events.WorkerExited: _on_worker_end,
        events.CollectiveFailed: _on_worker_end,
        events.WorkerOutlived: _on_worker_outlived,
        events.ReuseReported: lambda self, event, _: self._reuse.on_report(event),
        events.WorkerLeft: _on_worker_left,
        events.WorkerAborts: lambda self, event, now: self._reuse.on_abort(event, now),
        events.WorkerRefuses: lambda self, event, _: self._reuse.on_refusal(event),
        events.Keeping: _on_keeping,
        events.KeptSaved: _on_kept_saved,
        events.KeptChanged: lambda self, _, now: self._connection.make_beat_due(now),
        events.Swept: _on_swept,
        events.SweepFailed: _on_sweep_failed,
        events.GpusInUse: _on_gpus_in_use,
        events.HealthChecked: lambda self, event, now: self._effects.extend(self._tests.end_check(event, now)),
        events.PairTested: lambda self, event, _: self._tests.end_pair(event),
        events.EmbeddedCoordinatorEnded: _on_embedded_coordinator_end,
        events.LeaveRequested: _on_leave_requested,
        events.Tick: _on_tick,
    }
    _ACTS = CompleteMap[Act, Callable[[Any, Any, float], object]]("acts of a node")
    _ACTS |= {
        Act.NONE: lambda *_: None,
        Act.PROBE: lambda self, *_: self._probe(),
        Act.START: lambda self, *_: self._start(),
        Act.STOP: _stop,
        Act.SAVE_LATE: lambda self, *_: self._effects.extend(self._group.ending.save_late()),
        Act.KILL: lambda self, *_: self._kill(),
        Act.SWEEP: lambda self, _, now: self._end_group(now),
        Act.SETTLE: lambda self, *_: self._settle(),
        Act.ENTER: lambda self, *_: self._enter_round(),
        Act.LEAVE: lambda self, *_: self._leave_as_directed(),
    }
