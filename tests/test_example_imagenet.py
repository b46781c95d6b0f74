"""The ResNet example trains on each image once an epoch, through interruptions, and finds the newest checkpoint."""

import importlib
import json
import random
import re
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import ModuleType

import pytest
import torch

from tests.support.cluster import QUICK, Cluster, Node, cluster_of_its_own

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"

COLOURS = {
    "blue": (30, 60, 200),
    "green": (40, 190, 60),
    "grey": (120, 120, 120),
    "red": (200, 40, 50),
    "violet": (190, 50, 190),
    "yellow": (210, 200, 30),
}
"""The classes. They cannot be mistaken for one another."""

IMAGES_PER_COLOUR = 32
IMAGES = IMAGES_PER_COLOUR * len(COLOURS)
BATCH = 12
EPOCHS = 3


@pytest.fixture(autouse=True)
def _examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)


@pytest.fixture
def data() -> ModuleType:
    """Load the module that finds and reads images."""
    return importlib.import_module("imagenet_data")


@pytest.fixture
def job() -> Iterator[Cluster]:
    """Yield a job without nodes as yet, and its coordinator."""
    with cluster_of_its_own("imagenet", *QUICK) as nodes:
        yield nodes


def paint(path: Path, colour: str, dice: random.Random) -> None:
    """Write a small picture that is of one colour, more or less."""
    pixels = (max(0, min(255, part + dice.randint(-30, 30))) for _ in range(16 * 12) for part in COLOURS[colour])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"P6\n# painted\n16 12\n255\n" + bytes(pixels))


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Paint pictures, in the layout of ImageNet."""
    dice = random.Random(0)  # noqa: S311 - of noise
    for colour in COLOURS:
        for number in range(IMAGES_PER_COLOUR):
            paint(tmp_path / "pictures" / "train" / colour / f"{number}.ppm", colour, dice)
        for number in range(3):
            paint(tmp_path / "pictures" / "val" / colour / f"{number}.ppm", colour, dice)
    return tmp_path / "pictures"


def join(job: Cluster, host: str, pictures: Path, *flags: str) -> Node:
    """Start a node that trains, on a host of its own as far as its checkpoints are concerned."""
    # Each node takes the machine for its own; several threads of each would wait for each other.
    command = ["env", "OMP_NUM_THREADS=1", sys.executable, str(EXAMPLES / "imagenet.py"), str(pictures)]
    command += ["--epochs", str(EPOCHS), "--batch-size", str(BATCH), "--lr", "0.003", "--image-size", "40"]
    command += ["--workers", "1"]
    command += ["--checkpoint", str(pictures.parent / host), "--trace", str(pictures.parent / "trace")]
    return job.join(host, *flags, command=command)


def await_training(job: Cluster, round_number: int) -> None:
    """Wait until the coordinator knows of a step of this round: it names no step for a round without one."""
    job.coordinator.await_line(rf"training began: .* round={round_number} ")


@pytest.mark.long
def test_each_image_is_trained_on_once_an_epoch_and_the_newest_checkpoint_counts(job: Cluster, pictures: Path) -> None:
    old, newest = (join(job, host, pictures, "--nnodes", "1:2") for host in ("old", "newest"))
    await_training(job, 1)
    old.signal(signal.SIGTERM)
    assert old.wait() == 143
    [steps, done] = newest.await_line(
        rf"went on from the checkpoint of rank 0, after step (\d+): epoch 1, (\d+) of {IMAGES} images"
    ).groups()
    assert 0 < int(done) == int(steps) * BATCH < IMAGES, "it went on in the middle of the epoch"

    await_training(job, 2)
    assert newest.stop() == 143
    steps, place = re.findall(r"asked to end: saved after step (\d+): (.*)", newest.output)[-1]
    checkpoints = [pictures.parent / host / "checkpoint.pt" for host in ("old", "newest")]
    saved = [torch.load(path, weights_only=True)["steps"] for path in checkpoints]
    assert saved[0] < saved[1] == int(steps)

    again = Cluster(job.coordinator, "again")
    with closing(again):
        # Nodes of one host that ask for no rank are ranked by their names.
        fresh, *others = (join(again, host, pictures, "--nnodes", "3") for host in ("fresh", "newest", "old"))
        fresh.await_line(re.escape(f"went on from the checkpoint of rank 1, after step {steps}: {place}"))
        assert [node.wait() for node in (fresh, *others)] == [0, 0, 0]

    trained: dict[int, Counter[int]] = {}
    worlds: dict[int, set[int]] = {}
    for line in (pictures.parent / "trace").read_text().splitlines():
        note = json.loads(line)
        trained.setdefault(note["epoch"], Counter()).update(note["images"])
        worlds.setdefault(note["step"], set()).add(note["rank"])
    assert trained == {epoch: Counter(range(IMAGES)) for epoch in range(EPOCHS)}
    assert {len(ranks) for ranks in worlds.values()} == {1, 2, 3}

    last = rf"epoch {EPOCHS} round 1 world size 3 accuracy top-1 (\S+) top-5 (\S+)$"
    accuracy = re.search(last, fresh.output, re.MULTILINE)
    assert accuracy
    assert float(accuracy[1]) > 3 / len(COLOURS), "it has learnt; how well depends on when nodes come and leave"
    assert float(accuracy[2]) > 0.9
    assert not any("accuracy" in node.output for node in others), "only rank 0 speaks"


def test_both_layouts_are_understood(data: ModuleType, pictures: Path) -> None:
    training, validation, classes = data.find_files(pictures)
    assert classes == len(COLOURS)
    assert [path.parent.name for path in training.paths] == [
        colour for colour in COLOURS for _ in range(IMAGES_PER_COLOUR)
    ]
    assert list(training.labels) == [number for number in range(6) for _ in range(IMAGES_PER_COLOUR)]

    images = pictures / "val" / "images"
    images.mkdir()
    rows = []
    for path in validation.paths:
        name = f"{path.parent.name}_{path.name}"
        path.rename(images / name)
        rows.append(f"{name}\t{path.parent.name}\t0\t0\t15\t11\n")
    (pictures / "val" / "val_annotations.txt").write_text("".join(rows))
    for colour in COLOURS:
        folder = pictures / "train" / colour
        folder.rename(pictures / "train" / "images")
        folder.mkdir()
        (pictures / "train" / "images").rename(folder / "images")
    tiny_training, tiny_validation, tiny_classes = data.find_files(pictures)
    assert tiny_classes == classes
    assert list(tiny_training.labels) == list(training.labels)
    assert list(tiny_validation.labels) == list(validation.labels)
    assert all(path.exists() for path in (*tiny_training.paths, *tiny_validation.paths))


def test_what_becomes_of_an_image_depends_on_the_epoch_alone(data: ModuleType, pictures: Path) -> None:
    training, _, _ = data.find_files(pictures)
    first, second = (data.Images(training, 40, augment=True) for _ in range(2))
    assert first[5][0].shape == (3, 40, 40)
    torch.testing.assert_close(first[5], second[5])
    second.epoch = 1
    assert not torch.equal(first[5][0], second[5][0])
    whole = data.Images(training, 40, augment=False)
    torch.testing.assert_close(whole[5][0].std(), first[5][0].std(), rtol=0.5, atol=0)
