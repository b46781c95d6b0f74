"""The user's settings of a node's agent."""

from __future__ import annotations

from msgspec import Struct

JOIN_TIMEOUT_S = 600.0
"""How long nodes look for a coordinator and wait for a round by default, as in torchrun."""

ABORT_TIMEOUT_S = 0.5
"""The time from SIGTERM to SIGKILL in an unplanned stop. A worker that hangs in a collective does not end by itself."""

NCCL_ABORT_TIMEOUT_S = 3.0
"""How long workers that abort NCCL may take to leave their round. A new warm worker does its first step after 3 s (one
run on an H100), so a longer wait for a reused one would gain nothing."""

KEEP_RATE = 100e6
"""The limit of bytes a second at which a node copies other nodes' state, near the capacity of 1 Gbit/s. Half of it is
enough for copies to keep up with saves that take 1 % of the time."""

KEEP_TIMEOUT_S = 30.0
"""The longest time that workers get to save their kept state, as in a planned stop."""

HALT_SHARE = 0.5
"""The share of `--stop-timeout` in which workers halt after a common step before a planned end, and save it. The rest
is for a save without a common step. A host that will be preempted gives some 30 s of notice."""

CHECKPOINT_SHARE = 0.9
"""The same share where the script writes its own checkpoint: nothing else has to be saved after it."""

PUT_OFF_SHARE = 0.5
"""The share of their time to end in which workers may choose the step to save. After it they are asked to save their
last step, because a script in a long evaluation calls `should_stop` too late."""

LEAVE_WITHIN_S = 5.0
"""A leaving node waits this long, one lease, for the coordinator's decision. Then it stops its workers by itself."""

BACK_WITHIN_S = 10.0
"""A leaving node that keeps state waits this long for a coordinator that is out of reach, because without one no step
becomes whole on the disk. A standby leads after some six seconds. The rest of 30 s of notice is enough to save."""


class Settings(Struct, frozen=True):
    """The settings of an agent; durations in seconds."""

    workers: int
    join_timeout_s: float
    """How long the node looks for a coordinator while it has no workers."""
    stop_timeout_s: float
    """How long workers get to end in a planned stop."""
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
