"""Where the time of a job on a stage went, for the tests of the ledger."""

import pytest
from msgspec.structs import asdict

from coordinatord.core.rounds.values.time_ledger import Activity
from tests.support.script import Stage

PAIR = """
    join n1 min=2 max=2
    advance 3s
    join n2 min=2 max=2
    advance 1s
    running n1 n2
"""
"""The second node comes after 3 s, and the workers are up after another."""


def ledger(stage: Stage) -> dict[str, float]:
    """Return the status's ledger, without the zeros; it adds up to the time since the run was opened."""
    view = stage.view()
    seconds = asdict(view.ledger.seconds)
    assert sum(seconds.values()) == pytest.approx(view.ledger.total) == view.opened_s
    assert set(seconds) == {str(activity) for activity in Activity}
    return {activity: took for activity, took in seconds.items() if took}
