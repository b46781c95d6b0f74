"""The flags of `nodeclient replay`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal

from msgspec import Struct

from coordinatord.runtime.settings import SettingsParser
from nodeclient.config.command_line import CommandLine


class CrashReplayConfig(Struct, frozen=True):
    """The settings of `nodeclient replay`."""

    PROGRAM: ClassVar[Literal["replay"]] = "replay"

    crash: Path
    """The crash file of a bug of nodeclient."""


def _add_flags(parser: SettingsParser) -> None:
    parser.add_argument("--crash", type=Path, metavar="FILE", required=True, help="the crash file")


def _read(_: SettingsParser, given: argparse.Namespace, __: Mapping[str, str]) -> CrashReplayConfig:
    return CrashReplayConfig(given.crash)


COMMAND_LINES = {"replay": CommandLine(_add_flags, _read)}
