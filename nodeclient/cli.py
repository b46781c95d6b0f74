"""The program `nodeclient`: from the command line to an exit code.

What a subcommand needs is imported when it is chosen, so that `nodeclient --help` answers at once.
"""

from __future__ import annotations

import asyncio
import sys

from coordinatord.shared import bugs, logs
from coordinatord.wire.exits import ExitCode
from nodeclient import config
from nodeclient.config import JoinConfig


def main() -> None:
    """Run the chosen subcommand and exit with its code; see the README for the codes."""
    logs.replace_closed_streams()
    try:
        chosen = config.parse()
        code = _join(chosen) if isinstance(chosen, JoinConfig) else _status(chosen)
    except KeyboardInterrupt:  # before the signals are handled, or while a status is asked for
        code = ExitCode.INTERRUPTED
    except OSError as error:
        sys.stderr.write(f"nodeclient: the system refused something: {error}\n")
        code = ExitCode.OS_ERROR
    except Exception:  # noqa: BLE001 - the last resort, and it says all there is to know
        code = bugs.report_bug("nodeclient")
    sys.exit(code)


def _join(chosen: JoinConfig) -> int:
    from nodeclient.node import Node  # noqa: PLC0415 - see above
    from nodeclient.standalone import StandaloneError, own_coordinator  # noqa: PLC0415

    async def run() -> int:
        if not chosen.standalone:
            return await Node(chosen).run()
        async with own_coordinator(chosen) as (completed, pid):
            return await Node(completed, companions={pid}).run()

    try:
        return asyncio.run(run())
    except StandaloneError as error:
        sys.stderr.write(f"nodeclient: {error}\n")
        return ExitCode.UNAVAILABLE


def _status(chosen: config.StatusConfig) -> int:
    from nodeclient.status import show  # noqa: PLC0415 - see above

    return show(chosen)
