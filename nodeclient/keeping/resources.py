"""The objects that all modules of this package share: settings, memory, threads, tasks, callbacks and the disk."""

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
"""How long after the first failure a node still asks for a part. If its holder is lost, the coordinator knows within a
lease, 5 s by default, and names another one."""

SAVE_BASE_S = 1.0
SAVE_RATE = 0.5e9
"""A save may take `SAVE_BASE_S`, plus a second for each `SAVE_RATE` bytes. Even a busy host saves twice as fast."""


class KeepSettings(Struct, frozen=True):
    """The limits of kept state."""

    limit_bytes: int
    """The most memory for kept state."""
    timeout_s: float
    """The longest time for a save, of any size."""
    patience_s: float = PATIENCE_S
    """How long after the first failure a part is still requested from its holder."""
    address: str = ""
    """The address of this host at which other nodes get parts; empty for all addresses."""
    copy_rate: float = 0.0
    """How many bytes a second of other nodes' parts this node may copy; 0 for no copies."""

    def save_within_s(self, kept_bytes: int) -> float:
        """Return how long workers have to save one generation, if all generations have `kept_bytes` together."""
        return min(SAVE_BASE_S + kept_bytes / GENERATIONS / SAVE_RATE, self.timeout_s)


class KeepResources(Struct, frozen=True):
    """The shared objects, which live as long as nodeclient does."""

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
    """Hands an event to the agent of this node."""
    notify: Notify
    disk: Persister | None = None
    """Writes steps to a disk and reads them; None without `--persist`."""

    def compute_digests(self, *kinds: Kind) -> list[Future[bool]]:
        """Begin to compute the digests of all parts of these kinds; return the computations that a report waits for."""
        return self.digests.compute(held.place for held in self.arenas.held() if held.kind in kinds)

    def withdraw_damaged(self, held: Held) -> None:
        """Free the memory of a damaged part, so that nobody uses it, and warn the user."""
        if withdraw(held.place, held.commit):
            commit = held.commit
            text = (
                f"the kept state of rank {commit.rank} at step {commit.step} is damaged: its digest does not match. "
                "It is not used; the memory of this host may be bad"
            )
            self.notify(Level.WARNING, text, "state_damaged")
            self.submit(KeptChanged())
