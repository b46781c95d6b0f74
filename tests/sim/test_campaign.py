"""A bounded number of histories of each kind keep the invariants and show what the kind is for; `make sim` plays on."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import NamedTuple

import pytest

from tests.sim import campaign, cut_leaders, finishes, handovers, history
from tests.sim.coincidences import COINCIDENCES, KEEPING
from tests.sim.disk_coincidences import DONE, LOST, PERSISTING
from tests.sim.foreign_coordinator import ForeignCoordinator
from tests.sim.invariants.all_laws import AllLaws
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
    shows: tuple[tuple[Callable[[AllLaws], float], float], ...] = ()
    """What the laws have seen of one history, as a number, with the least average of all."""
    strikes: Collection[str] = ()
    """The faults that have to be among those of all that `make long` plays."""


def drained(laws: AllLaws) -> int:
    """Return how many nodes were drained for their lateness."""
    return 0 if laws.facts.world.laggards is None else laws.facts.world.laggards.drained


def strangers(laws: AllLaws) -> list[ForeignCoordinator]:
    """Return the coordinators of another history."""
    return [each for each in laws.facts.world.coordinators if isinstance(each, ForeignCoordinator)]


KINDS = (
    Kind(
        history.keeping_world,
        25,
        ((lambda laws: laws.kept.resumed, 1 / 4), (lambda laws: laws.kept.kept_named, 1 / 50)),
    ),
    Kind(history.copying_world, 5, ((lambda laws: laws.kept.promised, 1 / 5),)),
    Kind(
        history.persisting_world,
        15,
        ((lambda laws: laws.kept.persisted.written, 1), (lambda laws: laws.kept.persisted.resumed, 1 / 5)),
    ),
    Kind(
        history.hanging_world,
        10,
        ((lambda laws: laws.hangs.named, 1 / 3), (lambda laws: laws.facts.records["BusyWorkerAwaited"], 1 / 20)),
    ),
    Kind(history.staying_world, 10, ((lambda laws: laws.agents.taken_over, 1 / 2),)),
    Kind(history.lagging_world, 10, ((drained, 1 / 5),)),
    Kind(history.diverging_world, 20, ((lambda laws: len(laws.replicas.found), 1 / 2),)),
    Kind(
        history.going_back_world,
        20,
        (
            (lambda laws: len(laws.replicas.ended), 1 / 2),
            (lambda laws: laws.replicas.charged, 1 / 5),
            (lambda laws: laws.replicas.spared, 1 / 5),
        ),
    ),
    Kind(history.standby_world, 20, ((lambda laws: laws.facts.world.takeovers, 1),), TAKEOVERS),
    Kind(history.coincident_world, 30, ((lambda laws: laws.identities.claims, 1),), COINCIDENCES),
    Kind(history.torn_world, 25, ((lambda laws: laws.departures.proved, 1 / 20),), TORN),
    Kind(history.coincident_keeping_world, 15, strikes=KEEPING),
    Kind(history.coincident_persisting_world, 15, strikes=PERSISTING),
    Kind(history.disk_losing_world, 15, ((lambda laws: laws.kept.persisted.fell, 1 / 3),), LOST),
    Kind(history.waiting_world, 10, ((lambda laws: laws.agents.held, 1),)),
    Kind(history.checkpoint_waiting_world, 10, ((lambda laws: laws.kept.waits.ended, 1 / 2),)),
    Kind(cut_leaders.cut_leader_world, 10),
    Kind(
        history.differing_world,
        10,
        ((lambda laws: len(laws.kept.useless.differing), 1 / 20), (lambda laws: laws.kept.resumed, 1 / 4)),
    ),
    Kind(history.blackout_world, 5, ((lambda laws: laws.redone.unknown, 1 / 2),)),
    Kind(finishes.finishing_world, 20, ((lambda laws: laws.rounds.done_without, 1 / 8),), finishes.FINISHES),
    Kind(finishes.early_leaving_world, 10, ((lambda laws: laws.root_cause.early_named, 1 / 4),)),
    Kind(finishes.late_exit_world, 10, ((lambda laws: laws.facts.records["ExitOverdue"], 1 / 5),), finishes.FINISHES),
    Kind(finishes.leaving_finish_world, 10, ((lambda laws: laws.agents.put_off, 1),), finishes.LEAVES),
    Kind(finishes.unended_world, 10, ((lambda laws: laws.hangs.unended, 1 / 2),), finishes.UNENDED),
    Kind(finishes.done_world, 10, ((lambda laws: laws.kept.persisted.written, 1),), DONE),
    Kind(history.often_heard_world, 5, ((lambda laws: laws.hangs.named, 1 / 4),)),
    Kind(handovers.late_giving_world, 5, ((drained, 1),)),
    Kind(handovers.undrained_world, 10, ((lambda laws: laws.facts.records["NodeUndrained"], 1 / 2),)),
    Kind(handovers.late_newcomer_world, 5, ((lambda laws: laws.kept.resumed, 1 / 2),)),
    Kind(handovers.leaving_world, 10, ((lambda laws: laws.kept.persisted.written, 1),)),
    Kind(handovers.lone_node_world, 10, ((lambda laws: laws.kept.resumed, 1 / 2),)),
    Kind(handovers.planned_world, 10, ((lambda laws: laws.planned.untrained, 1 / 2),), handovers.PLANNED),
    Kind(history.mixed_world, 8, ((lambda laws: laws.facts.world.faults.total(), 2),)),
    Kind(history.forgetful_world, 20, ((lambda laws: laws.facts.world.faults["connections forgotten"], 1),)),
    Kind(
        history.foreign_coordinator_world,
        30,
        (
            (lambda laws: sum(each.asked for each in strangers(laws)), 1),
            (lambda laws: sum(each.would_take for each in strangers(laws)), 1 / 30),
        ),
    ),
    Kind(history.slow_store_world, 20, ((lambda laws: laws.facts.records["RoundFormed"], 2),)),
)


def play(kind: Kind, histories: int) -> list[World]:
    """Play the first histories of a kind, and check what they have shown."""
    worlds = [kind.play(seed) for seed in range(histories)]
    for shows, least in kind.shows:
        assert sum(shows(world.invariants) for world in worlds) >= least * histories
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
