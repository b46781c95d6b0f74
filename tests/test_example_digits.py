"""The example trains for real: over gloo, through interruptions, at changing world sizes."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import runpy
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, TextIO

import pytest
import torch

from tests.support.environments import environment
from tests.support.keeping import Keep
from tests.support.programs import TIMEOUT_S
from workerlib.contract.channel_messages import Saved
from workerlib.contract.env import KEEP

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]

SCRIPT = str(ROOT / "examples" / "digits.py")

FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(["sklearn.datasets", "torch._dynamo"])
"""Workers are forked where all that takes long is imported already: it would take each of them three seconds."""

EPOCHS = 18
STEPS_PER_CHECKPOINT = 10


@dataclass
class Worker:
    """One worker, and what it prints."""

    process: ForkServerProcess
    stdout: TextIO

    def close(self) -> None:
        """End it, if it has not ended, and close its output."""
        self.process.kill()
        self.process.join()
        self.stdout.close()


Workers = list[Worker]


@contextmanager
def started(folder: Path, number: int, world_size: int, keep: Keep | None = None) -> Iterator[Workers]:
    """Start the workers of a round, each on a host of its own as far as its files and kept memory are concerned."""
    with ExitStack() as stack:
        # Bound but not listening, so that nobody else gets the port and rank 0 still can.
        reserved = stack.enter_context(socket.socket())
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("", 0))
        workers: Workers = []
        for rank in range(world_size):
            worker = environment(rank, world_size, number, reserved.getsockname()[1])
            environ = replace(worker, group_world_size=world_size).to_environ()
            if keep is not None:
                environ[KEEP] = str(keep.nodes[rank].path)
            workers.append(stack.enter_context(closing(start(folder / f"host-{rank}", environ))))
        yield workers


def start(host: Path, environ: Mapping[str, str]) -> Worker:
    """Start one worker, whose files lie in the folder `host`."""
    host.mkdir(parents=True, exist_ok=True)
    flags = {
        "--epochs": str(EPOCHS),
        "--batch-size": "128",
        "--checkpoint": str(host / "digits.pt"),
        "--progress": str(host / "progress.jsonl"),
    }
    reading, writing = FORKED.Pipe(duplex=False)
    words = (SCRIPT, *chain.from_iterable(flags.items()))
    process = FORKED.Process(target=work, args=(words, environ, writing))
    process.start()
    writing.close()
    with reading:
        return Worker(process, os.fdopen(os.dup(reading.fileno())))


def work(words: Sequence[str], environ: Mapping[str, str], output: Connection) -> None:
    """Run the script, in double precision: rounding hides no step that is lost then, and no image that counts twice."""
    os.dup2(output.fileno(), 1)
    output.close()
    os.environ.update(environ)
    torch.set_default_dtype(torch.float64)
    sys.argv = list(words)
    runpy.run_path(words[0], run_name="__main__")


def read_until(worker: Worker, line: str) -> None:
    """Read what a worker prints, up to a line that begins with `line`."""
    assert any(said.startswith(line) for said in worker.stdout), f"ended without saying {line!r}"


def finish(workers: Workers) -> str:
    """Wait for workers that are to end well, and return the rest of rank 0's output."""
    for worker in workers:
        worker.process.join(TIMEOUT_S)
    assert [worker.process.exitcode for worker in workers] == [0] * len(workers)
    said = [worker.stdout.read() for worker in workers]
    assert not any(said[1:]), "only rank 0 speaks"
    return said[0]


def checkpoint(folder: Path) -> dict[str, Any]:
    """Load the checkpoint of rank 0's host, the only one that there is to be."""
    [path] = folder.glob("*/digits.pt")
    state: dict[str, Any] = torch.load(path, weights_only=True)
    return state


def steps_by_round(folder: Path) -> dict[int, list[int]]:
    """Read the steps that each round noted."""
    rounds: dict[int, list[int]] = {}
    for line in (folder / "host-0" / "progress.jsonl").read_text().splitlines():
        note = json.loads(line)
        rounds.setdefault(note["round"], []).append(note["step"])
    return rounds


def accuracy_in(text: str) -> float:
    """Return the accuracy from the last line of rank 0."""
    found = re.fullmatch(r"accuracy (0\.\d{4})", text.splitlines()[-1])
    assert found, text
    return float(found.group(1))


def test_a_disturbed_run_ends_like_an_undisturbed_one(tmp_path: Path) -> None:
    disturbed, undisturbed = tmp_path / "disturbed", tmp_path / "undisturbed"
    with started(undisturbed, 1, world_size=1) as alone:
        with started(disturbed, 1, world_size=2) as workers:
            read_until(workers[0], "epoch 2 round 1 world size 2 ")
            for worker in workers:
                worker.process.kill()
        killed_at = checkpoint(disturbed)["steps"]

        with started(disturbed, 2, world_size=3) as workers:
            read_until(
                workers[0], f"goes on after step {killed_at} of {EPOCHS * 12}, from {disturbed}/host-0/digits.pt"
            )
            read_until(workers[0], "epoch 10 round 2 world size 3 ")
            workers[2].process.terminate()
            farewell = finish(workers)
        stopped_at = checkpoint(disturbed)["steps"]

        with started(disturbed, 3, world_size=1) as workers:
            accuracy = accuracy_in(finish(workers))
        accuracy_undisturbed = accuracy_in(finish(alone))

    steps = steps_by_round(disturbed)
    last = checkpoint(undisturbed)["steps"]
    assert killed_at % STEPS_PER_CHECKPOINT == 0
    assert killed_at <= steps[1][-1] <= killed_at + STEPS_PER_CHECKPOINT
    assert steps[2] == list(range(killed_at + 1, stopped_at + 1))
    assert steps[3] == list(range(stopped_at + 1, last + 1))
    assert f"asked to end: saved after step {stopped_at}\n" in farewell

    assert accuracy > 0.95
    assert accuracy == pytest.approx(accuracy_undisturbed, abs=0.01)
    weights, expected = checkpoint(disturbed)["model"], checkpoint(undisturbed)["model"]
    torch.testing.assert_close(weights, expected, rtol=0, atol=1e-9)


@pytest.mark.long
def test_a_round_goes_on_from_memory_and_says_so(tmp_path: Path) -> None:
    keep = Keep(tmp_path, nodes=2)
    with closing(keep):
        with started(tmp_path, 1, world_size=2, keep=keep) as workers:
            read_until(workers[0], "epoch 1 round 1 world size 2 ")
            workers[1].process.kill()
            [answer] = keep.save(0)
        assert isinstance(answer, Saved)
        assert keep.choose().step == answer.step
        with started(tmp_path, 2, world_size=2, keep=keep) as workers:
            read_until(workers[0], f"goes on after step {answer.step} of {EPOCHS * 12}, from what was kept")
    done = steps_by_round(tmp_path)[1][-1]
    assert answer.step - 1 <= done <= answer.step, "nothing is read from the checkpoint"
