"""What is in the way of the end of a round when its workers are dead, and how long the node waits for that."""

from __future__ import annotations

import math
from collections.abc import Sequence

from coordinatord.protocol.fields import MESSAGE_MAX
from coordinatord.protocol.messages import Phase
from coordinatord.protocol.text import clip
from nodeclient.core import notices
from nodeclient.core.effects import Level, Notice, Sweep
from nodeclient.core.events import GpuUse
from nodeclient.core.leaving import Leaving
from nodeclient.core.reuse import Reuse
from nodeclient.core.worker_group import WorkerGroup

FREE_BYTES = 512 << 20
"""A GPU of which no more than this is in use is free. NVRx tolerates as much."""

FREE_WITHIN_S = 50.0
"""How long a node waits for GPUs to be free: as long as NVRx."""

OVERDUE_AFTER_S = 30.0
"""A coordinator goes on without a node that needs so much more than its stop timeout for the end of a round."""

SPARE_S = 2.0
"""The part of that which is left for the ways of the messages."""

LOOK_EVERY_S = 0.5
"""The time between two looks at the GPUs. Most are free at the first one."""


class Sweeping:
    """The sweeps of one node. Times are in the agent's clock.

    Memory of a GPU that is not free would cost the next round a restart. So the node waits, as long as that may help:
    not for a process that somebody else has started and that lives.
    """

    def __init__(self, stop_timeout_s: float, port: int) -> None:
        """Begin without a sweep.

        `stop_timeout_s` is how long workers get to end in a planned stop; `port` is reserved for the first round.
        """
        self.port = port
        """The port that is reserved for the next round."""
        self._stop_timeout_s = stop_timeout_s
        self.held_up = ""
        """What is in the way; empty if nothing is known to be."""
        self.again_at: float | None = None
        """When to sweep again; None if a sweep is under way or none is needed."""
        self._until: float | None = None
        """The end of the wait for GPUs; None if the node does not wait."""
        self._latest = math.inf
        """When that wait ends at the latest, so that the end of the round is not overdue."""
        self._usual: dict[str, int] = {}
        """The memory that was in use before the node had workers: nobody waits for that."""

    def begin(self, group: WorkerGroup, reuse: Reuse, leaving: Leaving, now: float) -> Sweep:
        """Begin a sweep. Memory of GPUs matters if another round may follow, and no parked worker has some."""
        self.again_at = None
        save_within_s = group.keeping.save_within_s if group.keeping else 0.0
        self._latest = group.ending.sweep(now) + self._stop_timeout_s + OVERDUE_AFTER_S - SPARE_S - save_within_s
        reuse.settle(now)
        is_last = group.result is Phase.SUCCEEDED or leaving.is_certain
        return Sweep(looks_at_gpus=not is_last and reuse.parked_until is None)

    def fail(self, why: str) -> Notice:
        """Record that processes cannot be ended; return the notice of it."""
        self.held_up = clip(why, MESSAGE_MAX)
        return Notice(Level.ERROR, why, "sweep_failed")

    def on_gpus(self, gpus: Sequence[GpuUse], now: float, *, sweeps: bool) -> list[Notice | Sweep]:
        """Record that memory of GPUs is in use while no worker lives: wait, or end the sweep all the same.

        Before the first round the node sweeps nothing, and nobody waits: the memory is others'.
        """
        if not sweeps:
            self._usual = {gpu.name: gpu.used_bytes for gpu in gpus}
            return [Notice(Level.WARNING, notices.gpus_in_use(gpus), "gpu_memory_in_use")] if gpus else []
        taken = [gpu for gpu in gpus if gpu.used_bytes > self._usual.get(gpu.name, 0) + FREE_BYTES]
        first = self._until is None
        until = min(now + FREE_WITHIN_S, self._latest) if self._until is None else self._until
        self.held_up = clip(notices.gpus_in_use(taken), MESSAGE_MAX) if taken else ""
        waits = all(process.left_behind for gpu in taken for process in gpu.processes)
        if taken and waits and now < until:
            self._until, self.again_at = until, now + LOOK_EVERY_S
            text = f"{self.held_up}; the next round waits for {until - now:.0f} s at most"
            return [Notice(Level.INFO, text, "gpu_memory_in_use")] if first else []
        text = f"{self.held_up}; the next round begins all the same, and may lack that memory"
        complaint = [Notice(Level.WARNING, text, "gpu_memory_in_use")] if taken else []
        return [*complaint, Sweep(looks_at_gpus=False)]

    def end(self, port: int) -> None:
        """Record that the sweep is over: nothing is in the way any more. `port` is newly reserved."""
        self.port = port
        self.held_up, self._until = "", None
