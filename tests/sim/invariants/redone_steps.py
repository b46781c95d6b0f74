"""Invariants of the number of steps that a round is said to redo: it is true by all that was told, or none is said."""

from __future__ import annotations

from collections.abc import Sequence

from coordinatord.core.rounds.events import Event
from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.state.run import Run
from coordinatord.core.rounds.values.records import Record, RoundEnded, RoundFormed, TrainingBegan
from tests.sim.invariants.laws import Facts, Laws
from tests.sim.workers import Round


class RedoneLaws(Laws):
    """Watches what each round is said to redo, by the steps that nodes have reported to any life of a coordinator."""

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._told: dict[Round, tuple[int, int]] = {}
        """The furthest step that was reported of each round before its end, and which life last heard of any."""
        self._most: dict[str, int] = {}
        """The furthest step that was ever reported of each run: nodes may report a round that has ended."""
        self._on_record: set[Round] = set()
        """The rounds with a step on record: a coordinator that dies may have told nobody of others."""
        self._unknown: set[Round] = set()
        """The rounds of which nobody knew how far they came: later rounds need not know it either."""
        self.unknown = 0
        """How many rounds were said to redo an unknown number of steps."""

    def note_event(self, event: Event) -> None:
        """Take in the reports before the event."""
        if self.world.scenario.keeps is not None:
            for run in self.world.daemon.machine.jobs.values():
                self._take_in(run)

    def _take_in(self, run: Run) -> None:
        for observed in (member.observed for member in run.members.values()):
            steps, key = [step for step in observed.steps if step is not None], (observed.run, observed.round)
            if steps and observed.run == run.id:
                self._most[run.id] = max(self._most.get(run.id, 0), *steps)
                if observed.round == run.durable.round and run.durable.state is not State.FORMING:
                    self._told[key] = max(self._told.get(key, (0, 0))[0], *steps), self.world.daemon.life

    def recorded(self, at: float, record: Record) -> None:
        """Note that a round has begun to train, or has ended after steps of which this life has heard."""
        if isinstance(record, TrainingBegan | RoundEnded):
            key = record.run, record.round
            if isinstance(record, TrainingBegan) or self._told.get(key, (0, -1))[1] == self.world.daemon.life:
                self._on_record.add(key)

    def decided(self, records: Sequence[Record]) -> None:
        """Check what a round is said to redo."""
        for run, record in self.facts.of_runs(records):
            if isinstance(record, RoundFormed):
                self._judge(run, record)

    def _judge(self, run: Run, record: RoundFormed) -> None:
        self._take_in(run)
        point, life = record.resume, self.world.daemon.life
        told = {key: told for key, told in self._told.items() if key[0] == run.id}
        told = {key: (step, at) for key, (step, at) in told.items() if at == life or key in self._on_record}
        last = max(told, default=None)
        heard = last is not None and told[last][1] == life
        if point is not None and point.redone is not None:
            known = [step for key, (step, _) in told.items() if key == last or key not in self._unknown]
            least = max(known, default=0) - point.step
            text = "round %d is said to redo %d steps: at least %d, and at most %d from %d"
            most = max(0, self._most.get(run.id, 0) - point.step)
            self.check(least <= point.redone <= most, text, record.round, point.redone, least, most, point.step)
        elif point is not None:
            self.check(not heard, "it is not said how many steps round %d redoes, and %s is known", record.round, last)
            self.unknown += point.round > 0
        if last is not None and not heard:
            self._unknown.add(last)
