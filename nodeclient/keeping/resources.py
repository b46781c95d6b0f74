"""What all modules of this room work with: settings, memory, threads, tasks, callbacks, and the disk."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor

from msgspec import Struct

from coordinatord.runtime.tasks import Tasks
from nodeclient.core.effects import Level
from nodeclient.core.events import Event, KeptChanged
from nodeclient.keeping.disk.persister import Persister
from nodeclient.keeping.parts.arenas import Arenas, Held, KeepSettings
from nodeclient.keeping.parts.digests import Digests, withdraw

THREADS = 8
"""How many parts are received or checked at a time."""

Notify = Callable[[Level, str, str], None]
"""Shows the user a line: its log level, the text, and the name of the event."""


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

    def note_damage(self, held: Held) -> None:
        """Empty the place of a part that is not what was saved, and warn the user."""
        if withdraw(held.place, held.commit):
            commit = held.commit
            text = (
                f"what was kept of rank {commit.rank} at step {commit.step} is not what was saved: its digest does not "
                "match. It is not used; the memory of this host may be bad"
            )
            self.notify(Level.WARNING, text, "state_damaged")
            self.submit(KeptChanged())
