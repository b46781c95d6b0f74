"""The program `coordinatord`: from the command line to an exit code.

What a subcommand needs is imported when it is chosen, so that looking at a state directory loads no server.
"""

from __future__ import annotations

import io
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from coordinatord import config
from coordinatord.config import Config, ReplayConfig, ServeConfig, StateConfig
from coordinatord.shared import bugs, logs
from coordinatord.store.interface import StoreError
from coordinatord.wire.exits import ExitCode


def main() -> None:
    """Run the chosen subcommand, or serve until SIGTERM or SIGINT, and exit with its code; see the README for codes."""
    logs.replace_closed_streams()
    try:
        code = _run(config.parse())
    except KeyboardInterrupt:  # before the signals are handled, or while a history is shown
        code = ExitCode.INTERRUPTED
    except StoreError as error:
        logs.complain("coordinatord", str(error))
        code = error.exit_code
    except Exception:  # noqa: BLE001 - the last resort, and it says all there is to know
        code = bugs.report_bug("coordinatord")
    sys.exit(code)


def _run(chosen: Config) -> int:
    match chosen:
        case ServeConfig():
            from coordinatord.commands.serve import serve_until_told  # noqa: PLC0415 - see above

            return serve_until_told(chosen)
        case StateConfig():
            from coordinatord.commands.state import show  # noqa: PLC0415

            with _printing():
                return show(chosen)
        case ReplayConfig():
            from coordinatord.commands.replay import replay  # noqa: PLC0415

            with _printing():
                return replay(chosen)


@contextmanager
def _printing() -> Iterator[None]:
    """Print as tools do: die quietly when nobody reads on (`| head`), escape what the terminal has no letters for.

    Raises `StoreError` if there is no room for what is printed.
    """
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        sys.stdout = None  # or Python would try again at its end, and fail
        raise StoreError(f"the output cannot be written: {error.strerror}") from error
