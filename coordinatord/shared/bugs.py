"""How a program ends that has met a bug of its own."""

from __future__ import annotations

import sys
import traceback

from coordinatord.wire.exits import ExitCode


def report_bug(program: str) -> ExitCode:
    """Write down the exception that is being handled, for whoever mends it; return the exit code for it."""
    traceback.print_exc()
    sys.stderr.write(f"{program}: this is a bug of {program}, please report it with the lines above\n")
    return ExitCode.INTERNAL
