"""Workers that linger: their program is over, but their process does not end."""

from __future__ import annotations

from collections.abc import Iterable

LINGER_S = 300.0
"""The time between the end of a program and the kill of its process. The kernel takes a minute or two to release
hundreds of gigabytes."""


class Lingering:
    """The workers of one round whose programs are over; the caller passes the time, in seconds."""

    def __init__(self) -> None:
        self._due_at: dict[int, float] = {}

    def overdue(self, over: Iterable[int], now: float) -> list[int]:
        """Return the local ranks whose programs have been over for `LINGER_S`, each of them once.

        `over` are the local ranks whose programs are known to be over. Most of them have no process any more.
        """
        for rank in over:
            self._due_at.setdefault(rank, now + LINGER_S)
        due = [rank for rank, at in self._due_at.items() if now >= at]
        for rank in due:
            self._due_at[rank] = float("inf")
        return due


def linger_notice(rank: int, pid: int, exit_code: int) -> str:
    """Return the notice about a worker that is killed because it lingers."""
    return (
        f"rank {rank}: its program has been over for {LINGER_S:g} s, with exit code {exit_code}, but its process (pid "
        f"{pid}) did not end: it is killed, and counts as ended with {exit_code}. A destructor or a library of native "
        "code is stuck in it; py-spy dump --native shows where, the next time"
    )
