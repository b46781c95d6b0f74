"""The save on SIGTERM really happens, whatever the workers are doing; `benchmarks.sigterm_chaos` repeats it often."""

import random
import signal
from pathlib import Path

import pytest

from tests.support.sigterm import play
from tests.support.sigterm_program import TRAINS

pytestmark = pytest.mark.slow

pytest.importorskip("safetensors", reason="these tests read the files with it")


@pytest.mark.parametrize(
    ("kind", "moment"),
    [
        pytest.param("ddp", "evaluation", marks=pytest.mark.long),
        pytest.param("ddp", "evaluation of a script that chooses its last step", marks=pytest.mark.long),
        pytest.param("fsdp", "evaluation of a script that chooses its last step", marks=pytest.mark.long),
        pytest.param("ddp", "compile", marks=pytest.mark.long),
        ("ddp", "data loader"),
        pytest.param("ddp", "collective", marks=pytest.mark.long),
        pytest.param("fsdp", "collective", marks=pytest.mark.long),
        pytest.param("ddp", "warm-up", marks=pytest.mark.long),
        pytest.param("fsdp", "before the first step", marks=pytest.mark.long),
    ],
)
def test_the_newest_whole_state_is_on_the_disk_after_sigterm(kind: str, moment: str, tmp_path: Path) -> None:
    play(kind, moment, tmp_path)


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 5))])
def test_the_newest_state_is_on_the_disk_where_a_shutdown_ends_the_coordinator_too(seed: int, tmp_path: Path) -> None:
    play("fsdp", TRAINS, tmp_path, nodes=3, shutdown=random.Random(seed))  # noqa: S311 - an order, no secret


@pytest.mark.long
def test_sigusr1_of_slurm_saves_as_sigterm_does(tmp_path: Path) -> None:
    play("ddp", TRAINS, tmp_path, signum=signal.SIGUSR1)
