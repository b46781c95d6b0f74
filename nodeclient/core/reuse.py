"""Which worker processes are reused in the next round, so that it need not start new ones.

A worker whose script can enter a further round as the same process reports that. At the end of a round such a worker is
not ended, but asked to leave the round. Then it is *parked*: it takes part in nothing, and the node's reports leave it
out. The next round reuses it, unless that round begins from nothing, because a process cannot undo its training. A
parked worker holds memory and devices, so it is dismissed, which means ended, if no round follows for a while.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from enum import Enum, auto

from coordinatord.protocol.fields import SENTENCE_MAX
from coordinatord.protocol.messages import Phase, WorkerStarts
from coordinatord.protocol.text import clip
from nodeclient.core.effects import Dismiss
from nodeclient.core.events import ReuseReported, WorkerAborts, WorkerRefuses, WorkersStarted
from nodeclient.core.table import EndStage

PARK_S = 60.0
"""How long a worker is parked. A round is formed within seconds, or has to wait for nodes that may never come."""

PARK_EXPIRED = f"no round followed within {PARK_S:g} s"
"""The usual reason for a dismissal."""

_LOST_CONNECTION = "a worker has lost its connection to nodeclient"

_END_UNKNOWN = "a worker ended without a report in time, so the others could not be kept"


class ReuseState(Enum):
    """Whether a worker can be reused. A worker without a state cannot.

        ABLE ──> PARKED ──> ABLE    it leaves its round when asked, and enters the next one
        ABLE ──> FAILED ──> PARKED  it leaves unasked, since a collective has failed in it
        ABLE ──> REFUSES            it reports that it cannot leave; if it leaves after all, it is parked too
        REFUSES ──> FAILED          a collective has failed in it, so it may leave unasked after all
        FAILED ──> LOST             its connection is gone, or it refuses, so it cannot be parked any more
        PARKED ──> CUT_OFF          its connection is gone, so it cannot learn of the next round
        ABLE, REFUSES ──> SILENT    its connection is gone, so it cannot be asked
        SILENT ──> ABLE             another process of the worker has connected: an earlier refusal was not its own

    A worker loses its state when its process ends.
    """

    ABLE = auto()
    FAILED = auto()
    """It leaves its round because a collective has failed in it, which counts as its failure in this round."""
    REFUSES = auto()
    LOST = auto()
    """A collective has failed in it, and it can only exit. Its exit is no second failure."""
    PARKED = auto()
    """It is out of its round, and waits for the next one."""
    CUT_OFF = auto()
    """It has left its round and would wait for ever, so it is to be ended before the next round."""
    SILENT = auto()
    """It has lost its connection, or is about to end: the end of a process closes its connection too."""


_Moves = Mapping[ReuseState | None, ReuseState]
"""The next state by the present one. A state that is not listed stays."""

_WHEN_ABLE: _Moves = {None: ReuseState.ABLE, ReuseState.SILENT: ReuseState.ABLE}

_WHEN_DISCONNECTED: _Moves = {
    ReuseState.ABLE: ReuseState.SILENT,
    ReuseState.REFUSES: ReuseState.SILENT,
    ReuseState.FAILED: ReuseState.LOST,
    ReuseState.PARKED: ReuseState.CUT_OFF,
}

_WHEN_REFUSED: _Moves = {ReuseState.ABLE: ReuseState.REFUSES, ReuseState.FAILED: ReuseState.LOST}

_WHEN_FAILED: _Moves = {ReuseState.ABLE: ReuseState.FAILED, ReuseState.REFUSES: ReuseState.FAILED}

_WAITING = frozenset({ReuseState.PARKED, ReuseState.CUT_OFF})

_MAY_LEAVE = frozenset({ReuseState.ABLE, ReuseState.FAILED})
"""The states of workers that are expected to leave their round."""

_MAY_PARK = _MAY_LEAVE | {ReuseState.REFUSES}
"""The states of workers that are parked if they leave. One that refuses is not waited for, but may leave after all."""

_BEFORE_SIGNAL = frozenset({None, EndStage.HALTING, EndStage.SAVING, EndStage.LEAVING_ROUND})
"""The stages of the round's end in which a worker can still leave the round; None before the first one."""


class Reuse:
    """The workers of one node by their local ranks. Times are in the agent's clock.

    If a round starts new processes although the workers before it could have been reused, the user wants to know why.
    So the reasons are recorded while a round ends, and reported once the next one is started (`WorkerStarts.why_not`):
    `_why_not`, which is certain, or else the first of `_obstacles`.
    """

    def __init__(self, nccl_abort_timeout_s: float) -> None:
        """Begin without workers. One that begins to abort NCCL has `nccl_abort_timeout_s` to leave its round."""
        self._states: dict[int, ReuseState] = {}
        self._nccl_abort_timeout_s = nccl_abort_timeout_s
        self._aborts: dict[int, float | None] = {}
        """How many seconds each worker took to abort NCCL in this round; None for one that has not finished."""
        self.aborts_until = 0.0
        """When the last worker that aborts NCCL has to be done. The other workers wait for it."""
        self.parked_until: float | None = None
        """When the parked workers are dismissed; None during a round, and if none is parked."""
        self._why_not = ""
        """Why reusable workers were ended in this round; empty if none was."""
        self._obstacles: dict[int, str] = {}
        """Why each worker that is ended could not be reused. A worker that proves to have ended by itself
        before that is removed: its end was the reason, and not this obstacle."""
        self._ends_reusable = False
        """Whether reusable workers were ended too, only because others have obstacles. If one of the others then proves
        to have ended by itself, the late report of its end is why the reusable ones were ended (`_END_UNKNOWN`)."""
        self.begun: WorkerStarts | None = None
        """How the workers of this round were started; None while there is nothing to report."""
        self._in_place = 0
        """How many workers began this round in place."""

    # One worker

    def on_report(self, event: ReuseReported) -> None:
        """Record whether a worker can be reused. If it is not `able`, its connection is gone."""
        has_moved = self._move(event.local_rank, _WHEN_ABLE if event.able else _WHEN_DISCONNECTED)
        if has_moved and self._states[event.local_rank] is ReuseState.CUT_OFF:
            self._why_not = self._why_not or "a worker could not be reached any more while it waited for a round"

    def on_refusal(self, event: WorkerRefuses) -> None:
        """Record that a worker has reported that it cannot be reused."""
        self._why_not = event.why  # the worker itself knows best, so this replaces any other reason
        self._move(event.local_rank, _WHEN_REFUSED)

    def record_failure(self, local_rank: int, alive: AbstractSet[int]) -> bool:
        """Record that a collective has failed in a worker; return False if it cannot leave, or has failed before."""
        return local_rank in alive and self._move(local_rank, _WHEN_FAILED)

    def _move(self, local_rank: int, moves: _Moves) -> bool:
        """Change the state of a worker; return whether it had one of the listed states."""
        state = self._states.get(local_rank)
        if state in moves:
            self._states[local_rank] = moves[state]
        return state in moves

    def on_abort(self, event: WorkerAborts, now: float) -> None:
        """Record that a worker has begun to abort NCCL, which gives it more time, or has finished."""
        if event.local_rank not in self._aborts:
            self.aborts_until = max(self.aborts_until, now + self._nccl_abort_timeout_s)
        self._aborts[event.local_rank] = event.took_s

    @property
    def aborts_since(self) -> float:
        """When the last worker that aborts NCCL began; in the past if none does."""
        return self.aborts_until - self._nccl_abort_timeout_s

    def record_end(self, local_rank: int, *, by_itself: bool) -> bool:
        """Record that the process of a worker has ended; return whether a collective had failed in it before.

        `by_itself` says that this node's signal has not ended it.
        """
        state = self._states.pop(local_rank, None)
        if by_itself and self._obstacles.pop(local_rank, "") and self._ends_reusable:
            self._why_not = self._why_not or _END_UNKNOWN
        return state in {ReuseState.FAILED, ReuseState.LOST}

    def park(self, local_rank: int, alive: AbstractSet[int], stage: EndStage | None) -> bool:
        """Park a worker that has left its round; return False if it left too late, or unasked without a failure.

        `stage` is the present stage of the round's end; None before the first one.
        """
        may_leave = _MAY_PARK if stage is EndStage.LEAVING_ROUND else {ReuseState.FAILED}
        if local_rank not in alive or stage not in _BEFORE_SIGNAL or self._states.get(local_rank) not in may_leave:
            return False
        self._states[local_rank] = ReuseState.PARKED
        return True

    # The workers of a round

    def begin(self) -> tuple[int, ...]:
        """Begin a round; return the local ranks of the workers that it reuses."""
        reused = tuple(sorted(self._parked))
        self._in_place, self.begun = len(reused), None
        self._states = dict.fromkeys(reused, ReuseState.ABLE)
        self.aborts_until, self.parked_until = 0.0, None
        self._aborts.clear()
        return reused

    def on_started(self, event: WorkersStarted, workers: int) -> None:
        """Record that all workers of the round are started; `workers` is how many the node has."""
        why_not = self._why_not or next(iter(self._obstacles.values()), "")
        cold = max(workers - self._in_place - event.warm, 0)
        why_cold = event.why_cold if cold else None
        starts = WorkerStarts(self._in_place, event.warm, cold, clip(why_not, SENTENCE_MAX), why_cold)
        self.begun = starts if starts.in_place or starts.warm or starts.why_not or why_cold else None
        self._why_not = ""
        self._obstacles.clear()

    def record_obstacles(self, alive: AbstractSet[int], *, late: bool) -> None:
        """Record why the living workers are about to be ended: their connection is gone, or they leave too `late`."""
        if not alive:
            return
        self._obstacles = {}
        for rank in sorted(alive):
            if self._states.get(rank) is ReuseState.SILENT:
                self._obstacles[rank] = _LOST_CONNECTION
            elif late:
                self._obstacles[rank] = self._why_late(rank)
        able = {rank for rank in alive if self._states.get(rank) in _MAY_PARK}
        self._ends_reusable = bool(able - self._obstacles.keys())

    def _why_late(self, local_rank: int) -> str:
        took_s = self._aborts.get(local_rank, 0.0)
        if took_s is None:
            return f"aborting NCCL took longer than {self._nccl_abort_timeout_s:g} s; see --abort-timeout"
        part = f" (aborting NCCL took {took_s:.1f} s of it)" if took_s else ""
        return f"a worker was not out of its round in time{part}; see --abort-timeout"

    def any_may_leave(self, alive: AbstractSet[int]) -> bool:
        """Whether it is worth waiting: a living worker of the round is expected to leave it."""
        return any(self._states.get(local_rank) in _MAY_LEAVE for local_rank in alive)

    def all_may_leave(self, alive: AbstractSet[int]) -> bool:
        """Whether all living workers would be parked if they left, even those that refuse; False if none lives."""
        return bool(alive) and all(self._states.get(local_rank) in _MAY_PARK for local_rank in alive)

    def begin_parking(self, now: float) -> None:
        """Count `PARK_S` from now on: no worker is left in the round, so only parked ones live."""
        self.parked_until = now + PARK_S if self._parked else None

    def dismiss(self, why: str = PARK_EXPIRED) -> list[Dismiss]:
        """Dismiss all parked workers, and record why; return the effect, if any."""
        gone = self._dismiss(_WAITING)
        self._why_not = self._why_not or (why if gone else "")
        return gone

    def dismiss_disconnected(self, phase: Phase) -> list[Dismiss]:
        """Dismiss the parked workers without a connection, unless others are ending; return the effect, if any.

        `Agent.handle` calls this after each event, so no such worker is left when a round begins. While others end,
        the dismissal waits for them, since the shell dismisses workers only while none is in a round.
        """
        return [] if phase is Phase.STOPPING else self._dismiss({ReuseState.CUT_OFF})

    def _dismiss(self, states: AbstractSet[ReuseState]) -> list[Dismiss]:
        gone = tuple(sorted(local_rank for local_rank, state in self._states.items() if state in states))
        for local_rank in gone:
            del self._states[local_rank]
        self.parked_until = self.parked_until if self._parked else None
        return [Dismiss(gone)] if gone else []

    def are_all_parked(self, workers: int) -> bool:
        """Whether all of this node's `workers` are parked, so that the next round starts no process here."""
        return len(self._parked) == workers

    @property
    def _parked(self) -> list[int]:
        return [local_rank for local_rank, state in self._states.items() if state is ReuseState.PARKED]
