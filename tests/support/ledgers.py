"""Plays scripts of one job and reads where its time went, for the tests of the ledger."""

import pytest
from msgspec.structs import asdict

from coordinatord.core.rounds.state.run import Run
from coordinatord.core.rounds.values.time_ledger import Activity
from coordinatord.core.shown.job_view import job_view
from coordinatord.protocol.http.api import JobStatus
from tests.support.script import Stage

PAIR = """
    join n1 min=2 max=2
    advance 3s
    join n2 min=2 max=2
    advance 1s
    running n1 n2
"""
"""The second node comes after 3 s, and the workers are up after another."""


def play(*scripts: str, **policy: float) -> Stage:
    """Play scripts of a coordinator, one line after another."""
    stage = Stage(**policy)
    stage.play(*(line for script in scripts for line in script.split("\n") if line.strip()))
    return stage


def run_of(stage: Stage) -> Run:
    """Return the run of the default job."""
    return stage.coordinator.jobs["default"]


def shown(stage: Stage) -> JobStatus:
    """Return its status."""
    return job_view(run_of(stage), stage.now, stage.coordinator.store_error)


def ledger(stage: Stage) -> dict[str, float]:
    """Return the status's ledger, without the zeros; it adds up to the time since the run was opened."""
    view = shown(stage)
    seconds = asdict(view.ledger.seconds)
    assert sum(seconds.values()) == pytest.approx(view.ledger.total) == view.opened_s
    assert set(seconds) == {str(activity) for activity in Activity}
    return {activity: took for activity, took in seconds.items() if took}
