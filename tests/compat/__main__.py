"""`python -m tests.compat`: installs and runs pairs of versions, and prints a table at the end."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.compat.environments import ROOT, Outcome, try_pair
from tests.compat.interpreters import fetch, find
from tests.compat.matrix import MATRIX, NEAR_TORCH, PURE, PYTHONS, SUITE, Pair


def main() -> int:
    """Run the pairs that were asked for; return 1 if one of them failed."""
    known = {str(pair): pair for pair in MATRIX}
    parser = argparse.ArgumentParser(prog="python -m tests.compat", description=__doc__)
    parser.add_argument("pairs", nargs="*", metavar="PAIR", help=f"{', '.join(known)} (default: all)")
    parser.add_argument("--cheap", action="store_true", help="no torch, and only the newest Python of this machine")
    parser.add_argument("--near-torch", action="store_true", help="only what torch is imported for or compared with")
    parser.add_argument("--envs", type=Path, default=ROOT / "build" / "compat", help="where environments are kept")
    parser.add_argument("--pytest", action="append", default=[], metavar="WORD", help="an argument more for pytest")
    given = parser.parse_args()
    unknown = [name for name in given.pairs if name not in known]
    if unknown:
        parser.error(f"{unknown[0]}: known are {', '.join(known)}")
    envs = given.envs.resolve()
    envs.mkdir(parents=True, exist_ok=True)
    wanted = newest() if given.cheap else [known[name] for name in given.pairs or known]
    tests = PURE if given.cheap else NEAR_TORCH if given.near_torch else SUITE
    outcomes = []
    for pair in wanted:
        interpreter = find(pair.python) or fetch(pair.python, ROOT, envs)
        if interpreter is None:
            outcomes.append(Outcome(pair, "skipped: there is no such Python here, nor a way to fetch it", failed=False))
            continue
        write_line(f"== {pair}")
        outcomes.append(try_pair(pair, interpreter, envs, tests, given.pytest))
    width = max((len(str(outcome.pair)) for outcome in outcomes), default=0)
    for outcome in outcomes:
        write_line(f"{outcome.pair!s:{width}}  {outcome.text}")
    return int(any(outcome.failed for outcome in outcomes))


def newest() -> list[Pair]:
    """Return the newest Python of this machine that is newer than the one that development is pinned to, if any is."""
    return [Pair(python) for python in reversed(PYTHONS) if find(python)][:1]


def write_line(line: str) -> None:
    """Write a line at once, so that it stands in its place among the output of the programs run here."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


sys.exit(main())
