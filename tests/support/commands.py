"""A command of an operator, within this process."""

import sys

from coordinatord.protocol.errors import OperationalError
from nodeclient.cli import operate
from nodeclient.config.join_config import JoinConfig
from nodeclient.config.operate import CheckConfig, CrashReplayConfig
from nodeclient.config.parse import parse
from nodeclient.config.up import UpConfig


def command_at(endpoint: str, verb: str, *arguments: str) -> int:
    """Run it at a coordinator; return the exit code. Errors are on standard error, as the program writes them."""
    chosen = parse([verb, "--coord", endpoint, *arguments], {})
    assert not isinstance(chosen, JoinConfig | UpConfig | CheckConfig | CrashReplayConfig)
    try:
        return operate(chosen)
    except OperationalError as error:
        sys.stderr.write(f"nodeclient: {error}\n")
        return error.exit_code
