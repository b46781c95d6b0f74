"""Invariants of looks at workers, and of rounds that are ended as hung, by what the workers really did."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from coordinatord.core.rounds.effects import Look
from coordinatord.core.rounds.events import Event
from coordinatord.core.rounds.queries import past_round
from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.state.run import Run
from coordinatord.core.rounds.values.records import BusyWorkerAwaited, Record, RoundStopped
from coordinatord.core.rounds.values.training_progress import STALL_S_MIN
from coordinatord.core.watching.hang_watch import PAUSE_MAX_S
from coordinatord.protocol.messages import Launcher
from tests.sim.invariants.laws import Facts, Laws
from tests.sim.invariants.root_cause import RootCauseLaws
from tests.sim.worker_looks import LOOK_WITHIN_S, Doing, LastWork, Standstill
from tests.sim.workers import STEP_S, Round, Training

HUNG = "hung"

APART_S = 1.0
"""The least time between two looks."""

NAMED_WITHIN_S = 2 * LOOK_WITHIN_S + APART_S + 4.0
"""The longest time from the stall to the verdict: two looks, a pause, a heartbeat, and the commits in between."""

GIVEN_UP_AFTER_S = 2 * (10.0 + LOOK_WITHIN_S)
"""The delay by a lost look: it is waited for, and the look before it may have to be repeated."""

PAIR = 2

CLOCKS = 0.94
"""The least ratio of one time by two clocks."""


class HangLaws(Laws):
    """Watches the looks of one world."""

    def __init__(self, facts: Facts, root_cause: RootCauseLaws) -> None:
        super().__init__(facts)
        self._root_cause = root_cause
        self._stopped: set[Round] = set()
        self._looked: tuple[Round, int, float] = ("", 0), 0, -math.inf
        """The round of the last look, the life of the coordinator, and the time. Each life begins the looks anew."""
        self._lost = Counter[Round]()
        """The lost looks at each round."""
        self.named = 0
        """Hangs that were found."""
        self.unended = 0
        """Rounds that were stopped for a worker that did not end."""

    def looks(self, look: Look, *, is_lost: bool) -> None:
        """Check that a round is looked at only if it has begun and the job wants that, and that looks are apart."""
        key, now = (look.run, look.round), self.world.queue.now
        self._lost[key] += is_lost
        life = self.world.daemon.life
        before, of_life, at = self._looked
        is_first = (before, of_life) != (key, life)
        self.check(is_first or now - at >= APART_S * CLOCKS, "two looks are %.2f s apart", now - at)
        self._looked = key, life, now
        training = self.world.trainings[key]
        stepped = training.stepped()
        spec = self.world.run.spec
        has_begun = stepped is not None or bool(spec.hang_timeout_s)
        self.check(has_begun, "round %d is looked at, and had not begun", look.round)
        self.check(spec.hang_timeout_s != 0, "round %d is looked at, and its job wants no looks", look.round)
        self.check(spec.launcher is Launcher.NODECLIENT, "round %d is torchrun's, and looked at", look.round)

    def decided(self, records: Sequence[Record]) -> None:
        """Check verdicts."""
        for run, record in self.facts.of_runs(records):
            self._judge(run, record)

    def _judge(self, run: Run, record: Record) -> None:
        if isinstance(record, BusyWorkerAwaited):
            is_wanted = bool(run.spec.hang_timeout_s) and run.durable.stepped
            self.check(not is_wanted, "a restart was wanted, and there is a notice")
        if not isinstance(record, RoundStopped) or record.condition != HUNG:
            return
        key, now = (record.run, record.round), self.world.queue.now
        training = self.world.trainings[key]
        standstill = training.standstills.at(now) or training.standstills.hung
        self.check(key not in self._stopped, "round %d is stopped as hung a second time", record.round)
        self._stopped.add(key)
        if training.done_at < math.inf:
            self._judge_unended(run, record, training)
            return
        self.check(standstill is not None, "round %d is stopped as hung, and trains: %s", record.round, record.reason)
        assert standstill is not None
        wanted = standstill.doing.is_hang or (standstill.doing is Doing.COMPUTES and bool(run.spec.hang_timeout_s))
        self.check(wanted, "round %d is stopped as hung, and %s: %s", record.round, standstill.doing, record.reason)
        ends_job = self._is_left_to_torch(run, standstill)
        self.check(not ends_job, "round %d is stopped without a proof, and no restart is left", record.round)
        self.check(record.first_failure is not None, "round %d is stopped as hung, and nobody is named", record.round)
        assert record.first_failure is not None
        rank = record.first_failure.failure.rank
        either = standstill.doing is Doing.SKIPPED and self._workers(key) == PAIR  # each is where the other is not
        self.check(rank == standstill.culprit or either, "rank %d is blamed for rank %d", rank, standstill.culprit)
        stepped = training.stepped()
        assert stepped is not None
        usual_s = (run.spec.hang_timeout_s or STALL_S_MIN) if standstill.section is None else STALL_S_MIN
        least, idle_s = usual_s * CLOCKS - STEP_S, stepped[1]
        self.check(idle_s >= least, "round %d does no step for %.2f s, and is stopped", record.round, idle_s)
        least = 0.0 if standstill.section is None else standstill.section.limit_s * CLOCKS
        self.check(
            now - standstill.begin >= least,
            "round %d hangs for %.2f s, and is stopped",
            record.round,
            now - standstill.begin,
        )
        self.named += standstill.doing.is_hang
        # From here on it is a failure like any other.
        self._root_cause.hung(key, record.first_failure.node, record.first_failure.failure.exit_code)

    def _judge_unended(self, run: Run, record: RoundStopped, training: Training) -> None:
        """Check that a round is ended for a worker that does not end only if its user has said for how long it may.

        That time begins anew after its section. Without steps, it has to stand: one that works may take any time.
        """
        least, first, last = run.spec.hang_timeout_s, record.first_failure, training.standstills.last
        assert least
        assert first is not None
        assert last is not None
        waited_s = self.world.queue.now - max(training.exited_at, training.standstills.section_end)
        self.check(waited_s >= least * CLOCKS, "round %d is stopped, others ended %.2f s ago", record.round, waited_s)
        wanted = run.durable.stepped or last.work is LastWork.HANGS
        self.check(wanted, "round %d is stopped, and its last worker %s", record.round, last.work)
        lives = any(host.node == first.node and host.workers.alive for host in training.hosts.values())
        self.check(lives, "%s is blamed for a worker that does not end, and has none", first.node)
        self.unended += 1
        self._root_cause.hung(training.key, first.node, first.failure.exit_code)

    def note_event(self, event: Event) -> None:
        """Check that a round which hangs is ended in time. A single worker waits for no other one."""
        run = self.world.daemon.machine.jobs.get("job")
        if run is None:
            return
        key, now = (run.id, run.durable.round), self.world.queue.now
        training = self.world.trainings.get(key)
        if training is not None and run.durable.state is State.RUNNING and run.spec.hang_timeout_s:
            last, since = training.standstills.last, max(training.exited_at, training.done_at)
            lives = any(host.workers.alive for host in training.hosts.values())
            hangs = lives and last is not None and last.work is LastWork.HANGS
            patience_s = run.spec.hang_timeout_s * (1 if run.durable.stepped else PAIR) / CLOCKS
            most = patience_s + PAUSE_MAX_S + NAMED_WITHIN_S + self._lost[key] * GIVEN_UP_AFTER_S
            has_time = now - since < most or not hangs or training.broken or not self._is_calm(since, key)
            self.check(has_time, "round %d goes on, and a worker does not end", key[1])
        hung = None if training is None else training.standstills.hung
        if training is None or hung is None or run.durable.state is not State.RUNNING or run.spec.hang_timeout_s == 0:
            return
        if training.broken or not run.durable.stepped or self._workers(key) == 1 or not self._is_calm(hung.begin, key):
            return
        if self._is_left_to_torch(run, hung):
            return
        patience_s = run.progress.patience_s if hung.section is None else max(hung.section.limit_s, STALL_S_MIN)
        most = patience_s / CLOCKS + NAMED_WITHIN_S + self._lost[key] * GIVEN_UP_AFTER_S
        self.check(now - hung.begin < most, "round %d hangs for %.1f s, and goes on", key[1], now - hung.begin)

    def _is_left_to_torch(self, run: Run, standstill: Standstill) -> bool:
        """Whether torch's own timeout is to end a round: a restart would end the job, and only the pace shows a hang.

        A worker that stands still may only be slow. One that is in another collective than the others proves a hang.
        """
        total = run.durable.ledger.total(self.world.daemon.clock.read())
        is_proved = run.spec.hang_timeout_s is not None or standstill.doing is Doing.SKIPPED
        return past_round.is_last_round(run, total) and not is_proved

    def _workers(self, key: Round) -> int:
        return sum(ranks.workers for ranks in self.facts.formed[key].nodes)

    def _is_calm(self, since: float, key: Round) -> bool:
        """Whether nothing else has gone wrong since then."""
        world = self.world
        hosts = world.trainings[key].hosts.values()
        lately = all(host.well and host.troubled_until < since for host in hosts)
        return lately and self.facts.upset_at < since and world.daemon.idle and not world.scenario.network.harsh
