"""The settings of a node's agent, their defaults, and the times that no user sets."""

from __future__ import annotations

from msgspec import Struct

JOIN_TIMEOUT_S = 600.0
"""How long nodes without workers look for a coordinator by default, and wait for a round, as in torchrun."""

ABORT_TIMEOUT_S = 0.5
"""The time from SIGTERM to SIGKILL in an unplanned stop. A worker that hangs in a collective does not end by itself."""

NCCL_ABORT_TIMEOUT_S = 3.0
"""How long workers that abort NCCL may take to leave their round. A new warm worker does its first step after 3 s (one
run on an H100), so a longer wait for a reused one would gain nothing."""

KEEP_RATE = 100e6
"""The limit of bytes a second at which a node copies other nodes' state, near the capacity of 1 Gbit/s. Saves at
intervals take 1 % of the time. If a save writes 5 GB a second, that is 50 MB for each second of training: copies keep
up with it."""

KEEP_TIMEOUT_S = 30.0
"""The longest time that workers get to save their kept state; `--stop-timeout` has the same default."""

STAGE_SHARE = 0.5
"""The share of the rest of `--stop-timeout` that a stage of a planned end may take. The stages are: workers come to a
common step, they save, and they end after SIGTERM, which may take all the rest. So a script that saves when it gets
SIGTERM has a quarter of the time for that, even if the two stages before took their whole shares. It has less only if
the node waited for its coordinator, or its workers for NCCL."""

CHECKPOINT_SHARE = 0.9
"""The same share for the first stage where the script writes its own checkpoint in it: nothing else has to be saved
after that."""

LEAVE_WITHIN_S = 5.0
"""A leaving node waits this long, one lease, for the coordinator's decision. Then it stops its workers by itself. While
they train, neither this wait nor that of `BACK_WITHIN_S` takes more than `STAGE_SHARE` of `--stop-timeout`: they need
the rest to end."""

BACK_WITHIN_S = 10.0
"""A leaving node that keeps state waits this long for a coordinator that is out of reach, because without one no step
becomes whole on the disk. A standby leads after some six seconds. Clouds give 30 s of notice before they take a host
away: enough is left of it to save."""


class Settings(Struct, frozen=True):
    """The settings of an agent; durations in seconds."""

    workers: int
    join_timeout_s: float
    """How long the node looks for a coordinator while it has no workers."""
    stop_timeout_s: float
    """How long workers get to end in a planned stop, in all stages together."""
    abort_timeout_s: float = ABORT_TIMEOUT_S
    """How long workers get to end in any other stop."""
    nccl_abort_timeout_s: float = NCCL_ABORT_TIMEOUT_S
    """How long workers get to leave a round for another one once they abort NCCL."""
    preloads: bool = False
    """Whether the node has to import modules before it can start workers: see `Prepared`."""
    keeps: bool = False
    """Whether workers may keep state in memory of this node."""
    coordinator_forgets: bool = False
    """Whether the only coordinator is one that a node has started. If that one does not know a run, none does."""
    checks_health: bool = False
    """Whether this host is checked, by the built-in check or the command of `--health-check`."""
    kills: bool = True
    """Whether this node kills workers that do not end in time. torchrun kills its own."""
