"""An agent on a test bench: the test is its coordinator, its processes and its clock.

The bench carries out each effect at once, so that a test only submits events. It fails on a wrong effect:
a start over living workers, two sweeps at a time, an end with workers alive.
"""

from __future__ import annotations

from typing import Any, TypeVar

from coordinatord.protocol.codec import decode, encode
from coordinatord.protocol.messages import (
    Degraded,
    Failure,
    Goal,
    LastOutput,
    Observed,
    RefusalCode,
    Refused,
    WhyCold,
)
from coordinatord.protocol.pair_messages import PairResult
from nodeclient.core.agent import Agent
from nodeclient.core.agent_settings import Settings
from nodeclient.core.effects import Dismiss, Effect, Exit, LeaveRound, Park, Probe, SaveKept, SendObserved, Start, Sweep
from nodeclient.core.events import (
    CollectiveFailed,
    CoordinatorDegraded,
    DesiredReceived,
    Event,
    GpusInUse,
    Keeping,
    KeptSaved,
    LeaveRequested,
    PairTested,
    Prepared,
    Reached,
    ReuseReported,
    SessionClosed,
    SessionOpened,
    StartFailed,
    SweepFailed,
    Swept,
    Tick,
    TurnedAway,
    Unreached,
    WorkerAborts,
    WorkerExited,
    WorkerLeft,
    WorkerOutlived,
    WorkerRefuses,
    WorkersStarted,
)
from nodeclient.core.host_health import GpuUse
from nodeclient.core.leftover_stages import Leftover
from tests.support.builders import a_desired, a_diagnosis

EffectT = TypeVar("EffectT", bound=Effect)

SETTINGS = Settings(workers=2, join_timeout_s=60.0, stop_timeout_s=10.0)

PORT = 40_001


class Bench:
    """One agent and its effects."""

    def __init__(self, settings: Settings = SETTINGS) -> None:
        self.settings = settings
        self.now = 0.0
        self.agent = Agent(settings, PORT, self.now)
        self.effects: list[Effect] = []
        self.alive: set[int] = set()
        """The workers that are in the round."""
        self.parked: set[int] = set()
        """The workers that are out of the round, and wait for the next one."""
        self.starting = False
        self.sweeping = False
        self.reaches = True
        """Whether masters answer at once."""
        self.ports = PORT

    # Events

    def submit(self, event: Event) -> list[Effect]:
        """Submit an event; return the agent's effects."""
        effects = self.agent.handle(event, self.now)
        for effect in effects:
            self._carry_out(effect)
        self.effects += effects
        for effect in list(effects):
            if isinstance(effect, Probe) and self.reaches:
                effects += self.submit(Reached(effect.run, effect.round))
        return effects

    def prepared(self) -> list[Effect]:
        """Have all modules imported."""
        return self.submit(Prepared())

    def open(self) -> list[Effect]:
        """Reach the coordinator."""
        return self.submit(SessionOpened("coordinator:29400"))

    def close(self, reason: str = "connection reset") -> list[Effect]:
        """Lose the coordinator, or fail to reach it, and do what is due then."""
        return [*self.submit(SessionClosed(reason)), *self.advance(0)]

    def receive(self, goal: Goal, **values: Any) -> list[Effect]:
        """Receive a desired state with this goal."""
        return self.submit(DesiredReceived(a_desired(goal, **values)))

    def refused(self, code: RefusalCode = RefusalCode.LIMIT, message: str = "no room", *, retry: bool) -> list[Effect]:
        """Refuse the node."""
        return self.submit(TurnedAway(Refused(code, message, retry)))

    def degraded(self, reason: str = "the disk is full") -> list[Effect]:
        """Receive that the coordinator lives, but decides nothing."""
        return self.submit(CoordinatorDegraded(Degraded(reason)))

    def reached(self, round_number: int = 1) -> list[Effect]:
        """Have the master of a round answer."""
        return self.submit(Reached("e-1", round_number))

    def unreached(self, round_number: int = 1, message: str = "it cannot reach 10.0.0.1") -> list[Effect]:
        """Have the master of a round not answer."""
        return self.submit(Unreached("e-1", round_number, message))

    def started(self, warm: int = 0, why_cold: WhyCold | None = None) -> list[Effect]:
        """Report that all workers are started, so many of them warm, and why the others are not."""
        self.starting = False
        return self.submit(WorkersStarted(warm, why_cold))

    def start_failed(self, local_rank: int = 0) -> list[Effect]:
        """Report that a worker cannot be started, nor those after it."""
        self.starting = False
        self.alive -= set(range(local_rank, self.settings.workers))
        return self.submit(StartFailed(local_rank, 127, "no such file: trian.py"))

    def exited(
        self, local_rank: int, exit_code: int, error: str = "", age_s: float = 0.0, over_s: float = 0.0
    ) -> list[Effect]:
        """End a worker, as was seen so long ago, when its program had been over for `over_s`."""
        self.alive.remove(local_rank)
        return self.submit(WorkerExited(local_rank, exit_code, a_diagnosis(error=error), age_s, over_s))

    def outlived(self, local_rank: int, program: str, pid: int) -> list[Effect]:
        """Have a worker exit that was asked to end, and leave this process of its group."""
        return self.submit(WorkerOutlived(local_rank, (Leftover(pid, program, str(local_rank)),)))

    def stays(self, *local_ranks: int, able: bool = True) -> list[Effect]:
        """Have workers say whether they can go into another round as the same processes."""
        return [effect for rank in local_ranks for effect in self.submit(ReuseReported(rank, able))]

    def loses_peer(self, local_rank: int, error: str) -> list[Effect]:
        """Have a collective fail with an error in a worker that leaves the round for that."""
        return self.submit(CollectiveFailed(local_rank, 1, a_diagnosis(error=error)))

    def left(self, local_rank: int) -> list[Effect]:
        """Have a worker be out of the round: it was asked to leave, or a collective has failed in it."""
        return self.submit(WorkerLeft(local_rank))

    def aborts(self, local_rank: int, took_s: float | None = None) -> list[Effect]:
        """Have a worker begin to abort NCCL, or be done with it."""
        return self.submit(WorkerAborts(local_rank, took_s))

    def refuses(self, local_rank: int, why: str = "it is not in the mood") -> list[Effect]:
        """Have a worker that was asked to leave the round refuse to."""
        return self.submit(WorkerRefuses(local_rank, why))

    def held_exited(self, local_rank: int, exit_code: int = -9) -> list[Effect]:
        """End a worker that waits for a round."""
        self.parked.remove(local_rank)
        return self.submit(WorkerExited(local_rank, exit_code, a_diagnosis()))

    def all_exited(self, exit_code: int) -> list[Effect]:
        """End all workers that live, in the same way."""
        return [effect for rank in sorted(self.alive) for effect in self.exited(rank, exit_code)]

    def swept(self, early_output: LastOutput | None = None) -> list[Effect]:
        """Report that nothing is left, with a new port, and with what the first worker that exited with 0 wrote."""
        assert self.sweeping, "no sweep is under way"
        self.sweeping = False
        self.ports += 1
        return self.submit(Swept(self.ports, early_output))

    def gpus_in_use(self, *gpus: GpuUse) -> list[Effect]:
        """Report that nothing of the round lives, and that memory of GPUs is in use."""
        assert self.sweeping, "no sweep is under way"
        assert self.last(Sweep).checks_gpus, "GPUs do not matter to this sweep"
        self.sweeping = False
        return self.submit(GpusInUse(gpus))

    def sweep_failed(self, message: str = "process 7 outlives SIGKILL") -> list[Effect]:
        """Report that something of the round cannot be ended."""
        assert self.sweeping, "no sweep is under way"
        self.sweeping = False
        return self.submit(SweepFailed(message))

    def keep(self, save_within_s: float, *, writes_checkpoints: bool = False) -> list[Effect]:
        """Have workers keep state, which takes so long to save."""
        return self.submit(Keeping(save_within_s, writes_checkpoints))

    def saved(self, *, put_off: bool = False) -> list[Effect]:
        """Report that the workers have saved what they keep, or have put that off."""
        return self.submit(KeptSaved(put_off))

    def pair_tested(self, number: int) -> list[Effect]:
        """Report the result of a test with another node."""
        return self.submit(PairTested(PairResult(number, 50.0, 1000.0)))

    def leave(self, signum: int = 15, *, training_is_over: bool = False) -> list[Effect]:
        """Have the user ask the node to leave, and do what is due then."""
        return [*self.submit(LeaveRequested(signum, training_is_over)), *self.advance(0)]

    def advance(self, seconds: float) -> list[Effect]:
        """Let time pass, with a tick whenever the agent wants one."""
        end = self.now + seconds
        effects: list[Effect] = []
        for _ in range(10_000):
            due = self.agent.next_deadline()
            if due is None or due > end or self.agent.exited:
                self.now = end
                return effects
            self.now = max(self.now, due)
            effects += self.submit(Tick())
        raise AssertionError("the agent wants a tick again and again")

    # What it came to

    def running(self, **values: Any) -> Bench:
        """Bring the agent to where its workers run round 1."""
        self.open()
        self.receive(Goal.RUN, **values)
        self.started()
        return self

    def last(self, kind: type[EffectT]) -> EffectT:
        """Return the last effect of a kind."""
        return [effect for effect in self.effects if isinstance(effect, kind)][-1]

    def count(self, kind: type[Effect]) -> int:
        """Count the effects of a kind."""
        return sum(isinstance(effect, kind) for effect in self.effects)

    @property
    def observed(self) -> Observed:
        """The agent's present report."""
        return self.agent.observed(self.now, beat=False)

    @property
    def failure(self) -> Failure:
        """The failure in the agent's present report, of which there must be one."""
        failure = self.observed.failure
        assert failure is not None
        return failure

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Start():
                assert not self.alive, "started over living workers"
                assert not self.sweeping, "started before the old round was swept"
                assert not self.starting, "started twice"
                assert set(effect.reused) == self.parked, "began without those that wait, or with others"
                self.starting, self.alive, self.parked = True, set(range(self.settings.workers)), set()
            case Park(local_rank):
                assert local_rank in self.alive, "held one that is not in the round"
                self.alive.remove(local_rank)
                self.parked.add(local_rank)
            case Dismiss(local_ranks):
                assert local_ranks, "dismissed nobody"
                assert self.parked >= set(local_ranks), "dismissed those that do not wait"
                assert not self.alive, "dismissed some of those that live"
                assert not self.sweeping, "dismissed while all else was swept"
                self.parked -= set(local_ranks)
            case LeaveRound():
                assert self.alive, "nobody is there to leave"
            case SaveKept():
                assert self.alive, "nobody is there to save"
            case Sweep():
                assert not self.alive, "swept over living workers"
                assert not self.sweeping, "swept twice at a time"
                self.sweeping = True
            case SendObserved(observed):
                assert decode(encode(observed), Observed) == observed
            case Exit():
                assert not self.alive, "ended with workers alive"
                assert not self.parked, "ended with workers that wait"
                assert not self.sweeping, "ended before all was swept"
