"""Workers that share a GPU are killed at random moments: no round goes on from a state that no training has had."""

import os
import sys

import pytest

from tests.gpu.jobs import WARM, SharedGpu

pytestmark = pytest.mark.slow

KILLS = int(os.environ.get("GPU_TESTS_KILLS", "3"))
"""More than some ten take longer than a minute on a GPU."""

SEED = os.environ.get("GPU_TESTS_SEED", "1")


@pytest.mark.parametrize("how", ["kept", "in-place"])
@pytest.mark.parametrize("sharding", [[], ["--sharded"]], ids=["DDP", "FSDP2"])
def test_the_state_is_right_after_each_kill(
    shared_gpu: SharedGpu, how: str, sharding: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    rounds = KILLS + 1
    words = (how, *sharding, "--rounds", str(rounds), "--seed", SEED)
    nodes = shared_gpu.join("abc", *words, flags=WARM, restarts=KILLS)
    assert [node.wait() for node in nodes] == [0, 0, 0]
    lost = shared_gpu.check_states(3, rounds)
    with capsys.disabled():
        sys.stdout.write(f"{KILLS} kills, seed {SEED}: 0 wrong states, {lost} steps lost\n")
    assert sharding or lost == 0
