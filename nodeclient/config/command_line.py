"""The entry of a subcommand in a module's `COMMAND_LINES`, which `parse` reads."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from msgspec import Struct

from coordinatord.runtime.settings import SettingsParser

Settings = TypeVar("Settings")


class CommandLine(Struct, Generic[Settings], frozen=True):
    """The flags of one subcommand, and the function that makes its settings."""

    add_flags: Callable[[SettingsParser], None]
    read: Callable[[SettingsParser, argparse.Namespace, Mapping[str, str]], Settings]
    """Makes the settings; its last argument is the environment. Raises `SettingsError`."""
    explain: Callable[[str], str | None] = lambda _: None
    """Returns a hint about an unknown flag."""
    env_prefix: str = "NODECLIENT"
