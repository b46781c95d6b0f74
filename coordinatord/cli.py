"""The program `coordinatord`: from the command line to an exit code.

A subcommand's modules are imported once it is chosen, so that `coordinatord state` does not load the server. Signal
defaults are installed before almost anything is imported, so that a signal during imports ends the program.
"""

from __future__ import annotations

import io
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from coordinatord.runtime.early_signals import install_signal_defaults
from coordinatord.runtime.own_python import prefer_standard_library

if TYPE_CHECKING:
    from coordinatord.config.subcommands import Config


def main() -> None:
    """Run the chosen subcommand, or serve until SIGTERM or SIGINT, and exit with its code; see docs/exit-codes.md."""
    prefer_standard_library()
    install_signal_defaults()
    sys.exit(_run())


def _run() -> int:
    from coordinatord.runtime import logs  # noqa: PLC0415 - see above
    from coordinatord.runtime.process_limits import leave_no_core_file  # noqa: PLC0415

    logs.replace_closed_streams()
    leave_no_core_file()
    try:
        from coordinatord.config.subcommands import parse  # noqa: PLC0415

        return _run_command(parse())
    except Exception as error:  # noqa: BLE001 - any error is logged here
        return logs.explain_end("coordinatord", error)


def _run_command(settings: Config) -> int:
    from coordinatord.config.serve_flags import ServeConfig  # noqa: PLC0415 - see above
    from coordinatord.config.state_flags import ReplayConfig, StateConfig  # noqa: PLC0415
    from coordinatord.config.store_flags import CopyConfig, StepDownConfig  # noqa: PLC0415
    from coordinatord.config.token_flags import TokenConfig  # noqa: PLC0415

    if isinstance(settings, ServeConfig):
        from coordinatord.commands.serve import run  # noqa: PLC0415

        return run(settings)
    with _printing():
        match settings:
            case StateConfig():
                from coordinatord.commands.state import show  # noqa: PLC0415

                return show(settings)
            case ReplayConfig():
                from coordinatord.commands.replay import replay  # noqa: PLC0415

                return replay(settings)
            case CopyConfig():
                from coordinatord.commands.store_copy import copy  # noqa: PLC0415

                return copy(settings)
            case StepDownConfig():
                from coordinatord.commands.shared_store import step_down  # noqa: PLC0415

                return step_down(settings)
            case TokenConfig():
                from coordinatord.commands.token import change_tokens  # noqa: PLC0415

                return change_tokens(settings)


@contextmanager
def _printing() -> Iterator[None]:
    """Print like other tools: end quietly if the reader has ended (`| head`), and escape what cannot be encoded.

    Raises `OutputError` for an `OSError`: commands handle those of files, so it is one of the output.
    """
    from coordinatord.protocol.errors import OutputError  # noqa: PLC0415 - as above

    before = signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        sys.stdout = None  # otherwise Python would try again at its end, and fail
        raise OutputError(error) from error
    finally:
        signal.signal(signal.SIGPIPE, before)
