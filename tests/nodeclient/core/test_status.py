"""The line about where a node stands."""

import pytest

from coordinatord.protocol.messages import Phase
from nodeclient.core import notices
from tests.support.builders import an_assignment, an_observed

PART = an_assignment(first_rank=8, world_size=64)

WAITING = "waiting for nodes: 3 of 4 joined"


@pytest.mark.parametrize("phase", sorted(set(Phase) - {Phase.PREPARING, Phase.IDLE}), ids=str)
def test_a_node_with_a_part_of_a_round_has_ranks(phase: Phase) -> None:
    observed = an_observed(round=3, phase=phase)
    assert notices.status(observed, PART, 8, WAITING, connected=True) == f"round 3, ranks 8 to 15 of 64: {phase.value}"
    assert notices.status(observed, PART, 1, WAITING, connected=True) == f"round 3, rank 8 of 64: {phase.value}"


def test_a_node_that_prepares_says_so_and_what_it_waits_for() -> None:
    text = "preparing: the modules of --preload are being imported; waiting for nodes: 3 of 4 joined"
    assert notices.status(an_observed(phase=Phase.PREPARING), None, 8, WAITING, connected=True) == text


def test_a_node_without_one_waits() -> None:
    assert notices.status(an_observed(round=3, phase=Phase.IDLE), PART, 8, WAITING, connected=True) == WAITING
    assert notices.status(an_observed(round=3, phase=Phase.STOPPED), None, 8, WAITING, connected=True) == WAITING


def test_a_node_in_a_round_says_that_the_coordinator_is_out_of_reach() -> None:
    observed = an_observed(round=3, phase=Phase.RUNNING)
    words = "round 3, ranks 8 to 15 of 64: running; the coordinator is out of reach"
    assert notices.status(observed, PART, 8, WAITING, connected=False) == words
