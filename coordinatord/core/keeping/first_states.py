"""Whether all ranks of a round had the same state after its first step, so that one copy of it is enough."""

from __future__ import annotations


class FirstStates:
    """The digests of the workers' states after the first step of a round."""

    def __init__(self) -> None:
        self.alike: bool | None = None
        """Whether all ranks had the same state; None before that is known."""
        self._of_node: dict[str, tuple[int, ...]] = {}

    def record(self, node: str, digests: tuple[int, ...], nodes: int) -> bool:
        """Record a node's digests in a round of so many `nodes`; return whether that settles `alike`."""
        if not digests or self.alike is not None:
            return False
        self._of_node[node] = digests
        if len({digest for of_node in self._of_node.values() for digest in of_node}) > 1:
            self.alike = False
        elif len(self._of_node) == nodes:
            self.alike = True
        return self.alike is not None
