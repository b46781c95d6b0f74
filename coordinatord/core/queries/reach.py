"""Whether this coordinator is cut off from its nodes, as far as it can know by itself."""

from __future__ import annotations

from coordinatord.core.state.cluster import Cluster


def is_cut_off(cluster: Cluster) -> bool:
    """Whether each node that is connected has been silent for its whole lease, and there is one.

    A node process that ends closes its connection, and a host that dies takes its own nodes along. So if no node at all
    is heard, and connections are still open, it is most likely this coordinator's network.
    """
    silent = False
    for run in cluster.jobs.values():
        for member in run.members.values():
            if member.session is not None and not member.expired:
                return False
            silent |= member.session is not None
    return silent
