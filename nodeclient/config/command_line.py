"""The entry of a subcommand in a module's `COMMAND_LINES`: what `parse` has to know of it.

So the flags of a subcommand are in a module of their own, which `parse` imports only for that subcommand.
"""

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
    read: Callable[[SettingsParser, argparse.Namespace], Settings]
    """Makes the settings. Raises `SettingsError`."""
    hints: Mapping[str, str] = {}
    """Hints about flags that it lacks: another name or place."""
    env_prefix: str = "NODECLIENT"
    """The beginning of the names of the flags' environment variables."""
