"""Ends real trainings by SIGTERM in the middle of anything, and looks at what is on the disk afterwards.

python -m benchmarks.sigterm_chaos --times 100

Each time another kind of training is in another moment, drawn by chance: between two steps of its own, in an
evaluation, in a warm-up, while it compiles, while it waits for its data loader, in a collective that hangs, before the
first step of a round. Half of the times the coordinator gets SIGTERM too, as at a shutdown. If the newest whole state
is not on the disk then, or no node says which step that is and where, the program ends with 1. Each moment once is a
test, in `tests/e2e/test_sigterm.py`.
"""

import argparse
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.support.sigterm import KINDS, play
from tests.support.sigterm_program import MOMENTS, TRAINS

DELAY_S = 1.5
"""The signal comes up to so long after the moment: the nodes are about to report, to copy, to save."""


def main() -> None:
    """Play, and say of each time what came of it. Exits with 1 if any of them has failed."""
    parser = argparse.ArgumentParser(prog="sigterm_chaos", description="End trainings by SIGTERM in the middle.")
    parser.add_argument("--first", type=int, default=1, help="the first seed (default: 1)")
    parser.add_argument("--times", type=int, default=100, help="how many (default: 100)")
    options = parser.parse_args()
    failed, saved = [], Counter[str]()
    with tempfile.TemporaryDirectory() as place:
        for seed in range(options.first, options.first + options.times):
            chance = random.Random(seed)  # noqa: S311 - chaos, no secret
            kind, moment = chance.choice(KINDS), chance.choice([TRAINS, TRAINS, *MOMENTS])
            nodes, delay_s = chance.choice((1, 2, 3)), chance.uniform(0.0, DELAY_S)
            shutdown = chance.choice((None, chance))
            what = f"seed {seed}: {kind}, {moment}, nodes {nodes}, after {delay_s:.2f} s"
            what += "" if shutdown is None else ", with the coordinator"
            try:
                step = play(kind, moment, Path(place) / str(seed), nodes, delay_s, shutdown=shutdown)
            except AssertionError as error:
                failed.append(seed)
                print(f"  {what}: {error}", flush=True)
                continue
            saved[moment] += 1
            print(f"  {what}: step {step} is on the disk", flush=True)
    kinds = ", ".join(f"{moment} {number}" for moment, number in sorted(saved.items()))
    print(f"{saved.total()} of {options.times} times the newest whole state is on the disk ({kinds}); failed: {failed}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
