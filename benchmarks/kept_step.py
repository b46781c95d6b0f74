"""Times what keeping state costs while nothing breaks: `ctx.step`, and one save at an interval beside a bare copy.

python -m benchmarks.kept_step

It starts `nodeclient join --standalone` with itself as the script. Two workers have the same state, which is saved only
when a round breaks; a worker alone saves at an interval, here at each step.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from threading import Event

import torch
from tables import BenchmarkError, Table, add_flags, positive, runs_words, spread, write_report
from torch import nn

import workerlib
from tests.support.programs import BIN, clean_environ
from workerlib.keep import intervals

WIDTH = 512
"""A layer of this width has a megabyte of parameters."""

CALLS = 50

STEPS = 240
"""The steps with a pause after each; as many follow without."""

SAVES = 3
"""The fastest saves are looked at, and as many of the bare copies."""

WITHIN_S = 120


@dataclass(frozen=True, slots=True)
class Costs:
    """Medians of one run, in seconds."""

    step_s: float
    loop_s: float
    """A step right after that of the optimizer."""
    copy_s: float
    """A bare copy of the same tensors, into memory that was touched before."""


def work(megabytes: int, count: int) -> None:
    """Measure, as a worker, so many steps with a pause after each, and as many without."""
    torch.set_num_threads(1)
    intervals.SHARE_MAX = 1e9
    with workerlib.init() as ctx:
        model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(max(1, megabytes // 2))))
        optimizer = torch.optim.SGD(model.parameters(), 1e-3, 0.9)
        ctx.keep(model=model, optimizer=optimizer)
        model(torch.randn(4, WIDTH)).sum().backward()
        pause, steps, loop = Event(), [], []
        for step in range(2 * count):
            optimizer.step()  # what no optimizer has changed is no new state
            took_s = timed(lambda: ctx.step(step))  # noqa: B023 - it is called at once
            if step < count:  # meanwhile the node makes the memory, and the coordinator says what may go
                steps.append(took_s)
                pause.wait(0.05)
            else:
                loop.append(took_s)
        tensors = [*model.parameters(), *(state["momentum_buffer"] for state in optimizer.state.values())]
        copies = [tensor.detach().clone() for tensor in tensors]
        bare = [
            timed(lambda: torch._foreach_copy_(copies, [tensor.detach() for tensor in tensors])) for _ in range(CALLS)
        ]
        if ctx.world_size == 1:
            # A save is left out while the steps before are not known to be whole. The first ones meet new memory.
            steps, bare = sorted(seconds for seconds in steps if seconds > min(bare) / 2)[:SAVES], sorted(bare)[:SAVES]
            if not steps:
                raise BenchmarkError("no step was saved at an interval")
        if ctx.rank == 0:
            print(json.dumps(asdict(Costs(*map(statistics.median, (steps, loop, bare))))), flush=True)


def timed(call: Callable[[], object]) -> float:
    """Return how long a call takes."""
    began_at = time.perf_counter()
    call()
    return time.perf_counter() - began_at


def measure(workers: int, megabytes: int, count: int) -> Costs:
    """Run a node. Raises `BenchmarkError`."""
    node = (str(BIN / "nodeclient"), "join", "--standalone", "--nproc-per-node", str(workers))
    script = (sys.executable, "-m", "benchmarks.kept_step", "--worker", str(megabytes), "--steps", str(count))
    command = (*node, "--", *script)
    ended = subprocess.run(command, env=clean_environ(), capture_output=True, text=True, timeout=WITHIN_S, check=False)  # noqa: S603 - ours
    found = [line[line.index("{") :] for line in ended.stdout.splitlines() if '{"step_s"' in line]
    if ended.returncode or not found:
        raise BenchmarkError(f"a node ended with {ended.returncode}:\n{ended.stdout}{ended.stderr}")
    return Costs(**json.loads(found[0]))


def main() -> None:
    """Run as the flags say."""
    parser = argparse.ArgumentParser(prog="kept_step", description="Time what keeping state costs each step.")
    parser.add_argument("--megabytes", type=positive, default=100, help="of state (default: 100)")
    parser.add_argument("--steps", type=positive, default=STEPS, help=f"of each kind (default: {STEPS})")
    parser.add_argument("--worker", type=positive, help=argparse.SUPPRESS)
    add_flags(parser, repeat=3)
    options = parser.parse_args()
    if options.worker:
        work(options.worker, options.steps)
        return
    alike = [measure(2, options.megabytes, options.steps) for _ in range(options.repeat)]
    alone = [measure(1, options.megabytes, options.steps) for _ in range(options.repeat)]
    table = Table(runs_words(options.repeat), f"{options.megabytes} MB")
    table.add("ctx.step, state that other ranks have too, us", spread([run.loop_s * 1e6 for run in alike], ".0f"))
    table.add("the same, 50 ms after the one before", spread([run.step_s * 1e6 for run in alike], ".0f"))
    table.add("ctx.step with a save at an interval, ms", spread([run.step_s * 1e3 for run in alone], ".1f"))
    table.add("bare copy of the same tensors, ms", spread([run.copy_s * 1e3 for run in alone], ".1f"))
    table.add("a save, as bare copies", spread([run.step_s / run.copy_s for run in alone], ".2f"))
    print(table)
    write_report(options.json, "kept_step", [asdict(run) for run in (*alike, *alone)])


if __name__ == "__main__":
    main()
