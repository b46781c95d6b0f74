"""The settings of a node's agent, their defaults, and the times that no user sets."""

from __future__ import annotations

from msgspec import Struct

JOIN_TIMEOUT_S = 600.0
"""The default of `--join-timeout`, as in torchrun: how long a node looks for a coordinator, and waits for a round."""

ABORT_TIMEOUT_S = 0.5
"""The time from SIGTERM to SIGKILL in an unplanned stop. A worker that hangs in a collective does not end by itself."""

NCCL_ABORT_TIMEOUT_S = 3.0
"""How long workers that abort NCCL may take to leave their round. A new warm worker does its first step after 3 s (one
run on an H100), so a longer wait for a reused one would gain nothing."""

KEEP_RATE = 100e6
"""The most bytes a second that a node copies of other nodes' state: a link of 1 Gbit/s carries 125e6. Workers that save
at intervals of steps spend 1 % of their time on saves. At 5 GB a second, they save 50 MB for each second of training on
average, so copies keep up with saves."""

KEEP_TIMEOUT_S = 30.0
"""The longest time that workers get to save their kept state; `--stop-timeout` has the same default."""

STAGE_SHARE = 0.5
"""The share of what is left of `--stop-timeout` that a stage of a planned end may take. In the first stage workers come
to a common step, and in the second they save. The last one, after SIGTERM, may take all that is left. So a script that
saves when it gets SIGTERM has at least a quarter of `--stop-timeout`, unless the node waited for its coordinator, or
its workers for NCCL."""

CHECKPOINT_SHARE = 0.9
"""The share of the first stage if the script writes its own checkpoint in it: then the later stages save nothing."""

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
    """How long the node looks for a coordinator while it has no workers. The coordinator limits waits for a round."""
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
    """Whether the only coordinator is one that a node starts. Its records end with it, so the next one knows no run."""
    checks_health: bool = False
    """Whether this host is checked, by the built-in check or the command of `--health-check`."""
    kills: bool = True
    """Whether this node kills workers that do not end in time. torchrun kills those that it has started."""
