"""One setting: the flag, what else it can be set by, and what is in force of it."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any


class Rank(IntEnum):
    """What kind of source a value came from; the greater wins."""

    DEFAULT = 0
    FILE = 1
    ENVIRONMENT = 2
    FLAG = 3


@dataclass(frozen=True, slots=True)
class InForce:
    """What a setting is, as a file would have it, and where that came from in words."""

    rank: Rank
    origin: str
    value: object
    """None: nothing."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A flag, or the command behind all flags."""

    action: argparse.Action
    variables: Sequence[str]
    """Of the environment; the first that is set counts."""
    default: Any
    required: bool
    kinds: tuple[type, ...]
    """What it may be in TOML, but for an array."""
    array: Callable[[Sequence[str]], str] | None
    """Writes an array of TOML as the flag has it; None: it is no list."""

    @property
    def is_switch(self) -> bool:
        """Whether it is on or off."""
        return self.action.nargs == 0

    @property
    def is_command(self) -> bool:
        """Whether it is what stands behind all flags."""
        return not self.action.option_strings

    @property
    def keys(self) -> list[str]:
        """What it may be called in a file; the first is its name."""
        flags = [flag[2:] for flag in self.action.option_strings if flag.startswith("--") and "_" not in flag]
        return flags or [self.action.dest]

    @property
    def by_default(self) -> InForce:
        """What is in force if nothing is given; of what is no plain value, the words of the help are shown."""
        if isinstance(self.default, bool | int | float | str) and self.default is not argparse.SUPPRESS:
            return InForce(Rank.DEFAULT, "default", self.default)
        _, marker, words = (self.action.help or "").partition("(default: ")
        return InForce(Rank.DEFAULT, f"not set (default: {words.partition(')')[0]})" if marker else "not set", None)

    def as_toml(self, text: str) -> object:
        """Return what was written as text as a file would have it."""
        if int in self.kinds and text.isascii() and text.isdecimal():
            return int(text)
        return float(text) if float in self.kinds else text
