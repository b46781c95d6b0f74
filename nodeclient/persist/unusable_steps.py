"""Steps on the disk that this node could not read, and when they are tried again.

A step that is damaged is never tried again in the life of this process. A file system that fails may soon work again.
A whole round is begun for each attempt, so the pauses between attempts grow.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

from coordinatord.protocol.kept_parts import KeptStep

AGAIN_S = 30.0
"""The first pause after an error of the file system; each further one is twice as long."""

AGAIN_MAX_S = 600.0

Key = tuple[str, KeptStep]
"""A step by the run that did it."""


class UnusableSteps:
    """The steps that could not be read, each with the reason. The caller passes the time, in seconds."""

    def __init__(self) -> None:
        self._barred_until: dict[Key, float] = {}
        self._pause_s: dict[Key, float] = {}
        self._why: dict[Key, str] = {}

    def note(self, key: Key, why: str, now: float, *, may_pass: bool) -> None:
        """Note that a step could not be read; with `may_pass` the file system has failed, and not the step."""
        pause_s = min(2 * self._pause_s.get(key, AGAIN_S / 2), AGAIN_MAX_S)
        self._pause_s[key], self._why[key] = pause_s, why
        self._barred_until[key] = now + pause_s if may_pass else math.inf

    def forget_gone(self, there: Collection[Key]) -> None:
        """Forget the steps that are not on the disk any more."""
        for key in self._why.keys() - {*there}:
            del self._barred_until[key], self._pause_s[key], self._why[key]

    def is_barred(self, key: Key, now: float) -> bool:
        """Whether a step is not to be tried now."""
        return now < self._barred_until.get(key, -math.inf)

    def why(self, there: Iterable[Key], now: float) -> str:
        """Return why the first of these steps that is not to be tried now is of no use; empty if all can be tried."""
        return next((self._why[key] for key in there if self.is_barred(key, now)), "")
