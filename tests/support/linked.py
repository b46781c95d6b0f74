"""A coordinator and the nodes of one job on hosts that a bad network connects."""

from contextlib import ExitStack
from typing import Self

from tests.support.cluster import Cluster, Coordinator, Node
from tests.support.hosts import Hosts
from tests.support.link import Link

COORDINATOR = "coord"
"""The coordinator's host; each node's host has the node's name."""


class LinkedSite:
    """The coordinator, the nodes and the link between them."""

    def __init__(self, names: str, *flags: str, seed: int = 0) -> None:
        """Build the site; `names` are those of the nodes' hosts, one letter each; `flags` are the coordinator's."""
        self._names = names
        self._flags = flags
        self._seed = seed
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._hosts = stack.enter_context(Hosts(COORDINATOR, *self._names))
            self.link = stack.enter_context(Link(self._hosts, self._seed))
            self.coordinator = Coordinator(*self._flags, host="0.0.0.0", prefix=self._hosts.on(COORDINATOR))  # noqa: S104
            stack.callback(self.coordinator.close)
            self.cluster = Cluster(self.coordinator, "job")
            stack.callback(self.cluster.close)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def join(self, name: str, *flags: str, script: str = "") -> Node:
        """Start a nodeclient on the host of this name."""
        coord = f"{self.link.address[COORDINATOR]}:{self.coordinator.port}"
        return self.cluster.join(name, *flags, script=script, coord=coord, prefix=self._hosts.on(name))
