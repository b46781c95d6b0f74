"""The agent of a node and a coordinator that is confused: it sends any legal message, at any time.

Each input is a sequence of events. The host does what the agent wants, sooner or later. The agent must not fail, must
report only what is legal, and must never start workers while others live, or for a round that is over.
"""

from typing import Any

from coordinatord.protocol.codec import decode, encode
from coordinatord.protocol.fields import COUNTER_MAX, HEARTBEAT_S_MIN, RANKS_MAX
from coordinatord.protocol.messages import Assignment, Degraded, Desired, Goal, Observed, Outcome, Refused
from coordinatord.protocol.pair_messages import PairResult
from coordinatord.protocol.schema import SchemaError
from coordinatord.protocol.versions import SUPPORTED
from nodeclient.core import effects, events, host_health
from nodeclient.core.agent import Agent
from nodeclient.core.agent_settings import Settings
from tests.fuzz.choices import Choices, draw

PAUSES_S = (0.0, 0.001, 0.3, 1.0, 5.5, 31.0, 400.0, 90_000.0)

EVENTS_MAX = 120

TICKS_MAX = 400
"""How often the agent's timer may ring in one pause; after more of them the rest of a long pause is slept."""

EFFECTS_MAX = 24
"""What one event may lead to at most."""

PORT = 40_000


class Host:
    """A host with an agent, and a coordinator that says what it likes."""

    def __init__(self, choices: Choices) -> None:
        self._choices = choices
        self._workers = choices.of((1, 2))
        self._now = 100.0
        preloads, kills, keeps = choices.one_in(4), not choices.one_in(8), choices.one_in(2)
        settings = Settings(self._workers, 60.0, 10.0, preloads=preloads, keeps=keeps, checks_health=True, kills=kills)
        self._agent = Agent(settings, PORT, self._now)
        self._open = False
        self._alive: set[int] = set()
        self._held: set[int] = set()
        self._asked: list[effects.Effect] = []
        """What the agent has asked for, and is not done yet."""
        self._started: dict[str, int] = {}
        """The latest round whose workers were started, of the run that the agent is in: it remembers no other."""
        self._kills = 0
        self._handle(events.SearchBegan())
        if settings.preloads:
            self._asked.append(effects.Notice(effects.Level.INFO, "", "prepare"))

    def act(self) -> None:
        """Do what the next choices say."""
        step = self._choices.byte() % 16
        if self._agent.exited:
            self._handle(events.Tick())
        elif step < 6:
            self._receive()
        elif step < 10:
            self._do_next()
        elif step == 10 and self._alive and self._has_started:
            self._end_worker(self._choices.of((0, 1, -15, -9, 255)))
        elif step in {11, 12}:
            self._pass(self._choices.of(PAUSES_S))
        elif step == 13:
            self._now += self._choices.of(PAUSES_S)  # the process sleeps
            self._handle(events.Tick())
        elif step == 14:
            self._close()
        elif self._choices.one_in(4) and self._alive and self._has_started:
            self._report_kept_state()
        elif self._choices.one_in(8):
            self._handle(events.LeaveRequested(self._choices.of((15, 2))))

    def end(self) -> None:
        """Let the user end it: it does, whatever it has been told, and no worker is left."""
        self._close()
        for _ in range(2):
            self._handle(events.LeaveRequested(15))
        for _ in range(8):
            while self._asked:
                self._do_next()
            while self._alive:
                self._end_worker(-9)
            self._pass(30.0)
        assert self._agent.exited

    @property
    def _has_started(self) -> bool:
        """Whether no start is in progress: workers are known to the event loop when it is over."""
        return not any(isinstance(effect, effects.Start) for effect in self._asked)

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
        match self._asked.pop(0):
            case effects.Notice() | effects.SaveKept() | effects.HaltWorkers() as wanted:
                self._handle(events.Prepared() if isinstance(wanted, effects.Notice) else events.KeptSaved())
            case effects.Probe(run, number):
                answers = (events.Reached(run, number), events.Unreached(run, number, "no answer"))
                self._handle(answers[self._choices.one_in(4)])
            case effects.Start():
                if self._choices.one_in(6):
                    failed = self._workers - 1
                    self._alive -= {failed}
                    self._handle(events.StartFailed(failed, 71, "no memory"))
                else:
                    self._handle(events.WorkersStarted())
            case effects.Terminate() | effects.Kill():
                if self._alive and self._has_started:
                    self._end_worker(self._choices.of((-15, 0, 143)))
            case effects.CheckHealth() | effects.RunPairTest() as wanted:
                self._end_test(wanted)
            case effects.Sweep(looks_at_gpus):
                self._end_sweep(looks_at_gpus)

    def _end_test(self, wanted: effects.CheckHealth | effects.RunPairTest) -> None:
        if isinstance(wanted, effects.CheckHealth):
            self._handle(events.HealthChecked(self._choices.of((0, 1, 2, 3, None)), "GPU\0"))
        elif wanted.order is not None:
            self._handle(events.PairTested(PairResult(wanted.order.number, self._choices.of((None, 50.0)), 1.0)))

    def _end_sweep(self, looks_at_gpus: bool) -> None:
        if looks_at_gpus and self._choices.one_in(8):
            process = host_health.GpuProcess(7, "n\n", left_behind=self._choices.one_in(2))
            self._handle(events.GpusInUse((host_health.GpuUse("nvidia0", 1 << 36, (process,)),)))
        elif self._choices.one_in(8):
            self._handle(events.SweepFailed("a process does not die"))
        else:
            self._handle(events.Swept(PORT + self._choices.byte()))

    def _report_kept_state(self) -> None:
        within_s = self._choices.of((1.0, 0.0, 30.0))
        rank, of_error = min(self._alive), events.Diagnosis(pid=1, error="boom\n")
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
        local_rank = min(self._alive)
        self._alive.discard(local_rank)
        age_s = self._choices.of((0.0, 0.5, 100.0))
        self._handle(events.WorkerExited(local_rank, code, events.Diagnosis(pid=1, error="boom\n"), age_s))

    def _pass(self, seconds: float) -> None:
        until = self._now + seconds
        for _ in range(TICKS_MAX):
            due = self._agent.next_deadline()
            if self._agent.exited or due is None or due > until:
                break
            self._now = max(self._now, due)
            self._handle(events.Tick())
        else:
            assert seconds > HEARTBEAT_S_MIN * TICKS_MAX, "the timer never rests"
        self._now = until

    def _draw(self, kind: type[Any]) -> Any:
        choices, agent = self._choices, self._agent
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
        was_exited = self._agent.exited
        wanted = self._agent.handle(event, self._now)
        assert len(wanted) <= EFFECTS_MAX
        assert not (was_exited and wanted), "nothing follows the end"
        self._started = {run: number for run, number in self._started.items() if run == self._agent.run}
        for effect in wanted:
            match effect:
                case effects.Start(run, number):
                    assert not self._alive, "the workers of another round live"
                    assert number > self._started.get(run, -1), "the round is over"
                    assert set(effect.reused) == self._held, "those that wait go on, and nobody else"
                    self._started[run], self._held = number, set()
                    self._alive = set(range(self._workers))
                    self._asked.append(effect)
                case effects.Kill():
                    self._kills += 1
                    self._asked.append(effect)
                case (
                    effects.Probe()
                    | effects.Terminate()
                    | effects.Sweep()
                    | effects.SaveKept()
                    | effects.HaltWorkers()
                    | effects.CheckHealth()
                    | effects.RunPairTest()
                ):
                    self._asked.append(effect)
                case effects.Park(local_rank):
                    self._alive.remove(local_rank)
                    self._held.add(local_rank)
                case effects.Dismiss(local_ranks):
                    assert local_ranks, "nobody is meant"
                    assert self._held >= set(local_ranks), "they do not wait"
                    self._held -= set(local_ranks)
                case effects.Exit():
                    assert not self._held, "no worker outlives the agent"
                    assert effect is wanted[-1]
                    assert not self._alive, "no worker outlives the agent"
                case _:
                    pass
        decode(encode(self._agent.observed(self._now, beat=True)), Observed)  # what it may report is legal
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
