"""Knows the newest step of one run that its nodes find on the disk, and whether that step is gone.

Each node scans the disk at its own times, and perhaps a directory of its own. So a node that has never found the step
proves nothing, even if it is the last node that is left. The newest step is gone once a node that had found it no
longer does, and no other member finds it. No node deletes that step, so somebody else has, or it cannot be read.
"""

from __future__ import annotations

from collections.abc import Collection

from coordinatord.protocol.kept_state import KeptStep, PersistedStep


class FoundSteps:
    """The steps that the nodes of one run found on the disk. None is recorded: after a restart, nodes report them."""

    def __init__(self) -> None:
        self.has_any = False
        """Whether any node has ever found a step on the disk, usable or not."""
        self.newest: KeptStep | None = None
        """The newest step of this run that is whole on the disk, as far as is known."""
        self.lost: KeptStep | None = None
        """The newest step that was there and is gone; None if there is none, or once a step as new is there."""
        self.departed: tuple[str, tuple[PersistedStep, ...]] | None = None
        """The departed node that had found the newest steps on the disk, and these steps: the next round must not begin
        anew where a node has seen steps to resume from. None once it is back, or another node finds a step as new."""
        self.agreed: PersistedStep | None = None
        """The newest step found in which ranks have the same state; None while they have never differed."""
        self._finders: set[str] = set()
        """The nodes whose last scan had `newest` as the newest step of this run. A node that is gone stays among them
        until it comes back and does not find the step, or looks at no disk."""
        self._is_missed = False
        """Whether a node that had found the newest step no longer does, and none has found it since."""

    def record(self, node: str, found: tuple[PersistedStep, ...], newest: KeptStep | None, unusable: str) -> None:
        """Record the steps that a node finds on the disk, newest first, and why it cannot use others.

        `newest` is the newest one of this run.
        """
        self.has_any |= bool(found or unusable)
        if self.departed is not None and (node == self.departed[0] or (found and self._is_as_new(found))):
            self.departed = None
        if newest is not None and self._is_newer(newest):
            self.replace_newest(newest, {node})
        elif newest == self.newest and node not in self._finders:
            self._finders.add(node)
            self._is_missed = False
        elif newest != self.newest and node in self._finders:
            self._finders.remove(node)
            self._is_missed = True

    def record_blind(self, node: str) -> None:
        """Record that a node looks at no disk, though its process before this one may have."""
        self._finders.discard(node)

    def record_written(self, at: KeptStep) -> None:
        """Record that a step of this run was made whole; it may be that no node has found it yet."""
        if self._is_newer(at):
            self.replace_newest(at, ())

    def _is_newer(self, at: KeptStep) -> bool:
        return self.newest is None or at > self.newest

    def record_departure(self, node: str, found: tuple[PersistedStep, ...]) -> None:
        """Record that a node is gone, and the steps that it had found on the disk."""
        if found and (self.departed is None or self._is_as_new(found)):
            self.departed = node, found

    def _is_as_new(self, found: tuple[PersistedStep, ...]) -> bool:
        return self.departed is not None and found[0].serial >= self.departed[1][0].serial

    def is_newest_gone(self, members: Collection[str]) -> bool:
        """Whether the newest step is gone, given the members of the run."""
        return self._is_missed and not any(node in members for node in self._finders)

    def replace_newest(self, newest: KeptStep | None, finders: Collection[str]) -> None:
        """Record another newest step, and the nodes that find it."""
        self.newest, self._finders, self._is_missed = newest, {*finders}, False
        if self.lost is not None and newest is not None and newest >= self.lost:
            self.lost = None
