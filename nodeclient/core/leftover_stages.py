"""How long processes may outlive the programs of their workers: leftovers, lingering workers, and groups of workers.

A *leftover* is a process that a worker has started, and that lives when the worker has ended. It has work to finish: an
experiment tracker writes its last data, `cp ... &` copies a checkpoint. So leftovers are first left alone, then sent
SIGTERM, and SIGKILL at last. A worker *lingers* if its program is over, but its own process does not end, for example
because a destructor hangs. It is killed, since its round would never end. A worker that was asked to end is *outlived*
if it has exited, but others of its process group have not.

Times are in seconds of a clock that never goes back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from signal import Signals

from msgspec import Struct

from coordinatord.protocol.text import listed

BESIDE_S = 15.0
"""How long leftovers may live beside a later round, if `--stop-timeout` is not shorter. A tracker or a copy ends within
seconds; one that takes longer uses memory and CPUs that the round needs."""

UNASKED_SHARE = 2 / 3
"""The share of their time in which leftovers are sent nothing. SIGTERM leaves them the rest to end by themselves."""

LEAST_S = 1.0
"""The least time that leftovers have at the end of the node, even if its workers took all of `--stop-timeout` to end: a
leftover that reads a pipe from a worker, such as `tee`, can end only after the worker."""

SAID_AFTER_S = 1.5
"""How long a node waits for leftovers before it says for which: most end at once."""

NAMED_MAX = 4
"""How many leftovers of one worker a notice names; a few show what the script starts."""


class LeftoverStage(StrEnum):
    """The life of the leftovers of one worker."""

    UNASKED = "nothing has been sent to them"
    ASKED = "they were sent SIGTERM"
    KILLED = "they were sent SIGKILL"


NEXT = {
    LeftoverStage.UNASKED: (LeftoverStage.ASKED, Signals.SIGTERM),
    LeftoverStage.ASKED: (LeftoverStage.KILLED, Signals.SIGKILL),
}
"""The next stage after each stage but the last, and the signal that is sent at its begin."""


class Leftovers:
    """The leftovers of one node's workers, those of each worker under its mark."""

    def __init__(self, stop_timeout_s: float) -> None:
        """Begin with none. At the end of the node, leftovers have as long as workers have: `stop_timeout_s`."""
        self._stop_timeout_s = stop_timeout_s
        self._stages: dict[str, tuple[LeftoverStage, float]] = {}
        """The stage of the leftovers of each mark, and when they were found."""
        self._stopped_at: float | None = None
        """When the workers, or the node, were first asked to end in this round; None if they were not."""
        self._end_by: float | None = None
        """The deadline of all leftovers at the end of the node; None while a round may follow."""
        self._asked_by_user = False
        self._hurries = False
        """Whether the user has asked twice, so that leftovers are killed at once."""

    def begin_round(self) -> None:
        """Record that workers are started."""
        self._stopped_at = None

    def stop(self, now: float) -> None:
        """Record that the workers are asked to end: `--stop-timeout` counts from the first such call."""
        if self._stopped_at is None:
            self._stopped_at = now

    def record_signal(self, now: float) -> None:
        """Record a signal that asks the node to leave. From the second one on, leftovers are killed."""
        self._hurries = self._asked_by_user
        self._asked_by_user = True
        self.stop(now)

    def add(self, marks: Sequence[str], now: float) -> None:
        """Record that workers with these marks have ended and left processes behind."""
        for mark in marks:
            self._stages[mark] = LeftoverStage.UNASKED, now

    def remove(self, mark: str) -> None:
        """Record that all leftovers of a worker have ended."""
        self._stages.pop(mark, None)

    def end(self, now: float) -> float:
        """Record that the node ends once no leftover lives; return the deadline of the leftovers."""
        stopped_at = now if self._stopped_at is None else self._stopped_at
        self._end_by = max(stopped_at + self._stop_timeout_s, now + LEAST_S)
        return self._end_by

    def due(self, now: float) -> list[tuple[str, Signals]]:
        """Return the signals to send now, each with the mark of a worker."""
        signals: list[tuple[str, Signals]] = []
        for mark, (stage, since) in self._stages.items():
            if stage in NEXT and self._until(stage, since) <= now:
                # The entry of ASKED has SIGKILL, with which leftovers end at once if the user hurries.
                following, signum = NEXT[LeftoverStage.ASKED if self._hurries else stage]
                self._stages[mark] = following, since
                signals.append((mark, signum))
        return signals

    def next_deadline(self) -> float | None:
        """Return when `due` has the next signal; None if there is none."""
        return min((self._until(stage, since) for stage, since in self._stages.values() if stage in NEXT), default=None)

    def _until(self, stage: LeftoverStage, since: float) -> float:
        """Return when leftovers that were found at `since` come to the next stage."""
        if self._hurries:
            return since
        until = since + min(BESIDE_S, self._stop_timeout_s) if self._end_by is None else self._end_by
        return until if stage is LeftoverStage.ASKED else since + UNASKED_SHARE * (until - since)


class Leftover(Struct, frozen=True):
    """A process that a worker has left behind."""

    pid: int
    program: str
    """The name of its program."""
    rank: str
    """The global rank of the worker."""


def named(leftovers: Sequence[Leftover]) -> str:
    """Name the leftovers of a worker for a notice."""
    processes = (f"{leftover.program} (pid {leftover.pid})" for leftover in leftovers)
    return f"rank {leftovers[0].rank}: {listed(processes, len(leftovers), NAMED_MAX)}"


def awaited(texts: Sequence[str], left_s: float, *, leaves: bool = True) -> str:
    """Return the notice that the node waits for leftovers, before it leaves or to end the round."""
    text = f"waiting up to {left_s:.0f} s for what the workers have left running: {'; '.join(texts)}"
    return f"{text}; a second signal kills it" if leaves else text


def killed(texts: Sequence[str]) -> str:
    """Return the notice that leftovers are killed."""
    return f"killed, since it did not end in time after its worker: {'; '.join(texts)}; see --stop-timeout"


class Outlived:
    """The outlived workers of one round.

    Such a worker counts as alive until its process group is gone, since a process of the group may be writing
    its checkpoint. Even if the group is then killed, the worker counts as ended by itself.
    """

    def __init__(self) -> None:
        """Begin with none."""
        self._left: dict[int, tuple[Leftover, ...]] = {}
        self.tell_at: float | None = None
        """When to tell the user which leftovers the node waits for; None if there is nothing that was not told."""

    def add(self, local_rank: int, leftovers: tuple[Leftover, ...], now: float) -> None:
        """Record that a worker has exited, and its leftovers."""
        if local_rank not in self._left and self.tell_at is None:
            self.tell_at = now + SAID_AFTER_S
        self._left[local_rank] = leftovers

    def remove(self, local_rank: int) -> None:
        """Record that the group of a worker is gone."""
        self._left.pop(local_rank, None)

    @property
    def ranks(self) -> frozenset[int]:
        """The local ranks of these workers."""
        return frozenset(self._left)

    @property
    def texts(self) -> list[str]:
        """The leftovers of each of them, for a notice."""
        return [named(leftovers) for leftovers in self._left.values()]

    def tell(self, left_s: float, *, leaves: bool) -> str:
        """Return the notice that is due, with the seconds that are left; empty if all groups are gone by now."""
        self.tell_at = None
        return awaited(self.texts, left_s, leaves=leaves) if self._left else ""


LINGER_S = 300.0
"""The time from the end of a program to the kill of its process. Releasing hundreds of gigabytes takes minutes."""


class Lingering:
    """The workers of one round that linger: their programs are over, and their processes may live."""

    def __init__(self) -> None:
        self._kill_at: dict[int, float | None] = {}
        """When to kill the process of each local rank; None once that is done."""

    def overdue(self, exit_codes: Mapping[int, int], now: float) -> list[tuple[int, int]]:
        """Return the local ranks of the workers to kill now, each once, with their exit codes.

        `exit_codes` has the exit code of each program that is over, by local rank, as the worker itself has recorded
        it. Most of these workers have ended: it is for the caller to see which of them still has a process.
        """
        for rank in exit_codes:
            self._kill_at.setdefault(rank, now + LINGER_S)
        due = [rank for rank, at in self._kill_at.items() if at is not None and now >= at]
        self._kill_at |= dict.fromkeys(due)
        return [(rank, exit_codes[rank]) for rank in due]


def linger_notice(rank: int, pid: int, exit_code: int) -> str:
    """Return the notice about a worker that is killed because it lingers; `rank` is global."""
    return (
        f"rank {rank}: its program has been over for {LINGER_S:g} s, with exit code {exit_code}, but its process (pid "
        f"{pid}) did not end: it is killed, and counts as ended with {exit_code}. A destructor or a library of native "
        "code is stuck in it; py-spy dump --native shows where, the next time"
    )
