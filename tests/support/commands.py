"""A command of an operator, within this process."""

import sys

from coordinatord.protocol.errors import OperationalError
from nodeclient.cli import operate
from nodeclient.config.operate import OperateConfig


def run_command(chosen: OperateConfig) -> int:
    """Run it; return the exit code. Errors are on standard error, as the program writes them."""
    try:
        return operate(chosen)
    except OperationalError as error:
        sys.stderr.write(f"nodeclient: {error}\n")
        return error.exit_code
