"""Finds the control groups of this process, whose limits are what a container is granted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from nodeclient.host.devices import Host


def control_groups(controller: str, host: Host) -> Iterator[tuple[Path, bool]]:
    """Find the directories of all groups that limit this process by a controller, such as `cpu`, the innermost first.

    Beside each stands whether it is of version 2, where all controllers share the directories. A limit of any of them
    holds. See the kernel's cgroup-v2.rst and cgroup-v1.
    """
    try:
        groups = (host.processes / "self/cgroup").read_text().splitlines()
    except FileNotFoundError:
        return
    for group in groups:
        _, controllers, path = group.split(":", 2)
        # In a container with a view of its own the path may be another's; the visible root is then this container's.
        below = PurePosixPath(path.lstrip("/"))
        root = host.system / "fs/cgroup"
        if not controllers:
            yield from ((root / folder, True) for folder in (below, *below.parents))
        elif controller in controllers.split(","):
            yield from ((root / controller / folder, False) for folder in (below, *below.parents))
