"""The reason of a round that runs says how its workers were begun, and why not in place."""

from __future__ import annotations

import dataclasses

import pytest

from coordinatord.protocol.worker_starts import Begun
from tests.support.ledgers import run_of
from tests.support.script import Stage

FORMED = " (formed of nodes n1, n2, its maximum)"


@pytest.mark.parametrize(
    ("begun", "said"),
    [
        ((None, None), ""),
        ((Begun(1, 0, 0), Begun(0, 1, 0)), ": 1 in place, 1 warm"),
        ((Begun(1, 0, 0), None), ": 1 in place, 1 cold"),
        (
            (Begun(1, 0, 0), Begun(0, 0, 1, "it was not out in time")),
            ": 1 in place, 1 cold; not in place on node n2: it was not out in time",
        ),
    ],
)
def test_it_counts_each_way_and_says_why_not_in_place(begun: tuple[Begun | None, Begun | None], said: str) -> None:
    stage = Stage()
    for name in ("n1", "n2"):
        stage.play(f"join {name} min=2 max=2")
    for name, one in zip(("n1", "n2"), begun, strict=True):
        puppet = stage.puppets[name]
        puppet.observed = dataclasses.replace(puppet.observed, begun=one)
        stage.play(f"running {name}")
    assert run_of(stage).durable.reason == f"all workers are started{said}{FORMED}"
