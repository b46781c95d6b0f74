"""Invariants of where each second of a run went, by what really happened to nodes and workers.

They know when workers lived, when a round broke and when nodes were there. They do not know how the ledger came to its
numbers. `time_ledger` checks that these add up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from coordinatord.core.journal import Decided
from coordinatord.core.machine import Coordinator
from coordinatord.core.rounds.events import Event
from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.state.run import Health, Run
from coordinatord.core.rounds.values.records import (
    NodeLost,
    NodeReleased,
    Record,
    RoundEnded,
    RoundFormed,
    RoundStarted,
    RoundStopped,
    RunEnded,
    RunOpened,
    TrainingBegan,
    TrainingCaughtUp,
    TrainingStalled,
)
from coordinatord.core.rounds.values.time_ledger import Activity, Spent
from coordinatord.core.rounds.values.training_progress import STALL_S_MIN, STEP_APART_S
from coordinatord.protocol.messages import Goal, Phase, Result
from tests.sim.invariants.laws import Facts, Laws
from tests.sim.invariants.time_ledger import EXACT_S, Accounted, LedgerLaws, Page, are_so_many
from tests.sim.workers import STEP_S, Round

if TYPE_CHECKING:  # the world imports its invariants
    from tests.sim.host import Host

TIGHT_S = 2.0
"""A heartbeat, the time that the connection of a process that died lingers, and that of a few messages."""

LOOSE_S = 26.0
"""The longest lease, and the longest that messages are delayed where the network is bad."""

LOOK_EVERY_S = 0.4
"""The interval at which it is checked whether a round is undisturbed."""

CALM_S = 2.0
"""The time within which a message of a healthy node arrives."""

JOINS_WITHIN_S = 0.5
"""The time that a `Join` takes on its way: a node that comes back counts as waiting from its sending on."""


class TimeLaws(Laws):
    """Watches the activities of one world."""

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self.ledger = LedgerLaws(facts, self._judge_spent)
        self._formed_at: dict[Round, tuple[float, Spent]] = {}
        """When each round was formed, and the ledger of its run by then."""
        self._started_at: dict[Round, float] = {}
        """When all workers of each round were known to be started."""
        self._running_at: dict[Round, float] = {}
        """The time from which each round trained, if it was not broken."""
        self._heard_from: dict[Round, float] = {}
        """The time since which a node was connected when the first step of each round became known. The round may have
        done steps before that, while its connections were dead, and no report shows when they began."""
        self._quiet_until: dict[Round, float] = {}
        """The time until which nothing has disturbed each round."""
        self._known_after: dict[Round, float] = {}
        """When the coordinator could first know that a round had broken."""
        self._stalled_at: dict[Round, float] = {}
        """When a stall of each round was recorded: it settles the time before, so no break is dated before it."""
        self._unseen_break: set[Round] = set()
        """Rounds that broke while the nodeclient which could have reported it was stopped, or cut off."""
        self._broken_twice: set[Round] = set()
        """Rounds of which a worker failed by itself after another one was gone."""
        self._reached: dict[str, int] = {}
        """The furthest step that each run has reached, by its records."""
        self._looked_at = 0.0
        self._enough_from: dict[str, float] = {}
        """The time since which enough nodes have evidently been ready, by run."""
        self._few_from: dict[str, float] = {}
        """The time since which fewer nodes have been connected than a round needs, by run."""
        self._few_at: dict[str, float] = {}
        """When the coordinator could last see that fewer nodes were connected than a round needs, by run."""

    # Events

    def note_event(self, event: Event) -> None:
        """Note an event that the coordinator is about to handle."""
        now, machine = self.world.queue.now, self.world.daemon.machine
        run = machine.jobs.get("job")
        if run is not None and run.durable.state is State.FORMING:
            self._look_at_forming(run, now)
        elif run is not None and now - self._looked_at >= LOOK_EVERY_S:
            self._looked_at = now
            self._look_at_round((run.id, run.durable.round), now)

    def _look_at_round(self, key: Round, now: float) -> None:
        training = self.world.trainings.get(key)
        if training is None or key not in self._formed_at or self.world.state not in {State.STARTING, State.RUNNING}:
            return
        if training.broken:
            self._note_known(key, now)
        elif (
            key not in self.facts.disturbed
            and self.facts.upset_at < self._formed_at[key][0]
            and self.facts.was_quiet(key)
        ):
            self._quiet_until[key] = now
            self._look_at_steps(self.world.daemon.machine.jobs["job"], key)

    def _note_known(self, key: Round, now: float) -> None:
        if self.facts.upset_at != now and self.world.trainings[key].broken:
            self._known_after.setdefault(key, now)

    def _look_at_forming(self, run: Run, now: float) -> None:
        hosts = [host for host in self.world.hosts.values() if host.session is not None and host.session.established]
        if are_so_many(run.spec.nodes_min, hosts, lambda host: host.well):
            self._few_from.pop(run.id, None)
        elif self.world.daemon.machine.store_error is None:
            since = self._few_from.setdefault(run.id, now)
            if now - since >= self._lease_s:  # before, it could not see that nodes were not connected
                self._few_at[run.id] = now
        enough = are_so_many(run.spec.nodes_min, hosts, lambda host: self._evidently_waits(host, run, now))
        if not enough or now - self.facts.upset_at < CALM_S or not self._reports_at_once:
            self._enough_from.pop(run.id, None)
        else:
            self._enough_from.setdefault(run.id, now)

    def _evidently_waits(self, host: Host, run: Run, now: float) -> bool:
        agent, session = host.agent, host.session
        if agent is None or agent._desired is None or session is None or not session.established:
            return False
        waits = agent._desired.goal is Goal.WAIT and agent._desired.run == run.id and agent.phase is Phase.IDLE
        known = run.members.get(host.node)
        leaves = agent._leaving.leaves or (known is not None and known.leaves)
        calm = host.well and now - host.troubled_until > CALM_S
        return waits and calm and not leaves and agent._connection.connected and host.name == host.node

    @property
    def _reports_at_once(self) -> bool:
        network = self.world.scenario.network
        return not (network.harsh or network.spike_chance or self.world.faults["network slow"])

    def failed(self, host: Host, key: Round) -> None:
        """Note that a worker fails by itself."""
        if host.paused or host.is_cut:
            self._unseen_break.add(key)
        if self.world.training(key).broken:
            self._broken_twice.add(key)

    def gone(self, host: Host) -> None:
        """Note that workers of a host are gone, so that their peers fail or hang."""
        if host.paused or host.is_cut:
            self._unseen_break.add(host.workers.round)

    # The coordinator's lives

    def restored(self, machine: Coordinator, past: Sequence[Decided]) -> None:
        """Note that a coordinator has started."""
        self._enough_from.clear()
        self._known_after.clear()  # events that were only in memory are forgotten
        reached = {run.id: run.reached for run in self.facts.replica.jobs.values()}
        self._reached = {run: step for run, step in reached.items() if step is not None}

    # Seconds

    def decided(self, records: Sequence[Record]) -> None:
        """Note that there may be too few nodes for a moment."""
        for record in records:
            if isinstance(record, NodeLost | NodeReleased):
                self._enough_from.pop(record.run, None)

    def _judge_spent(self, page: Page | None, record: Accounted) -> None:
        assert record.spent is not None
        now = self.world.queue.now
        if page is not None and isinstance(record, RoundFormed):
            self._judge_wait(page, record)
        match record:
            case RoundFormed():
                self._formed_at[record.run, record.round] = now, record.spent
            case RoundStarted():
                self._started_at[record.run, record.round] = now
                if not record.steps_awaited and not self.world.scenario.workers.announces_in(record.round):
                    self._running_at[record.run, record.round] = now
            case TrainingBegan() | TrainingCaughtUp() | TrainingStalled() | RoundEnded():
                self._judge_steps(record)
            case RoundStopped():
                self._judge_round_time((record.run, record.round), record)
            case RunEnded() if page is not None and page.kind not in {RunOpened, RoundStopped, RoundEnded}:
                self._judge_round_time((record.run, page.round), record)

    def _judge_steps(self, record: TrainingBegan | TrainingCaughtUp | TrainingStalled | RoundEnded) -> None:
        match record:
            case TrainingBegan():
                self._judge_first_step(record)
            case TrainingCaughtUp():
                self._judge_new_steps(record)
            case TrainingStalled():
                self._judge_stall(record)
            case RoundEnded():
                self._judge_reached(record)

    def _judge_wait(self, page: Page, record: RoundFormed) -> None:
        """Check that time counts as waiting where nodes are too few, and as rendezvous where enough are ready."""
        now = self.world.queue.now
        gathered = record.spent.rendezvous - page.spent.rendezvous
        enough = self._enough_from.pop(record.run, None)
        if enough is not None and page.life == self.world.daemon.life:
            least = (now - max(enough, page.now)) * (1 - self.world.scenario.skew) - JOINS_WITHIN_S
            self.check(gathered >= least, "%.3f s of rendezvous, and nodes were there for %.3f s", gathered, least)
        self._few_from.pop(record.run, None)
        few = self._few_at.pop(record.run, None)
        if few is not None:
            most = (now - few) * (1 + self.world.scenario.skew)
            most += self._lease_s if self._reports_at_once and self.facts.upset_at < page.now else LOOSE_S
            known = gathered + record.spent.starting - page.spent.starting
            self.check(known <= most, "%.3f s without waiting, and there were too few for all but %.3f", known, most)

    @property
    def _lease_s(self) -> float:
        policy = self.world.scenario.policy
        return policy.heartbeats_per_lease * policy.heartbeat_s + TIGHT_S

    def _judge_first_step(self, record: TrainingBegan) -> None:
        """Check that a round that reports its steps trains from the first one, and not before."""
        key = (record.run, record.round)
        training = self.world.trainings[key]
        first_s = training.first_step_s
        stepped = training.whole_at is not None and first_s is not None
        self.check(stepped, "round %d trains, and no worker has taken a step", record.round)
        grew = record.spent.redone > self._formed_at[key][1].redone
        repeats = any(training.first_step < step for step in self._reached_before(key))
        self.check(repeats or not grew, "round %d counts as repeating steps, and begins with new ones", record.round)
        assert training.whole_at is not None
        assert first_s is not None
        stepped_at = training.whole_at + first_s
        self._running_at[key] = max(self._started_at.get(key, 0.0), stepped_at)
        sessions = (host.session for host in training.hosts.values() if host.session is not None)
        joined = (each.host.joined_at for each in sessions if each.established and not each.broken)
        self._heard_from[key] = min(joined, default=self.world.queue.now)
        before = self._formed_at[key][1]
        trained = record.spent.training + record.spent.redone - before.training - before.redone
        most = (self.world.queue.now - stepped_at) * (1 + self.world.scenario.skew) + TIGHT_S
        most += self.ledger.odd_s.get(record.run, 0.0)
        self.check(trained <= most, "round %d trained for %.3f s, and stepped for %.3f", record.round, trained, most)

    def _reached_before(self, key: Round) -> list[int]:
        """Return the last step of each earlier round of the run."""
        trainings = [training for at, training in self.world.trainings.items() if at[0] == key[0] and at[1] < key[1]]
        return [stepped[0] for stepped in (training.stepped() for training in trainings) if stepped is not None]

    def _judge_new_steps(self, record: TrainingCaughtUp) -> None:
        """Check that a round whose time no longer counts as redone has reached the furthest step of earlier rounds."""
        stepped, reached = self.world.trainings[record.run, record.round].stepped(), self._reached.get(record.run)
        known = stepped is not None and reached is not None and stepped[0] >= reached
        late = self.world.scenario.network.harsh  # a late report looks like steps that are counted anew
        self.check(known or late, "round %d has come to step %s again, and is at %s", record.round, reached, stepped)

    def _judge_reached(self, record: RoundEnded) -> None:
        """Check that the end of a round records the furthest step of this round and of those before."""
        here = [member.observed for member in self.world.run.members.values()]
        steps = [step for seen in here if (seen.run, seen.round) == (record.run, record.round) for step in seen.steps]
        known = max([-1, self._reached.get(record.run, -1), *(step for step in steps if step is not None)])
        self.check((record.reached or 0) >= known, "round %d has come to step %d, and %s", record.round, known, record)
        if record.reached is not None:
            self._reached[record.run] = record.reached

    def _judge_stall(self, record: TrainingStalled) -> None:
        """Check that training which is recorded as stalled has done no step for long."""
        key = (record.run, record.round)
        self._stalled_at[key] = self.world.queue.now
        stepped = self.world.trainings[key].stepped()
        self.check(stepped is not None, "round %d has stalled, and had not begun", record.round)
        assert stepped is not None
        if self._is_plain(key):
            least = STALL_S_MIN * (1 - self.world.scenario.skew) - STEP_S - CALM_S
            self.check(stepped[1] >= least, "round %d has stalled, %.3f s after a step", record.round, stepped[1])

    def _look_at_steps(self, run: Run, key: Round) -> None:
        """Check that training without a step for long has stalled, and that other training has not."""
        training = self.world.trainings[key]
        stepped = training.stepped()
        if stepped is None or training.broken or not (run.durable.stepped and self._is_plain(key)):
            return
        standstills = training.standstills
        if standstills.section_end > 0 or any(standstill.section is not None for standstill in standstills.known):
            return  # see `hangs`
        idle_s, stalled = stepped[1], run.health is Health.STALLED
        patience_s = run.progress.patience_s * (1 + self.world.scenario.skew) + 2 * CALM_S
        self.check(stalled or idle_s < patience_s, "no step for %.3f s, and round %d counts as well", idle_s, key[1])
        longest_s = max((end - begin for begin, end in training.stalls), default=0.0)
        over = self.world.queue.now > training.stalls_until + CALM_S
        # Between the end of the training and that of its workers there is no step either.
        usual = training.done_at == math.inf and (longest_s < STALL_S_MIN - CALM_S or over)
        self.check(not stalled or not usual, "round %d does steps, and counts as stalled", key[1])
        self._look_at_repeated_steps(run, stepped[0])

    def _look_at_repeated_steps(self, run: Run, step: int) -> None:
        """Check that repeated steps count as redone, and that new ones do not."""
        reached, repeats = self._reached.get(run.id), run.durable.activity_at_work is Activity.REDONE
        late = CALM_S / STEP_S
        self.check(
            not repeats or (reached is not None and step < reached + late), "step %d is new, and counts as redone", step
        )
        self.check(
            repeats or reached is None or step >= reached,
            "step %d is done again, up to %s, and counts as new",
            step,
            reached,
        )

    def _is_plain(self, key: Round) -> bool:
        """Whether all reports of a round's nodes have come at once since it was formed."""
        formed = self._formed_at.get(key)
        if formed is None or not self._reports_at_once or key in self.facts.disturbed:
            return False
        return (
            self.facts.upset_at < formed[0]
            and self._was_heard(key, formed[0])
            and not self.world.faults["other settings"]
        )

    def _was_heard(self, key: Round, since: float) -> bool:
        """Whether no report of a round's nodes was delayed since then, also of nodes that have died."""
        training = self.world.trainings.get(key)
        hosts = training.hosts.values() if training is not None else ()
        return all(_held_up_until(host) < since for host in hosts)

    def _judge_round_time(self, key: Round, record: RoundStopped | RunEnded) -> None:
        """Check that a round was at work from its formation until it broke, as exactly as that could be known."""
        formed = self._formed_at.get(key)
        training = self.world.trainings.get(key)
        if formed is None:
            return
        odd_s = self.ledger.odd_s.get(key[0], 0.0)
        now, skew, policy = self.world.queue.now, self.world.scenario.skew, self.world.scenario.policy
        formed_at, before = formed
        trained = record.spent.at_work - before.at_work
        worked = trained + record.spent.starting - before.starting
        tight = self._reports_at_once and self.facts.upset_at < formed_at and self._was_heard(key, formed_at)
        # The round was stopped for another reason than what broke it, which was not known yet.
        is_other = isinstance(record, RoundStopped) and (record.planned or record.condition == "unrestorable")
        by_chance = key in self._broken_twice or is_other
        close_s = TIGHT_S if tight else LOOSE_S
        slack = odd_s + (max(self._lease_s * policy.lease_stretch_max, close_s) if by_chance else close_s)
        # At work no longer than the round lived.
        whole = training is not None and len(training.hosts) == len(self.facts.formed[key].nodes)
        self.check(whole or trained < EXACT_S, "round %d trained before it was whole", key[1])
        if training is not None and training.broken and not (self.ledger.replaces or key in self._unseen_break):
            self._note_known(key, now)
            known = max(training.broken_at, self._known_after.get(key, now))
            most = max(training.broken_at if tight else known, self._stalled_at.get(key, 0.0))
            # The recorded start counts, also if a node of the round was gone by then.
            lived = max(0.0, max(most, self._running_at.get(key, 0.0)) - formed_at) * (1 + skew) + slack
            self.check(worked <= lived, "round %d worked for %.3f s, and lived for %.3f", key[1], worked, lived)
            from_ = self._running_at.get(key, formed_at)
            lived = max(0.0, most - from_) * (1 + skew) + slack
            self.check(trained <= lived, "round %d trained for %.3f s, and lived for %.3f", key[1], trained, lived)
        # Until the first step of workers that report steps, all time counts as starting.
        ended_well = isinstance(record, RunEnded) and record.outcome.result is Result.SUCCEEDED
        if self.world.scenario.workers.announces_in(key[1]) and tight and not ended_well:
            ran = record.spent.running - before.running
            self.check(ran <= slack, "round %d ran for %.3f s, and was to report its steps", key[1], ran)
        # Stalled no longer than no step was done. The last step before a stall may look like the one before that, and
        # reports show no step between their last ones.
        if tight and training is not None:
            since_s = max(0.0, now - min(training.broken_at, training.done_at))
            unknown_s = len(training.stalls) * (STEP_S + STEP_APART_S + policy.heartbeat_s)
            most = (training.stalled_s(now) + since_s + unknown_s) * (1 + skew) + slack
            stalled = record.spent.stalled - before.stalled
            self.check(stalled <= most, "round %d stalled for %.3f s, of %.3f", key[1], stalled, most)
        # At work no shorter than the round was undisturbed.
        quiet = self._quiet_until.get(key)
        slack = (TIGHT_S if self._reports_at_once else LOOSE_S) + odd_s
        if quiet is not None and key not in self.ledger.silent:
            least = (quiet - formed_at) * (1 - skew) - slack
            self.check(worked >= least, "round %d worked for %.3f s, and was well for %.3f", key[1], worked, least)
            if key in self._running_at:
                from_ = max(self._running_at[key], self._heard_from.get(key, 0.0))
                least = (quiet - from_) * (1 - skew) - slack
                self.check(trained >= least, "round %d trained for %.3f s, not for %.3f", key[1], trained, least)


def _held_up_until(host: Host) -> float:
    """Return until when reports of a host may have been delayed, not counting its end."""
    if host.agent is None:
        return host.troubled_before
    return host.troubled_until if host.well else math.inf
