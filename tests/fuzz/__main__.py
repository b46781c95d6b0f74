"""`python -m tests.fuzz`: plays inputs that atheris, which is led by coverage, makes of those before.

Each target has a process of its own, and a folder below `--corpus` that it begins with and adds to. Ends with 1 if a
property did not hold; then the input lies in that folder, and `--replay FILE` plays it again.
"""

import argparse
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

from tests.fuzz.targets import TARGETS

MEGABYTES_MAX = 1_024
"""The memory of a process. More is taken for memory that nothing bounds: a process begins with less than a tenth."""

INPUT_WITHIN_S = 30
"""The limit of one input; more is taken for a loop that does not end."""

EXECUTIONS = re.compile(r"number_of_executed_units:\s*(\d+)")
EVENTS = re.compile(r"events of sequences: (\d+)")
"""What a process says at its end."""

OUTPUT_MAX = 6_000
"""The last characters of a process whose target failed: its traceback."""


def main() -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Hostile and confused peers.")
    parser.add_argument("--seconds", type=int, default=60, help="how long to play all targets together (default: 60)")
    parser.add_argument("--target", choices=TARGETS, action="append", help="this one alone; may be repeated")
    parser.add_argument("--corpus", type=Path, default=Path("build/fuzz"), help="default: build/fuzz")
    parser.add_argument("--replay", type=Path, help="play one input of --target again")
    options = parser.parse_args()
    names = options.target or list(TARGETS)
    if options.replay is not None:
        TARGETS[names[0]].play(options.replay.read_bytes())
        return 0
    if importlib.util.find_spec("atheris") is None:
        parser.error("atheris is not installed: make fuzz installs it")
    broken = [name for name in names if not _play(name, max(1, options.seconds // len(names)), options.corpus)]
    if broken:
        sys.stdout.write(f"properties do not hold: {', '.join(broken)}\n")
    return 1 if broken else 0


def _play(name: str, seconds: int, corpus: Path) -> bool:
    """Play a target for so many seconds; return whether its properties held."""
    target, folder = TARGETS[name], corpus / name
    folder.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(target.seeds()):
        (folder / f"seed-{number}").write_bytes(seed)
    flags = (
        f"-max_total_time={seconds}",
        f"-max_len={target.most}",
        f"-rss_limit_mb={MEGABYTES_MAX}",
        f"-timeout={INPUT_WITHIN_S}",
        f"-artifact_prefix={folder}/",
        "-print_final_stats=1",
        "-verbosity=0",
    )
    command = (sys.executable, "-m", "tests.fuzz.guided", name, *flags, str(folder))
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    said = process.stdout + process.stderr
    inputs, events = (int(found[1]) if (found := pattern.search(said)) else 0 for pattern in (EXECUTIONS, EVENTS))
    sys.stdout.write(f"{name}: {inputs:,} inputs" + (f" with {events:,} events" if events else "") + "\n")
    if process.returncode:
        sys.stdout.write(f"{said[-OUTPUT_MAX:]}\n")
    return process.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
