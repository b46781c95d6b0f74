"""Kills whatever saves, sends or restores kept state, at random lines of it and random moments.

python -m benchmarks.kept_chaos --seeds 300

Each seed is a training on three nodes whose workers die ten times at most, and in some of them agents and the
coordinator too. A state that is torn, mixed or stale, or a training that is not the undisturbed one to the last bit,
ends the program with 1; `tests/support/kept_chaos.py` has what is judged. A few seeds are tests, in `tests/chaos`.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from tests.support.kept_chaos import Verdict, play, undisturbed_training


def main() -> None:
    """Play seeds, and say of each what came of it. Exits with 1 if any of them has failed."""
    parser = argparse.ArgumentParser(prog="kept_chaos", description="Kill what saves, sends and restores kept state.")
    parser.add_argument("--first", type=int, default=1, help="the first seed (default: 1)")
    parser.add_argument("--seeds", type=int, default=100, help="how many (default: 100)")
    parser.add_argument("--failures", type=Path, default=Path("build"), help="where to write what failed (build)")
    options = parser.parse_args()
    totals, failed = Verdict(0, 0, 0), []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        known = {kind: undisturbed_training(kind, _made(folder / kind)) for kind in ("ddp", "fsdp")}
        for seed in range(options.first, options.first + options.seeds):
            try:
                found = play(seed, _made(folder / str(seed)), known)
            except AssertionError as error:
                failed.append(seed)
                (_made(options.failures) / f"kept-chaos-{seed}.txt").write_text(str(error))
                print(f"  {str(error).splitlines()[0]}", flush=True)
                continue
            totals.add(found)
            print(f"  seed {seed}: {found}", flush=True)
    print(f"{options.seeds} seeds: {totals}; failed: {failed or 'none'}")
    sys.exit(bool(failed))


def _made(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    return folder


if __name__ == "__main__":
    main()
