"""Copies parts of kept state that only one other node has, so that they survive the loss of that node.

The coordinator names each part to copy for as long as this node lacks it. The workers are not involved: parts come one
after the other, within the rate that the user allows. Copies lie in arenas like all kept state (`parts.arenas`), so
other nodes and the workers of this node get them in the same way.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import TimeoutError as NotYetError
from threading import Event

from msgspec import Struct

from coordinatord.protocol.kept_state import KeptCopy
from nodeclient.core.effects import Level
from nodeclient.core.events import KeptChanged
from nodeclient.keeping.parts.arena_memory import NoMemoryError
from nodeclient.keeping.parts.part_fetch import POLL_S, FetchError, fetch
from nodeclient.keeping.parts.part_messages import Kind, PartName
from nodeclient.keeping.resources import KeepResources
from workerlib.contract.arena import Commit, Place

BURST_S = 0.1
"""How many seconds' worth of bytes may come at once after a pause."""

RETRY_S = 1.0
"""The pause before another attempt to copy parts."""


class RateLimit:
    """Limits the rate of copies, so that they leave the network and the processors to the training.

    A token bucket, empty at first. The caller passes the time, in seconds of a clock that never goes back.
    """

    def __init__(self, rate: float, now: float) -> None:
        """Allow `rate` bytes a second; with 0, no copies are ordered, and so no bytes are spent."""
        self._rate = rate
        self._spent_at = now
        """When all bytes so far would have come at exactly this rate."""

    def spend(self, size: int, now: float) -> float:
        """Count bytes that were received; return how many seconds to wait before receiving more."""
        self._spent_at = max(self._spent_at, now - BURST_S) + size / self._rate
        return max(0.0, self._spent_at - now)


_Wanted = tuple[KeptCopy, int]
"""An order of the coordinator, which may be about the parts of several ranks, and one of these ranks."""

_Origin = tuple[str, int]
"""The node that a part comes from, and the part's rank. Failures are recorded by origin, over all steps."""


class _FailedCopies(Struct):
    """The failed attempts to copy parts of one origin since the last success."""

    since: float
    problem: str = ""
    """Why these parts cannot be copied; empty as long as a later attempt is expected to succeed."""


class Copier:
    """Keeps copies of other nodes' parts on this node."""

    def __init__(self, resources: KeepResources) -> None:
        self._resources = resources
        self._limit = RateLimit(resources.settings.copy_rate, time.monotonic())
        self._run = ""
        self._wanted: tuple[KeptCopy, ...] = ()
        self._working: asyncio.Task[None] | None = None
        self._getting: tuple[_Wanted, Event] | None = None
        """The copy that is being received, and the event that makes its thread give it up."""
        self._failures: dict[_Origin, _FailedCopies] = {}
        """The failures of the parts that are wanted."""

    @property
    def problem(self) -> str:
        """Why a part cannot be copied, for the coordinator, which then does not wait for it; empty if all can be."""
        return next((failure.problem for failure in self._failures.values() if failure.problem), "")

    def set_wanted(self, run: str, copies: tuple[KeptCopy, ...]) -> None:
        """Get these copies. Cancel any other, and drop the arenas of other copies that have no protected step.

        Finished copies are not in `copies` any more. Their arenas stay, because their steps are protected.
        """
        self._run, self._wanted = run, copies
        if self._getting is not None and not self._is_wanted(*self._getting[0]):
            self._getting[1].set()
        origins = {(copy.source.node, rank) for copy, rank in self._all()}
        self._failures = {origin: failure for origin, failure in self._failures.items() if origin in origins}
        self._resources.arenas.drop_copies(keep={rank for _, rank in self._all()})
        if copies and (self._working is None or self._working.done()):
            self._working = self._resources.tasks.spawn(self._copy_missing(), name="copies")

    def close(self) -> None:
        """Cancel all copies that are being received."""
        self._wanted = ()
        if self._getting is not None:
            self._getting[1].set()
        if self._working is not None:
            self._working.cancel()

    async def _copy_missing(self) -> None:
        """Copy parts until none is missing. A part that cannot be copied does not delay the others."""
        while missing := [part for part in self._all() if not self._is_here(*part)]:
            for copy, rank in missing:
                if self._is_wanted(copy, rank):
                    await self._try(copy, rank)
            if any(not self._is_here(*part) for part in self._all()):
                await asyncio.sleep(RETRY_S)

    async def _try(self, copy: KeptCopy, rank: int) -> None:
        """Try to copy one part, and record the outcome."""
        try:
            await self._get(copy, rank)
        except (NoMemoryError, FetchError, OSError) as error:
            if self._is_wanted(copy, rank):  # or else it was cancelled
                self._record_failure((copy.source.node, rank), error, asyncio.get_running_loop().time())
        else:
            self._failures.pop((copy.source.node, rank), None)
            await self._compute_digest(copy, rank)
            self._resources.submit(KeptChanged())

    async def _get(self, copy: KeptCopy, rank: int) -> None:
        """Copy one part. Raises `NoMemoryError`, `FetchError` and `OSError`."""
        cancelled = Event()
        self._getting = (copy, rank), cancelled
        loop = asyncio.get_running_loop()
        name = PartName(self._run, rank, copy.round, copy.step, Kind.BIG)

        def room(commit: Commit) -> Place:
            """Return the place for the part. The receiving thread calls this, but only the event loop may choose."""
            chosen = asyncio.run_coroutine_threadsafe(self._resources.arenas.reserve_copy(commit), loop)
            while not cancelled.is_set():
                try:
                    return chosen.result(POLL_S)
                except NotYetError:
                    continue
            chosen.cancel()
            raise FetchError("it is not wanted any more")

        def pace(size: int) -> None:
            cancelled.wait(self._limit.spend(size, time.monotonic()))

        try:
            await loop.run_in_executor(self._resources.threads, fetch, copy.source, name, room, cancelled, pace)
        finally:
            cancelled.set()  # this call may be cancelled while the thread goes on
            self._getting = None

    async def _compute_digest(self, copy: KeptCopy, rank: int) -> None:
        """Compute the digest of a copy: without one, no part of a *shared* state (see `parts.digests`) is reported."""
        if (held := self._resources.arenas.find(rank, copy.round, copy.step, Kind.BIG)) is not None:
            await asyncio.gather(*map(asyncio.wrap_future, self._resources.digests.compute([held.place])))

    def _record_failure(self, origin: _Origin, error: Exception, now: float) -> None:
        """Record a failed attempt, and warn the user if the part cannot be copied.

        A lack of memory shows that at once; other errors do once the attempts have failed for `patience_s`.
        """
        failure = self._failures.setdefault(origin, _FailedCopies(now))
        if isinstance(error, NoMemoryError):
            problem = f"there is no copy of node {origin[0]} here: {error}"
        elif now - failure.since >= self._resources.settings.patience_s:
            problem = f"the state of node {origin[0]} cannot be copied: {error}"
        else:
            return
        is_known = failure.problem or any(problem == other.problem for other in self._failures.values())
        failure.problem = problem
        if not is_known:
            self._resources.notify(Level.WARNING, problem, "state_not_copied")
            self._resources.submit(KeptChanged())

    def _is_wanted(self, copy: KeptCopy, rank: int) -> bool:
        return (copy, rank) in self._all()

    def _all(self) -> Iterator[_Wanted]:
        for copy in self._wanted:
            for wanted in copy.source.parts:
                for rank in wanted.each_rank:
                    yield copy, rank

    def _is_here(self, copy: KeptCopy, rank: int) -> bool:
        return self._resources.arenas.find(rank, copy.round, copy.step, Kind.BIG) is not None
