"""What a module gives `parse` for each of its subcommands, in a dict with the name `COMMAND_LINES`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from msgspec import Struct

from coordinatord.runtime.settings import SettingsParser

Settings = TypeVar("Settings")


class CommandLine(Struct, Generic[Settings], frozen=True):
    """The flags of one subcommand, and how they become its settings."""

    add_flags: Callable[[SettingsParser], None]
    read: Callable[[SettingsParser, argparse.Namespace, Mapping[str, str]], Settings]
    """Makes the settings; its last argument is the environment. Raises `SettingsError`."""
    explain: Callable[[str], str | None] = lambda _: None
    """Returns a hint about a flag that is not understood."""
    env_prefix: str = "NODECLIENT"
