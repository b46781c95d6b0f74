"""The images of `imagenet.py`: finds the files, and turns them into tensors.

There are two layouts:

    train/CLASS/*.JPEG         val/CLASS/*.JPEG                         ImageNet, as torchvision's ImageFolder has it
    train/CLASS/images/*.JPEG  val/images/*.JPEG, val/val_annotations.txt   tiny-imagenet-200, as it is unpacked

Pillow reads the files. It comes with torchvision, or by `pip install pillow`. Files in the PPM format need neither.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import interpolate
from torch.utils.data import Dataset

SUFFIXES = frozenset({".jpeg", ".jpg", ".png", ".ppm", ".webp"})
"""The endings of image files, in lower case."""

MEAN = torch.tensor([0.485, 0.456, 0.406]).reshape(3, 1, 1)
STANDARD_DEVIATION = torch.tensor([0.229, 0.224, 0.225]).reshape(3, 1, 1)
"""The mean and the deviation of the colours of ImageNet; normalised colours are about -2 to 2."""

SMALLEST_CROP = 0.6
"""The side of the square that training cuts out of an image is at least this part of the image's shorter side."""

PPM_HEADER = re.compile(rb"P6\s+(?:#[^\n]*\n\s*)*(\d+)\s+(\d+)\s+255\s")
"""Width and height; a byte for each colour of each pixel follows."""

Sample = tuple[Tensor, int, int]
"""An image, its class, and its number in the dataset."""


class DataError(Exception):
    """The images are not there, or cannot be read; the text says which, and what to do."""


@dataclass(frozen=True)
class Files:
    """Image files with their classes, in an order that is the same on every host."""

    paths: Sequence[Path]
    labels: Sequence[int]

    def some(self, limit: int | None) -> Files:
        """Return at most `limit` of the files, spread evenly over the classes; all of them without a limit."""
        step = max(len(self.paths) // limit, 1) if limit else 1
        return Files(self.paths[::step][:limit], self.labels[::step][:limit])

    def checksum(self, folder: Path) -> int:
        """Return a number that is the same on two hosts if their folders have the same file names."""
        return zlib.crc32("\n".join(str(path.relative_to(folder)) for path in self.paths).encode())


def find_files(folder: Path) -> tuple[Files, Files, int]:
    """Return the files to train with, those to validate with, and the number of classes. Raises `DataError`."""
    names = sorted(path.name for path in (folder / "train").glob("*/"))
    classes = {name: number for number, name in enumerate(names)}
    training = _find(folder / "train", classes)
    annotations = folder / "val" / "val_annotations.txt"
    if annotations.exists():
        rows = sorted(line.split("\t")[:2] for line in annotations.read_text().splitlines())
        paths = [folder / "val" / "images" / name for name, _ in rows]
        validation = Files(paths, [classes[label] for _, label in rows])
    else:
        validation = _find(folder / "val", classes)
    for part, files in (("train", training), ("val", validation)):
        if not files.paths:
            raise DataError(f"no images in {folder / part}: give the folder that has train/CLASS/*.JPEG and val/ in it")
    return training, validation, len(classes)


def _find(folder: Path, classes: dict[str, int]) -> Files:
    found = [
        (path, number)
        for name, number in classes.items()
        for path in sorted((folder / name).rglob("*"))
        if path.suffix.lower() in SUFFIXES
    ]
    return Files([path for path, _ in found], [number for _, number in found])


class Images(Dataset[Sample]):
    """The images as square tensors of one size."""

    def __init__(self, files: Files, size: int, *, augment: bool) -> None:
        """Take the files; with `augment`, each epoch has another crop of an image, which may be mirrored."""
        self.files = files
        self.size = size
        self.augment = augment
        self.epoch = 0

    def __len__(self) -> int:
        return len(self.files.paths)

    def __getitem__(self, index: int) -> Sample:
        image = read_image(self.files.paths[index])
        image = self._cut_at_random(image, index) if self.augment else _cut(image, min(image.shape[1:]), 0.5, 0.5)
        image = interpolate(image[None] / 255, size=(self.size, self.size), mode="bilinear", antialias=True)[0]
        return (image - MEAN) / STANDARD_DEVIATION, self.files.labels[index], index

    def _cut_at_random(self, image: Tensor, index: int) -> Tensor:
        # The seed depends only on epoch and image, so every worker would crop an image in the same way.
        generator = torch.Generator().manual_seed(self.epoch * len(self) + index)
        scale, down, right, mirror = torch.rand(4, generator=generator).tolist()
        side = round(min(image.shape[1:]) * (SMALLEST_CROP + (1 - SMALLEST_CROP) * scale))
        image = _cut(image, side, down, right)
        return image.flip(2) if mirror < 0.5 else image  # noqa: PLR2004  # every second image


def _cut(image: Tensor, side: int, down: float, right: float) -> Tensor:
    """Cut a square out; 0 is at the top or on the left, 1 at the bottom or on the right."""
    top, left = (round((length - side) * place) for length, place in zip(image.shape[1:], (down, right), strict=True))
    return image[:, top : top + side, left : left + side]


def read_image(path: Path) -> Tensor:
    """Return the bytes of an image by colour, row and column. Raises `DataError`."""
    if path.suffix.lower() == ".ppm":
        return _read_ppm(path)
    try:
        from PIL import Image  # noqa: PLC0415  # PPM files can be read without it
    except ModuleNotFoundError as error:
        raise DataError(
            f"Pillow is needed to read {path}: pip install pillow, or use files in the PPM format"
        ) from error
    with Image.open(path) as image:
        pixels = image.convert("RGB").tobytes()
        return _pixels(pixels, image.width, image.height)


def _read_ppm(path: Path) -> Tensor:
    content = path.read_bytes()
    header = PPM_HEADER.match(content)
    if header is None:
        raise DataError(f"{path} is not a PPM file of 8-bit colours (it should begin with P6, width, height and 255)")
    return _pixels(content[header.end() :], int(header[1]), int(header[2]))


def _pixels(content: bytes, width: int, height: int) -> Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8).reshape(height, width, 3).permute(2, 0, 1)
