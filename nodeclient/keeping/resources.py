"""The settings, memory, threads, tasks, callbacks and disk that all modules of this room share."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future

from msgspec import Struct

from coordinatord.runtime.tasks import Tasks
from nodeclient.core.effects import Level
from nodeclient.core.events import Event, KeptChanged
from nodeclient.keeping.disk.complaints import Notify
from nodeclient.keeping.disk.persister import Persister
from nodeclient.keeping.parts.arenas import Arenas, Held
from nodeclient.keeping.parts.digests import Digests, withdraw
from nodeclient.keeping.parts.part_messages import Kind
from workerlib.contract.arena import GENERATIONS

THREADS = 8
"""How many parts are received or checked at a time."""

PATIENCE_S = 30.0
"""How long a holder that does not send a part is asked again. The coordinator knows much sooner whether the holder is
lost: a lease is 5 s by default."""

SAVE_BASE_S = 1.0
SAVE_RATE = 0.5e9
"""A save may take `SAVE_BASE_S`, and a second more for each `SAVE_RATE` bytes: half of what a busy host copies."""


class KeepSettings(Struct, frozen=True):
    """How much may be kept, and how long a save may take."""

    limit_bytes: int
    timeout_s: float
    """The longest time to save; the size decides how much of it workers get."""
    patience_s: float = PATIENCE_S
    """How long the coordinator has to name another holder, if one does not send its part."""
    address: str = ""
    """The address of this host at which other nodes reach what is kept; empty for all."""
    copy_rate: float = 0.0
    """How many bytes a second of other nodes' state may be copied to this node; 0 if nothing is."""

    def save_within_s(self, kept_bytes: int) -> float:
        """Return how long workers that keep so many bytes, in all generations, have to save one generation."""
        return min(SAVE_BASE_S + kept_bytes / GENERATIONS / SAVE_RATE, self.timeout_s)


class KeepResources(Struct, frozen=True):
    """The memory, the threads, and the callbacks into nodeclient; all of it lives as long as nodeclient does."""

    settings: KeepSettings
    node: str
    workers: int
    """How many workers this node has."""
    arenas: Arenas
    digests: Digests
    threads: Executor
    """The threads for transfers and checks, which block."""
    tasks: Tasks
    submit: Callable[[Event], None]
    """Gives an event to the agent of this node."""
    notify: Notify
    disk: Persister | None = None
    """Writes steps to a disk and reads them; None without `--persist`."""

    def compute_digests(self, *kinds: Kind) -> list[Future[bool]]:
        """Compute the digests of all parts of these kinds; return the computations for shared states."""
        return self.digests.compute(held.place for held in self.arenas.held() if held.kind in kinds)

    def withdraw_damaged(self, held: Held) -> None:
        """Empty the place of a part that is not what was saved, and warn the user."""
        if withdraw(held.place, held.commit):
            commit = held.commit
            text = (
                f"what was kept of rank {commit.rank} at step {commit.step} is not what was saved: its digest does not "
                "match. It is not used; the memory of this host may be bad"
            )
            self.notify(Level.WARNING, text, "state_damaged")
            self.submit(KeptChanged())
