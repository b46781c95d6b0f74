"""A bounded number of histories of each kind keep the invariants and show what the kind is for; `make sim` plays on."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import NamedTuple

import pytest

from tests.sim import campaign, history
from tests.sim.coincidences import COINCIDENCES, KEEPING
from tests.sim.cut_leaders import cut_leader_world
from tests.sim.disk_coincidences import PERSISTING
from tests.sim.finishes import FINISHES, early_leaving_world, finishing_world
from tests.sim.handovers import (
    PLANNED,
    late_giving_world,
    late_newcomer_world,
    lone_node_world,
    planned_world,
    undrained_world,
)
from tests.sim.leavers import leaving_world
from tests.sim.takeovers import TAKEOVERS
from tests.sim.torn_sessions import TORN
from tests.sim.world import World

MIXED = 100
"""The histories of all kinds in turn, as `make sim` plays them."""


class Kind(NamedTuple):
    """The histories of one kind, and what they have to show."""

    play: Callable[[int], World]
    histories: int
    """How many are played at each push; `make long` plays four times as many."""
    shows: tuple[tuple[Callable[[World], float], float], ...] = ()
    """What one history shows as a number, with the least average of all."""
    strikes: Collection[str] = ()
    """The faults that have to be among those of all that `make long` plays."""


def drained(world: World) -> int:
    """Return how many nodes were drained for their lateness."""
    return 0 if world.laggards is None else world.laggards.drained


KINDS = (
    Kind(
        history.keeping_world,
        25,
        (
            (lambda world: world.invariants.kept.resumed, 1 / 4),
            (lambda world: world.invariants.kept.kept_named, 1 / 50),
        ),
    ),
    Kind(history.copying_world, 5, ((lambda world: world.invariants.kept.promised, 1 / 5),)),
    Kind(
        history.persisting_world,
        15,
        (
            (lambda world: world.invariants.kept.persisted.written, 1),
            (lambda world: world.invariants.kept.persisted.resumed, 1 / 5),
        ),
    ),
    Kind(
        history.hanging_world,
        10,
        (
            (lambda world: world.invariants.hangs.named, 1 / 3),
            (lambda world: world.invariants.facts.records["BusyWorkerAwaited"], 1 / 20),
        ),
    ),
    Kind(history.staying_world, 10, ((lambda world: world.invariants.agents.taken_over, 1 / 2),)),
    Kind(history.lagging_world, 10, ((drained, 1 / 5),)),
    Kind(history.diverging_world, 20, ((lambda world: len(world.invariants.replicas.found), 1 / 2),)),
    Kind(
        history.going_back_world,
        20,
        (
            (lambda world: len(world.invariants.replicas.ended), 1 / 2),
            (lambda world: world.invariants.replicas.charged, 1 / 5),
            (lambda world: world.invariants.replicas.spared, 1 / 5),
        ),
    ),
    Kind(history.standby_world, 20, ((lambda world: world.takeovers, 1),), TAKEOVERS),
    Kind(history.coincident_world, 30, ((lambda world: world.invariants.identities.claims, 1),), COINCIDENCES),
    Kind(history.torn_world, 25, ((lambda world: world.invariants.departures.proved, 1 / 20),), TORN),
    Kind(history.coincident_keeping_world, 15, strikes=KEEPING),
    Kind(history.coincident_persisting_world, 15, strikes=PERSISTING),
    Kind(history.waiting_world, 10, ((lambda world: world.invariants.agents.held, 1),)),
    Kind(history.checkpoint_waiting_world, 10, ((lambda world: world.invariants.kept.waits.ended, 1 / 2),)),
    Kind(cut_leader_world, 10),
    Kind(
        history.differing_world,
        10,
        (
            (lambda world: len(world.invariants.kept.useless.differing), 1 / 20),
            (lambda world: world.invariants.kept.resumed, 1 / 4),
        ),
    ),
    Kind(history.blackout_world, 5, ((lambda world: world.invariants.redone.unknown, 1 / 2),)),
    Kind(finishing_world, 20, ((lambda world: world.invariants.rounds.done_without, 1 / 8),), FINISHES),
    Kind(early_leaving_world, 10, ((lambda world: world.invariants.root_cause.early_named, 1 / 4),)),
    Kind(history.often_heard_world, 5, ((lambda world: world.invariants.hangs.named, 1 / 4),)),
    Kind(late_giving_world, 5, ((drained, 1),)),
    Kind(undrained_world, 10, ((lambda world: world.invariants.facts.records["NodeUndrained"], 1 / 2),)),
    Kind(late_newcomer_world, 5, ((lambda world: world.invariants.kept.resumed, 1 / 2),)),
    Kind(leaving_world, 10, ((lambda world: world.invariants.kept.persisted.written, 1),)),
    Kind(lone_node_world, 10, ((lambda world: world.invariants.kept.resumed, 1 / 2),)),
    Kind(planned_world, 10, ((lambda world: world.invariants.planned.untrained, 1 / 2),), PLANNED),
    Kind(history.mixed_world, 8, ((lambda world: world.faults.total(), 2),)),
    Kind(history.slow_store_world, 20, ((lambda world: world.invariants.facts.records["RoundFormed"], 2),)),
)


def play(kind: Kind, histories: int) -> list[World]:
    """Play the first histories of a kind, and check what they have shown."""
    worlds = [kind.play(seed) for seed in range(histories)]
    for shows, least in kind.shows:
        assert sum(map(shows, worlds)) >= least * histories
    return worlds


@pytest.mark.slow
def test_every_history_keeps_the_invariants() -> None:
    part = campaign.explore(0, 1, seconds=math.inf, most=MIXED, nodes=0)
    assert not part.failed, "\n".join(part.failed.values())
    assert part.seeds == MIXED
    assert part.faults.total() > MIXED


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.play.__name__)
def test_the_histories_of_a_kind_keep_the_invariants_and_show_what_it_is_for(kind: Kind) -> None:
    play(kind, kind.histories)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.play.__name__)
def test_four_times_as_many_histories_of_a_kind_do_so_as_well_and_have_all_its_faults(kind: Kind) -> None:
    worlds = play(kind, 4 * kind.histories)
    assert {name for world in worlds for name in world.faults} >= set(kind.strikes)
