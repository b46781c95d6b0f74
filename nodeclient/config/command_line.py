"""Says what each module with command lines gives to `parse`, which imports the chosen one."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from coordinatord.protocol.frozen_class import frozen
from coordinatord.runtime.settings import SettingsParser

if TYPE_CHECKING:
    from typing import TypeAlias

    from nodeclient.config.crash_replay import CrashReplayConfig
    from nodeclient.config.join_config import JoinConfig
    from nodeclient.config.operate import OperateConfig

    Config: TypeAlias = JoinConfig | OperateConfig | CrashReplayConfig


@frozen
class CommandLine:
    """The flags of one subcommand, and how they become its settings."""

    add_flags: Callable[[SettingsParser], None]
    read: Callable[[SettingsParser, argparse.Namespace, Mapping[str, str]], Config]
    """Makes the settings; its last argument is the environment. Raises `SettingsError`."""
    explain: Callable[[str], str | None] = lambda _: None
    """Returns a hint about a flag that is not understood."""
    env_prefix: str = "NODECLIENT"
