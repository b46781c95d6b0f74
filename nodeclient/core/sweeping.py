"""The sweep at the end of a round: the node ends what its workers left behind, and waits until GPU memory is free.

A driver may free the memory later than the processes end. The next round would fail for lack of it, which costs a
restart. So the node reports the end of a round only after the sweep.

`begin` starts a sweep. If GPU memory is in use after it, `on_gpus` judges that. If the memory may be freed soon, the
agent calls `begin` again. Otherwise `on_gpus` orders a last sweep, which disregards GPUs. `end` follows the last sweep.
"""

from __future__ import annotations

from collections.abc import Sequence

from coordinatord.protocol.fields import SENTENCE_MAX
from coordinatord.protocol.messages import Phase
from coordinatord.protocol.text import clip
from nodeclient.core import notices
from nodeclient.core.effects import Level, Notice, Sweep
from nodeclient.core.host_health import GpuUse
from nodeclient.core.leaving import Leaving
from nodeclient.core.reuse import Reuse
from nodeclient.core.worker_group import WorkerGroup

FREE_BYTES = 512 << 20
"""A GPU counts as free if no more of its memory is in use beyond the usual. NVRx tolerates as much."""

FREE_WITHIN_S = 50.0
"""How long a node waits for GPUs to be free. NVRx waits as long."""

OVERDUE_AFTER_S = 30.0
"""How much longer than its stop timeout a node may take to end a round. Then the coordinator goes on without it."""

MARGIN_S = 2.0
"""The part of `OVERDUE_AFTER_S` that is left for the node's report to arrive."""

SAMPLE_SHARE = 0.5
"""The time from one sample of the GPUs to the next, as a share of the wait so far. So the round waits at most 1.5 times
as long as the driver needs. On an H200 that was 0.2 to 0.5 s for the memory of a killed worker."""

SAMPLE_MIN_S, SAMPLE_MAX_S = 0.05, 0.5
"""The bounds of that time. A sample takes some hundredths of a second, and the first one finds most GPUs free."""


class Sweeping:
    """The sweeps of one node. Times are in the agent's clock.

    There is no wait for memory of a program that no worker has started, since its end does not depend on this node.
    """

    def __init__(self, stop_timeout_s: float, port: int, now: float) -> None:
        """Begin without a sweep.

        `stop_timeout_s` is how long workers get to end in a planned stop; `port` is reserved for the first round.
        """
        self.port = port
        """The port that is reserved for the next round."""
        self.over_at = now
        """When the last sweep was over, or the node began: it has had no workers since."""
        self._stop_timeout_s = stop_timeout_s
        self.held_up = ""
        """The reason why the sweep takes long, for the coordinator's report; empty if nothing does."""
        self.again_at: float | None = None
        """When to sweep again; None during a sweep, and if none is needed."""
        self._since = now
        """When the wait for GPUs began; it is not used before the first one."""
        self._until: float | None = None
        """The end of the wait for GPUs; None if the node does not wait."""
        self._latest = now
        """When a wait for GPUs has to end, so that the end of the round is not overdue; each sweep sets it."""
        self._usual: dict[str, int] = {}
        """The bytes of each GPU that were in use before the node had workers. The node does not wait for these."""

    def begin(self, group: WorkerGroup, reuse: Reuse, leaving: Leaving, now: float) -> Sweep:
        """Begin the first or a further sweep of a round. Only parked workers live, and their time counts from now.

        It waits for GPU memory if another round may follow. If workers are parked, it does not: they hold some of it.
        """
        self.again_at = None
        end_began_at = group.ending.begin_sweep(now)
        overdue_at = end_began_at + self._stop_timeout_s + OVERDUE_AFTER_S
        reuse.begin_parking(now)  # sets `parked_until`, which is read below
        # After the sweep the node computes digests of its kept state, which may take as long as workers get to save it.
        digests_s = group.keeping.save_within_s if group.keeping else 0.0
        self._latest = overdue_at - MARGIN_S - digests_s
        is_last = group.result is Phase.SUCCEEDED or leaving.is_certain
        return Sweep(checks_gpus=not is_last and reuse.parked_until is None)

    def fail(self, why: str) -> Notice:
        """Record that processes cannot be killed; return the notice. The agent sweeps again at once."""
        self.held_up = clip(why, SENTENCE_MAX)
        return Notice(Level.ERROR, why, "sweep_failed")

    def on_gpus(self, gpus: Sequence[GpuUse], now: float, *, found_by_sweep: bool) -> list[Notice | Sweep]:
        """Record that GPU memory is in use while no worker lives; order a later sweep, or a last one without GPUs.

        If it is not `found_by_sweep`, it is before the first round, and the memory belongs to other programs.
        """
        if not found_by_sweep:
            self._usual = {gpu.name: gpu.used_bytes for gpu in gpus}
            return [Notice(Level.WARNING, notices.gpus_in_use(gpus), "gpu_memory_in_use")] if gpus else []
        taken = [gpu for gpu in gpus if gpu.used_bytes > self._usual.get(gpu.name, 0) + FREE_BYTES]
        begins = self._until is None
        until = min(now + FREE_WITHIN_S, self._latest) if self._until is None else self._until
        self.held_up = clip(notices.gpus_in_use(taken), SENTENCE_MAX) if taken else ""
        # Memory that no visible process holds may be freed, too, by the driver.
        may_be_freed = all(process.left_behind for gpu in taken for process in gpu.processes)
        if taken and may_be_freed and now < until:
            self._since = now if begins else self._since
            self._until = until
            self.again_at = now + min(max(SAMPLE_MIN_S, SAMPLE_SHARE * (now - self._since)), SAMPLE_MAX_S)
            text = f"{self.held_up}; the next round waits for {until - now:.0f} s at most"
            return [Notice(Level.INFO, text, "gpu_memory_in_use")] if begins else []
        text = f"{self.held_up}; the next round begins all the same, and may lack that memory"
        complaint = [Notice(Level.WARNING, text, "gpu_memory_in_use")] if taken else []
        return [*complaint, Sweep(checks_gpus=False)]

    def end(self, port: int, now: float) -> None:
        """Record that the sweep is over. `port` is reserved for the next round."""
        self.port, self.over_at = port, now
        self.held_up, self._until = "", None
