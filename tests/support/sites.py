"""A coordinator and the nodes of one job, each on a host of its own."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Self

from tests.support.cluster import QUICK, Cluster, Coordinator, Node
from tests.support.hosts import Hosts
from tests.support.link import Link

COORDINATOR = "coord"
"""The coordinator's host; each node's host has the node's name."""


class Site:
    """Hosts with cables that can be cut, the coordinator and the nodes."""

    def __init__(self, names: Iterable[str], *flags: str) -> None:
        """Build the site; `names` are those of the nodes' hosts; `flags` are the coordinator's beside `QUICK`."""
        self._names = names
        self._flags = flags
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.hosts = stack.enter_context(Hosts(COORDINATOR, *self._names))
            self.address = self._connect(stack)
            # Listens at all addresses, as it does by default.
            prefix = self.hosts.on(COORDINATOR)
            self.coordinator = stack.enter_context(Coordinator(*QUICK, *self._flags, host="::", prefix=prefix))
            self.cluster = stack.enter_context(Cluster(self.coordinator, "job"))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def join(self, host: str, *flags: str, command: Sequence[str] = (), script: str = "", name: str = "") -> Node:
        """Start a nodeclient on a host, whose name it has unless another one is given."""
        coord = f"{self.address[COORDINATOR]}:{self.coordinator.port}"
        return self.cluster.join(
            name or host, *flags, command=command, script=script, coord=coord, prefix=self.hosts.on(host)
        )

    def _connect(self, stack: ExitStack) -> Mapping[str, str]:
        """Connect the hosts; return their addresses."""
        del stack
        return self.hosts.address


class LinkedSite(Site):
    """The same with a bad network between the hosts, which begins perfect."""

    def __init__(self, names: Iterable[str], *flags: str, seed: int = 0) -> None:
        """Build the site; `seed` is that of the `Link`."""
        super().__init__(names, *flags)
        self._seed = seed

    def _connect(self, stack: ExitStack) -> Mapping[str, str]:
        self.link = stack.enter_context(Link(self.hosts, self._seed))
        return self.link.address
