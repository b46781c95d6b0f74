"""Clocks that are wrong: hosts that boot without a battery, or with somebody's typing error."""

import shutil

import pytest

from tests.support.cluster import Coordinator
from tests.surroundings.support import join, went

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("now", ["1970-01-02 00:00:00", "2100-01-02 00:00:00"])
def test_the_clock_of_a_host_may_be_decades_off(coordinator: Coordinator, now: str) -> None:
    if shutil.which("faketime") is None:
        pytest.skip("a clock is set for one program by faketime")
    ended = went("faketime", now, *join(coordinator), "true")
    assert now[:4] in ended.stderr
