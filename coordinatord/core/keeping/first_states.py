"""Whether all ranks of a round had the same state after its first step."""

from __future__ import annotations


class FirstStates:
    """The states that the workers of a round had after its first step, as digests."""

    def __init__(self) -> None:
        """Begin with nothing known."""
        self.alike: bool | None = None
        """Whether all ranks of the round had the same state then; None before that is known."""
        self._of_node: dict[str, tuple[int, ...]] = {}

    def begin_round(self) -> None:
        """Forget the states of an earlier round."""
        self.alike = None
        self._of_node.clear()

    def note(self, node: str, digests: tuple[int, ...], nodes: int) -> bool:
        """Take in the states of a node's workers in a round of so many nodes; return whether `alike` is known now."""
        if not digests or self.alike is not None:
            return False
        self._of_node[node] = digests
        if len({digest for of_node in self._of_node.values() for digest in of_node}) > 1:
            self.alike = False
        elif len(self._of_node) == nodes:
            self.alike = True
        return self.alike is not None
