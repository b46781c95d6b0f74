"""A node of two workers that can go into another round as the same processes, on a bench."""

from __future__ import annotations

import dataclasses

from coordinatord.protocol.kept_state import Resume
from coordinatord.protocol.messages import Goal
from tests.support.bench import SETTINGS, Bench

RESUME = Resume(1, 7, 2, 1, (), complete=True)


def elastic(*, keeps: bool = False) -> Bench:
    """Run workers of which all can stay."""
    bench = Bench(dataclasses.replace(SETTINGS, keeps=keeps)).running()
    bench.stays(0, 1)
    return bench


def held() -> Bench:
    """Have both workers out of round 1, which is over."""
    bench = elastic()
    bench.receive(Goal.STOP)
    bench.left(0)
    bench.left(1)
    bench.swept()
    return bench
