"""The agent of a node and a coordinator that is confused: it sends any legal message, at any time.

Each input is a sequence of events. The host does what the agent wants, sooner or later. The agent must not fail, must
report only what is legal, and must never start workers for a round that is over; `Bench` checks what it wants of them.
"""

from typing import Any

from coordinatord.protocol.codec import decode, encode
from coordinatord.protocol.fields import COUNTER_MAX, HEARTBEAT_S_MIN, RANKS_MAX
from coordinatord.protocol.messages import Assignment, Degraded, Desired, Goal, Observed, Outcome, Refused
from coordinatord.protocol.pair_messages import PairResult
from coordinatord.protocol.schema import SchemaError
from coordinatord.protocol.versions import SUPPORTED
from nodeclient.core import effects, events, host_health
from nodeclient.core.agent_settings import Settings
from tests.fuzz.choices import Choices, draw
from tests.support.bench import Bench

PAUSES_S = (0.0, 0.001, 0.3, 1.0, 5.5, 31.0)

SLEEPS_S = (*PAUSES_S, 400.0, 90_000.0)
"""How long the process may be stopped, so that its timer does not ring."""

EVENTS_MAX = 120

EFFECTS_MAX = 24
"""What one event may lead to at most."""

ANSWERED = (
    effects.Probe,
    effects.Start,
    effects.Terminate,
    effects.Kill,
    effects.Sweep,
    effects.SaveKept,
    effects.HaltWorkers,
    effects.CheckHealth,
    effects.RunPairTest,
)
"""What the agent asks for, and is told later."""


class Host:
    """A host with an agent, and a coordinator that says what it likes."""

    def __init__(self, choices: Choices) -> None:
        self._choices = choices
        workers, preloads, kills, keeps = (
            choices.of((1, 2)),
            choices.one_in(4),
            not choices.one_in(8),
            choices.one_in(2),
        )
        settings = Settings(workers, 60.0, 10.0, preloads=preloads, keeps=keeps, checks_health=True, kills=kills)
        self._bench = Bench(settings)
        self._bench.reaches = False
        self._open = False
        self._asked: list[effects.Effect] = []
        """What the agent has asked for, and is not done yet."""
        self._started: dict[str, int] = {}
        """The latest round whose workers were started, of the run that the agent is in: it remembers no other."""
        self._handle(events.SearchBegan())
        if preloads:
            self._asked.append(effects.Notice(effects.Level.INFO, "", "prepare"))

    def act(self) -> None:
        """Do what the next choices say."""
        step, bench = self._choices.byte() % 16, self._bench
        if bench.agent.exited:
            self._handle(events.Tick())
        elif step < 6:
            self._receive()
        elif step < 10:
            self._do_next()
        elif step == 10:
            self._end_worker(self._choices.of((0, 1, -15, -9, 255)))
        elif step in {11, 12}:
            self._judge(bench.advance(self._choices.of(PAUSES_S)))
        elif step == 13:
            bench.now += self._choices.of(SLEEPS_S)
            self._handle(events.Tick())
        elif step == 14:
            self._close()
        elif self._choices.one_in(4) and bench.alive and not bench.starting:
            self._report_kept_state()
        elif self._choices.one_in(8):
            self._handle(events.LeaveRequested(*self._choices.of(((15, False), (2, False), (15, True)))))

    def end(self) -> None:
        """Let the user end it: it does, whatever it has been told, and no worker is left."""
        self._close()
        for _ in range(2):
            self._handle(events.LeaveRequested(15))
        for _ in range(8):
            while self._asked:
                self._do_next()
            while self._bench.alive:
                self._end_worker(-9)
            self._judge(self._bench.advance(30.0))
        assert self._bench.agent.exited

    # What happens to it

    def _receive(self) -> None:
        if not self._open:
            self._open = True
            self._handle(events.SessionOpened("coordinator"))
            return
        version = self._choices.of(SUPPORTED)
        try:
            kind: type[Any] = self._choices.of((Desired, Desired, Desired, Desired, Desired, Degraded, Refused))
            said: Any = decode(encode(self._draw(kind), version), kind)
        except SchemaError:
            self._close()  # as the shell does
            return
        if isinstance(said, Desired):
            self._handle(events.DesiredReceived(said))
        elif isinstance(said, Degraded):
            self._handle(events.CoordinatorDegraded(said))
        else:
            self._handle(events.TurnedAway(said))
            self._close()

    def _close(self) -> None:
        self._open = False
        self._handle(events.SessionClosed("it was closed"))

    def _do_next(self) -> None:
        if not self._asked:
            return
        bench = self._bench
        match self._asked.pop(0):
            case effects.Notice() | effects.SaveKept() | effects.HaltWorkers() as wanted:
                self._handle(events.Prepared() if isinstance(wanted, effects.Notice) else events.KeptSaved())
            case effects.Probe(run, number):
                answers = (events.Reached(run, number), events.Unreached(run, number, "no answer"))
                self._handle(answers[self._choices.one_in(4)])
            case effects.Start():
                fails = self._choices.one_in(6)
                self._judge(bench.start_failed(bench.settings.workers - 1) if fails else bench.started())
            case effects.Terminate() | effects.Kill():
                self._end_worker(self._choices.of((-15, 0, 143)))
            case effects.CheckHealth() | effects.RunPairTest() as wanted:
                self._end_test(wanted)
            case effects.Sweep(checks_gpus):
                self._end_sweep(checks_gpus)

    def _end_test(self, wanted: effects.CheckHealth | effects.RunPairTest) -> None:
        if isinstance(wanted, effects.CheckHealth):
            self._handle(events.HealthChecked(self._choices.of((0, 1, 2, 3, None)), "GPU\0"))
        elif wanted.order is not None:
            self._handle(events.PairTested(PairResult(wanted.order.number, self._choices.of((None, 50.0)), 1.0)))

    def _end_sweep(self, checks_gpus: bool) -> None:
        if checks_gpus and self._choices.one_in(8):
            process = host_health.GpuProcess(7, "n\n", left_behind=self._choices.one_in(2))
            self._judge(self._bench.gpus_in_use(host_health.GpuUse("nvidia0", 1 << 36, (process,))))
        else:
            self._judge(self._bench.sweep_failed() if self._choices.one_in(8) else self._bench.swept())

    def _report_kept_state(self) -> None:
        within_s = self._choices.of((1.0, 0.0, 30.0))
        rank, of_error = min(self._bench.alive), events.Diagnosis(pid=1, error="boom\n")
        told: tuple[events.Event, ...] = (
            events.Keeping(within_s, writes_checkpoints=self._choices.one_in(2)),
            events.KeptChanged(),
            events.ReuseReported(rank, able=not self._choices.one_in(8)),
            events.WorkerLeft(rank),
            events.CollectiveFailed(rank, 1, of_error, age_s=self._choices.of((0.0, 100.0))),
            events.WorkerAborts(rank, self._choices.of((None, 0.5))),
            events.WorkerRefuses(rank, "no\n"),
        )
        self._handle(self._choices.of(told))

    def _end_worker(self, code: int) -> None:
        if self._bench.alive and not self._bench.starting:
            age_s = self._choices.of((0.0, 0.5, 100.0))
            self._judge(self._bench.exited(min(self._bench.alive), code, "boom\n", age_s))

    def _draw(self, kind: type[Any]) -> Any:
        choices, agent = self._choices, self._bench.agent
        choices.wild = choices.one_in(32)
        goal = choices.of((Goal.RUN, Goal.STOP, *Goal))
        drawn = {
            "run": lambda: choices.of((agent.run, agent.run, "e-1", "e-2", "")),
            "round": lambda: choices.of((agent.round, agent.round + 1, agent.round + 1, 0, 1, 7, COUNTER_MAX)),
            "goal": lambda: goal,
            "assignment": lambda: self._assignment() if goal is Goal.RUN or choices.one_in(64) else None,
            "outcome": lambda: self._outcome() if goal is Goal.EXIT or choices.one_in(64) else None,
            "heartbeat_s": lambda: choices.of((1.0, HEARTBEAT_S_MIN, 0.0, 600.0, 86_400.0)),
            "lease_s": lambda: choices.of((5.0, 0.5, 0.0, 86_400.0)),
        }
        return draw(choices, kind, drawn)

    def _assignment(self) -> Any:
        choices = self._choices
        ranks = (0, 0, 1, RANKS_MAX - 1, RANKS_MAX)
        return draw(choices, Assignment, {"first_rank": lambda: choices.of(ranks), "master_node": lambda: "n1"})

    def _outcome(self) -> Any:
        return draw(self._choices, Outcome, {})

    # What the agent wants

    def _handle(self, event: events.Event) -> None:
        was_exited = self._bench.agent.exited
        wanted = self._bench.submit(event)
        assert len(wanted) <= EFFECTS_MAX
        assert not (was_exited and wanted), "nothing follows the end"
        self._judge(wanted)

    def _judge(self, wanted: list[effects.Effect]) -> None:
        """Check what the agent wants, and note what it will be told later."""
        agent = self._bench.agent
        assert not any(isinstance(effect, effects.Exit) for effect in wanted[:-1]), "nothing follows the end"
        self._started = {run: number for run, number in self._started.items() if run == agent.run}
        for effect in wanted:
            if isinstance(effect, effects.Start):
                assert effect.round > self._started.get(effect.run, -1), "the round is over"
                self._started[effect.run] = effect.round
        self._asked += (effect for effect in wanted if isinstance(effect, ANSWERED))
        decode(encode(agent.observed(self._bench.now, beat=True)), Observed)  # what it may report is legal
        if any(isinstance(effect, effects.Reconnect) for effect in wanted):
            self._close()


def agent(data: bytes) -> int:
    """Play a sequence; return the number of its events."""
    choices = Choices(data)
    host = Host(choices)
    events_played = 0
    while choices.left and events_played < EVENTS_MAX:
        host.act()
        events_played += 1
    host.end()
    return events_played
