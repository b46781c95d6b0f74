"""What is to be done with the workers' output: from flags to settings."""

from __future__ import annotations

import argparse
import os
import secrets
import tempfile
from pathlib import Path

from nodeclient.output.settings import Choice, OutputSettings

NOWHERE = Path(os.devnull)
"""As `--log-dir`: no files, and so all output on the terminal, as torchrun has it."""


def output_settings(given: argparse.Namespace, remarks: list[str]) -> OutputSettings:
    """Make the settings; where files are wanted and no place is named, one is made, and `remarks` says where."""
    redirects, tee = given.redirects or Choice(), given.tee or Choice()
    log_dir = given.log_dir
    if log_dir == NOWHERE:
        log_dir = None
        if (redirects, tee) != (Choice(), Choice()):
            remarks.append(f"with --log-dir {NOWHERE} there are no files, so all output goes to the terminal")
        redirects = tee = Choice()
    elif log_dir is None and _wants_files(given, redirects, tee):
        log_dir = Path(tempfile.gettempdir(), f"nodeclient-logs-{secrets.token_hex(8)}")  # made with the first file
        remarks.append(f"the workers' output goes into files in {log_dir}: --log-dir names a place that is kept")
    return OutputSettings(
        log_dir=log_dir,
        redirects=redirects,
        tee=tee,
        terminal_ranks=given.local_ranks_filter,
        stdout_filters=given.duplicate_stdout_filters,
        stderr_filters=given.duplicate_stderr_filters,
        prefix=given.log_line_prefix_template or None,
        rotate_bytes=given.log_rotate,
        rotations_kept=given.log_rotations_kept,
    )


def _wants_files(given: argparse.Namespace, redirects: Choice, tee: Choice) -> bool:
    chosen = any(choice.default or any(choice.by_local_rank.values()) for choice in (redirects, tee))
    return chosen or bool(given.duplicate_stdout_filters or given.duplicate_stderr_filters)
