"""A training without faults, with which a disturbed one is compared."""

from collections.abc import Callable
from pathlib import Path

from tests.support.keeping import Keep, play
from tests.support.kept_training import notes_of, train_ddp

WORLD_SIZE, STEPS = 3, 14
"""The size of the training with which the end-to-end tests compare theirs."""


def train_undisturbed(
    folder: Path, world_size: int, steps: int, train: Callable[..., None] = train_ddp
) -> dict[int, dict[int, str]]:
    """Train in one round; return the digests by rank and step."""
    keep = Keep(folder, world_size)
    play(keep, train, world_size, 1, folder, steps)
    keep.close()
    return {rank: {step: notes[-1][1] for step, notes in steps.items()} for rank, steps in notes_of(folder).items()}
