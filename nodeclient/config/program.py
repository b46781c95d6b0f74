"""What each worker runs, as torchrun's flags say it: a script, a module, a program of any kind."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from coordinatord.runtime.settings import SettingsParser

RUN_PATH = "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
"""As torchrun's `run_script_path`, in a process of its own."""

LOCAL_RANK = "=${local_rank}"
"""What torch.distributed.launch gives a script, before its own arguments; the macro is filled in for each worker."""

SCRIPT_BYTES_MAX = 1024 * 1024
"""Read of a script to see how it spells the flag: all of any that a person has written."""


def worker_command(parser: SettingsParser, given: argparse.Namespace, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the command line; the order of the flags' precedence is torchrun's."""
    python = environ.get("PYTHON_EXEC") or sys.executable
    arguments = (*(() if given.use_env else (_local_rank_flag(given) + LOCAL_RANK,)), *given.arguments)
    if given.run_path:
        _check_script(parser, given.script)
        return (python, "-u", "-c", RUN_PATH, given.script, *arguments)
    if given.no_python:
        if given.module:
            parser.error("give --module or --no-python, and not both: a module is run by Python")
        return (given.script, *arguments)
    if given.module:
        return (python, "-u", "-m", given.script, *arguments)
    _check_script(parser, given.script)
    return (python, "-u", given.script, *arguments)


def _local_rank_flag(given: argparse.Namespace) -> str:
    """Return the flag as the script spells it, if it can be read there; torch wrote it with `_` up to 1.13."""
    text = b""
    if not given.module and Path(given.script).is_file():
        with Path(given.script).open("rb") as file:
            text = file.read(SCRIPT_BYTES_MAX)
    only_old = b"--local_rank" in text and b"--local-rank" not in text
    return "--local_rank" if only_old else "--local-rank"


def _check_script(parser: SettingsParser, script: str) -> None:
    if not Path(script).exists():
        folder = "" if Path(script).is_absolute() else f" in {Path.cwd()}"
        parser.error(f"there is no script {script!r}{folder}: is it on this host, and is this the right folder?")
