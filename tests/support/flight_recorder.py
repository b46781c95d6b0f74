"""Which torch has a flight recorder that records collectives of gloo."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version

import pytest

FIRST = (2, 13)
"""The first release of torch whose recorder is known to work."""


def _release() -> tuple[int, ...]:
    """Return the release of the installed torch; empty without it."""
    try:
        return tuple(map(int, re.findall(r"\d+", version("torch"))[:2]))
    except PackageNotFoundError:
        return ()


needs_flight_recorder = pytest.mark.skipif(
    _release() < FIRST, reason="this torch has no flight recorder that records gloo"
)
