"""The line about where a node stands."""

import pytest

from coordinatord.protocol.messages import Assignment, Phase
from nodeclient.core import notices
from tests.support.builders import an_assignment, an_observed

PART = an_assignment(first_rank=8, world_size=64)

WAITING = "waiting for nodes: 3 of 4 joined"


@pytest.mark.parametrize(
    ("phase", "part", "workers", "connected", "line"),
    [
        *((phase, PART, 8, True, f"round 3, ranks 8 to 15 of 64: {phase}") for phase in Phase if phase.has_workers),
        (Phase.SUCCEEDED, PART, 1, True, "round 3, rank 8 of 64: succeeded"),
        (Phase.RUNNING, PART, 8, False, "round 3, ranks 8 to 15 of 64: running; the coordinator is out of reach"),
        (Phase.PREPARING, None, 8, True, f"preparing: the modules of --preload are being imported; {WAITING}"),
        (Phase.IDLE, PART, 8, True, WAITING),
        (Phase.STOPPED, None, 8, True, WAITING),
    ],
)
def test_a_node_with_ranks_in_a_round_says_so_and_any_other_what_it_waits_for(
    phase: Phase, part: Assignment | None, workers: int, connected: bool, line: str
) -> None:
    observed = an_observed(round=3, phase=phase)
    assert notices.status(observed, part, workers, WAITING, connected=connected) == line
