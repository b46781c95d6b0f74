"""Finds the control groups of this process, whose limits are those of its container.

/proc and /sys show the CPUs and the memory of the whole host; a container may use less.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from nodeclient.host.devices import Host
from nodeclient.host.process_state import read_if_there


def control_groups(controller: str, host: Host) -> Iterator[tuple[Path, bool]]:
    """Yield the directories of all groups that limit this process by a controller, such as `cpu`, the innermost first.

    Each directory, which need not exist, comes with whether it is of version 2, where all controllers share
    directories. The limits of all groups apply. See the kernel's cgroup-v2.rst and cgroup-v1.
    """
    for group in read_if_there(host.processes / "self/cgroup").splitlines():
        _, controllers, path = group.split(":", 2)
        # In a container with its own cgroup namespace the path may be missing; then the visible root is its group.
        below = PurePosixPath(path.lstrip("/"))
        root = host.system / "fs/cgroup"
        if not controllers:
            yield from ((root / folder, True) for folder in (below, *below.parents))
        elif controller in controllers.split(","):
            yield from ((root / controller / folder, False) for folder in (below, *below.parents))
