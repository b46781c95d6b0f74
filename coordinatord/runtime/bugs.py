"""How a program ends that has met a bug of its own."""

from __future__ import annotations

import logging
import traceback

from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.runtime import logs


def report_bug(program: str) -> ExitCode:
    """Write down the exception that is being handled, for whoever mends it; return the exit code for it."""
    if logs.is_for_machines():
        text = "this is a bug of %s, please report it"
        names = logs.fields("bug")
        logging.getLogger(program).error(text, program, exc_info=True, extra=names)  # noqa: LOG014 - one is handled
        return ExitCode.INTERNAL
    told = traceback.format_exc()
    logs.say_last(f"{told}{program}: this is a bug of {program}, please report it with the lines above\n")
    return ExitCode.INTERNAL
