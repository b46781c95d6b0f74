"""What each worker runs, as torchrun's flags say it: a script, a module, a program of any kind."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from coordinatord.shared.settings import SettingsParser

RUN_PATH = "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
"""As torchrun's `run_script_path`, in a process of its own."""

LOCAL_RANK_ARGUMENT = "--local-rank=${local_rank}"
"""What torch.distributed.launch gives a script, before its own arguments; the macro is filled in for each worker."""


def worker_command(parser: SettingsParser, given: argparse.Namespace, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the command line; the order of the flags' precedence is torchrun's."""
    python = environ.get("PYTHON_EXEC") or sys.executable
    arguments = (*(() if given.use_env else (LOCAL_RANK_ARGUMENT,)), *given.arguments)
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


def _check_script(parser: SettingsParser, script: str) -> None:
    if not Path(script).exists():
        folder = "" if Path(script).is_absolute() else f" in {Path.cwd()}"
        parser.error(f"there is no script {script!r}{folder}: is it on this host, and is this the right folder?")
