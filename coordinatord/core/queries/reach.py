"""Whether this coordinator is cut off from its nodes, as far as it can tell by itself."""

from __future__ import annotations

from coordinatord.core.state.cluster import Cluster


def is_cut_off(cluster: Cluster) -> bool:
    """Whether each node that is connected has been silent for its whole lease, and there is one.

    The process of a node that ends closes its connection, and a host that dies takes its own nodes along. So it is most
    likely this coordinator's network if nobody at all is heard, and nobody has said goodbye.
    """
    silent = False
    for run in cluster.jobs.values():
        for member in run.members.values():
            if member.session is not None and not member.expired:
                return False
            silent |= member.session is not None
    return silent
