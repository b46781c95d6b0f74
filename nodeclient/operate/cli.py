"""Runs an operator's command: from its settings to an exit code.

It imports only the modules of the command, because a person waits for it.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from importlib import import_module

from nodeclient.config.operate import OperateConfig


def run(config: OperateConfig) -> int:
    """Run the command, and return the exit code. Raises `RequestError` and `OutputError`."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a limited encoding still shows the other letters
    command: Callable[[OperateConfig], int] = import_module(f"nodeclient.operate.{config.MODULE}").run
    return command(config)
