"""Train ResNet-18 on ImageNet, or on a folder like it, on however many workers there are.

    nodeclient join --coord HOST --job-id imagenet -- python examples/imagenet.py DIR --checkpoint FOLDER

DIR has the images, at the same place on every host (`imagenet_data` has the layouts). tiny-imagenet-200 is good to
begin with: 100,000 images of 64 x 64 pixels in 200 classes; use it with `--image-size 64`.

Workers may come and go in the middle of an epoch, and each image is used exactly once in it:

* The sampler deals out the images. Its state, how many of the epoch are done, is in the checkpoint beside model and
  optimizer, so the next round goes on with those that are left, whatever number of workers it has.
* Each host has checkpoints of its own, on its own disk. New hosts have none, and a host that was away has an old one.
  So the workers find the one among them with the newest checkpoint, which sends it to all others.
* All workers write a checkpoint after the same step before a planned end, and also every so many steps, and after each
  epoch.

This example shows checkpoints of a script's own, so it does not call `ctx.keep`: if a worker is killed, the steps since
the last checkpoint are lost. `digits` keeps its state in memory, and loses no step.

The batch size is that of all workers together, so neither it nor the learning rate depends on their number.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from imagenet_data import DataError, Images, Sample, find_files
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, Subset

import workerlib

try:
    from torchvision.models import resnet18  # type: ignore[import-not-found, unused-ignore]
except ModuleNotFoundError:
    from resnet import ResNet18 as resnet18  # noqa: N813  # the same network, see there

SEED = 0
EPOCHS_PER_DECAY = 30
"""The number of epochs after which the learning rate becomes a tenth, as in the paper."""

SMALLEST_IMAGE = 33
"""The smallest size of images: the network halves it five times, and BatchNorm then needs more than one pixel."""


def main() -> None:
    """Run as one worker of the group, as long as the group stays as it is."""
    arguments = parse()
    with workerlib.init() as ctx:
        try:
            Training(ctx, arguments).run()
        except DataError as error:
            sys.exit(f"imagenet.py: {error}")


def parse() -> argparse.Namespace:
    """Read the flags."""
    parser = argparse.ArgumentParser(description="Train ResNet-18 on a folder of images, elastically.")
    parser.add_argument("data", type=Path, metavar="DIR", help="folder with train/ and val/")
    parser.add_argument("--epochs", type=int, default=90)
    parser.add_argument("--batch-size", type=int, default=256, help="images of all workers together")
    parser.add_argument("--lr", type=float, default=0.1, help="learning rate at the beginning")
    parser.add_argument("--workers", type=int, default=4, help="processes that read images, for each worker")
    parser.add_argument("--image-size", type=int, default=224, help="to which images are scaled")
    parser.add_argument("--limit", type=int, help="train with so many of the images only")
    parser.add_argument("--checkpoint", type=Path, default=Path("imagenet"), metavar="FOLDER")
    parser.add_argument("--save-every", type=int, default=200, metavar="STEPS", help="steps between two checkpoints")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="append a line of JSON for each step: which images")
    arguments = parser.parse_args()
    if arguments.image_size < SMALLEST_IMAGE:
        parser.error(f"--image-size should be {SMALLEST_IMAGE} at least, or nothing is left at the end of the network")
    return arguments


class Training:
    """The training of one worker."""

    def __init__(self, ctx: workerlib.Context, arguments: argparse.Namespace) -> None:
        """Prepare all, and go on from the newest checkpoint. Raises `DataError`."""
        self.ctx = ctx
        self.arguments = arguments
        ctx.should_checkpoint()  # from here on a planned end waits for the step that this worker is in

        training, validation, self.classes = find_files(arguments.data)
        training = training.some(arguments.limit)
        self._require_same_everywhere(training.checksum(arguments.data))
        self.images = Images(training, arguments.image_size, augment=True)
        self.validation = Images(validation, arguments.image_size, augment=False)
        self.sampler = workerlib.ElasticDistributedSampler(self.images, arguments.batch_size, seed=SEED)

        torch.manual_seed(SEED)
        self.model = resnet18(num_classes=self.classes).to(ctx.device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=arguments.lr, momentum=0.9, weight_decay=1e-4)
        self.steps = 0
        """The steps of all rounds so far."""
        self.checkpoint: Path = arguments.checkpoint / "checkpoint.pt"
        self._restore()
        self.replica = DistributedDataParallel(self.model)

    def run(self) -> None:
        """Train until all epochs are done."""
        for epoch in range(self.sampler.epoch, self.arguments.epochs):
            self._train(epoch)
            # The save comes before the evaluation, which may take longer than workers have when they are asked to end.
            self._save()
            self.ctx.checkpointed(self.steps)
            self._evaluate(epoch)

    def _train(self, epoch: int) -> None:
        """Train on the images that are left of the epoch."""
        self.sampler.set_epoch(epoch)
        self.images.epoch = epoch
        for group in self.optimizer.param_groups:
            group["lr"] = self.arguments.lr * 0.1 ** (epoch // EPOCHS_PER_DECAY)
        self.model.train()
        loader = self._loader(self.images, batch_sampler=self.sampler)
        for micro, (images, labels, numbers) in zip(self.sampler.micro_batches(), loader, strict=True):
            scores = self.replica(images.to(self.ctx.device))
            # DDP averages over the workers, whose shares may differ in size: the weight turns it into the average over
            # the images of the batch.
            loss = cross_entropy(scores, labels.to(self.ctx.device)) * micro.weight
            self.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            self.sampler.advance()
            self.steps += 1
            self.ctx.step(self.steps)

            if micro.weight:
                self._trace(epoch, numbers)
            if (ends := self.ctx.should_checkpoint()) or self.steps % self.arguments.save_every == 0:
                self._save()
                if ends:
                    self._log(f"asked to end: saved after {self._place()}")
                self.ctx.checkpointed(self.steps)  # a worker that is asked to end does so here

    @torch.no_grad()
    def _evaluate(self, epoch: int) -> None:
        """Print how many validation images are classified correctly; each worker evaluates its share of them."""
        self.model.eval()
        correct = torch.zeros(2, device=self.ctx.device)
        share = Subset(self.validation, range(self.ctx.rank, len(self.validation), self.ctx.world_size))
        batch_size = math.ceil(self.arguments.batch_size / self.ctx.world_size)
        for images, labels, _ in self._loader(share, batch_size=batch_size):
            scores = self.model(images.to(self.ctx.device))
            best = scores.topk(min(5, scores.shape[1])).indices == labels.to(self.ctx.device).unsqueeze(1)
            correct += torch.stack([best[:, 0].sum(), best.sum()])
        dist.all_reduce(correct)
        top_1, top_5 = (correct / len(self.validation)).tolist()
        top_5_text = f" top-5 {top_5:.3f}" if self.classes >= 5 else ""  # noqa: PLR2004  # else every class is in it
        group = f"round {self.ctx.round} world size {self.ctx.world_size}"
        self._log(f"epoch {epoch + 1} {group} accuracy top-1 {top_1:.3f}{top_5_text}")

    def _loader(self, images: Dataset[Sample], **batches: Any) -> DataLoader[Sample]:
        return DataLoader(
            images,
            num_workers=self.arguments.workers,
            pin_memory=self.ctx.device.type == "cuda",
            **batches,
        )

    def _save(self) -> None:
        """Have one worker of each host replace its checkpoint, atomically."""
        if self.ctx.local_rank != 0:
            return
        state = {
            "steps": self.steps,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "sampler": self.sampler.state_dict(),
        }
        self.checkpoint.parent.mkdir(parents=True, exist_ok=True)
        # The folder may be shared by several hosts.
        unfinished = self.checkpoint.with_name(f"checkpoint.unfinished-{self.ctx.rank}")
        with unfinished.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(self.checkpoint)

    def _restore(self) -> None:
        """Go on from the newest checkpoint of any worker; begin from step 0 if there is none."""
        newest, steps = self._find_newest()
        if steps == 0:
            return
        content = [self.checkpoint.read_bytes() if self.ctx.rank == newest else b""]
        dist.broadcast_object_list(content, src=newest, device=self.ctx.device)
        state = torch.load(io.BytesIO(content[0]), map_location=self.ctx.device, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.sampler.load_state_dict(state["sampler"])
        self.steps = state["steps"]
        self._log(f"went on from the checkpoint of rank {newest}, after {self._place()}")

    def _find_newest(self) -> tuple[int, int]:
        """Return the first rank with the newest checkpoint, and its number of steps; 0 steps if there is none."""
        own = 0
        if self.checkpoint.exists():
            own = torch.load(self.checkpoint, map_location="cpu", weights_only=True, mmap=True)["steps"]
        steps = self._gather(own)
        return steps.index(max(steps)), max(steps)

    def _gather(self, number: int) -> list[int]:
        """Return the numbers of all workers, by rank."""
        own = torch.tensor(number, device=self.ctx.device)
        numbers = [torch.zeros_like(own) for _ in range(self.ctx.world_size)]
        dist.all_gather(numbers, own)
        return [int(value) for value in numbers]

    def _require_same_everywhere(self, checksum: int) -> None:
        """Compare the names of the training images, which the sampler only numbers. Raises `DataError`."""
        checksums = self._gather(checksum)
        for rank, other in enumerate(checksums):
            if other != checksums[0]:
                raise DataError(
                    f"ranks 0 and {rank} have different images in {self.arguments.data / 'train'}: all hosts need the "
                    "same files there, and the same --limit"
                )

    def _trace(self, epoch: int, numbers: Tensor) -> None:
        """Append the images of this worker's step to a file, as evidence that each image is used once."""
        if self.arguments.trace is None:
            return
        line = {
            "round": self.ctx.round,
            "rank": self.ctx.rank,
            "epoch": epoch,
            "step": self.steps,
            "images": numbers.tolist(),
        }
        with self.arguments.trace.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def _place(self) -> str:
        done, all_of_them = self.sampler.samples_done, len(self.images)
        return f"step {self.steps}: epoch {self.sampler.epoch + 1}, {done} of {all_of_them} images"

    def _log(self, text: str) -> None:
        """Print a line, once for the whole group."""
        if self.ctx.rank == 0:
            print(text, flush=True)


if __name__ == "__main__":
    main()
