"""Finds out whether all ranks of a round have the same state, so that one rank's copy of it stands for all.

Sharded tensors show their sharding. Other tensors do not show whether all ranks have the same (DDP) or each its own, as
in the stages of a pipeline. So each worker sends a digest of its state after the first step of a round that began from
nothing. Nodes tell their workers the answer, `alike`; until then, workers save no weights.
"""

from __future__ import annotations


class FirstStates:
    """The digests that the nodes of one round have reported, and the answer."""

    def __init__(self) -> None:
        self.alike: bool | None = None
        """Whether all ranks had the same state; None before that is known."""
        self._of_node: dict[str, tuple[int, ...]] = {}

    def record(self, node: str, digests: tuple[int, ...], nodes: int) -> bool:
        """Record a node's digests in a round of so many `nodes`; return whether that settles `alike`.

        Once all of its workers have a digest, a node reports one if all are equal, else two of them.
        """
        if not digests or self.alike is not None:
            return False
        self._of_node[node] = digests
        if len({digest for of_node in self._of_node.values() for digest in of_node}) > 1:
            self.alike = False
        elif len(self._of_node) == nodes:
            self.alike = True
        return self.alike is not None
