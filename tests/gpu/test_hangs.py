"""One of three workers that share a GPU hangs, or skips a collective: it is named and replaced, and no step is lost."""

import pytest

from tests.gpu.conftest import ON_CPU
from tests.gpu.jobs import WARM, SharedGpu
from tests.support.flight_recorder import needs_flight_recorder

pytestmark = [pytest.mark.slow, *([needs_flight_recorder] if ON_CPU else [])]


@pytest.mark.parametrize(
    ("hang", "how", "named", "stay"),
    [
        pytest.param("stopped", "kept", "rank 1 on ", 0, id="stopped, kept"),
        pytest.param("stopped", "in-place", "rank 1 on ", 2, id="stopped, in place"),
        pytest.param("loop", "kept", "rank 1 on ", 0, id="in Python"),
        pytest.param(
            "kernel",
            "kept",
            "rank 1 on ",
            0,
            id="in a kernel",
            marks=pytest.mark.skipif(ON_CPU, reason="a CPU has no kernels"),
        ),
        pytest.param("skip", "kept", "ranks 0, 1, 2 ", 0, id="a collective is skipped"),
    ],
)
def test_a_worker_hangs(shared_gpu: SharedGpu, hang: str, how: str, named: str, stay: int) -> None:
    nodes = shared_gpu.join("abc", how, f"1:1:8:{hang}", flags=(*WARM, "--hang-timeout", "5"))
    assert [node.wait() for node in nodes] == [0, 0, 0]
    assert f"round 1 hung: {named}" in nodes[0].output  # after a skipped one, collectives only do not match
    assert shared_gpu.check_states(3) == 0
    assert shared_gpu.stayed() == stay
