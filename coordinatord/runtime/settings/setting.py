"""Defines one setting: its flag, its other sources, and its value in force."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import fields

Made = TypeVar("Made", bound=Struct)


class Rank(IntEnum):
    """The kinds of sources of a value; the greater wins."""

    DEFAULT = 0
    FILE = 1
    ENVIRONMENT = 2
    FLAG = 3


class InForce(Struct, frozen=True):
    """The value of a setting, in the form of a file, and a text with its source."""

    rank: Rank
    origin: str
    value: object
    """None for no value."""


class Setting(Struct, frozen=True):
    """A flag, or the command after all flags."""

    action: argparse.Action
    variables: Sequence[str]
    """Environment variables; the first that is set counts."""
    default: Any
    required: bool
    kinds: tuple[type, ...]
    """Its types in TOML, except an array."""
    array: Callable[[Sequence[str]], str] | None
    """Converts an array of TOML to the text of the flag; None: it is no list."""
    reload: bool = False
    """Whether a running program applies a new value when it reloads its settings."""

    @property
    def is_switch(self) -> bool:
        """Whether it is on or off."""
        return self.action.nargs == 0

    @property
    def is_command(self) -> bool:
        """Whether it is the command after all flags."""
        return not self.action.option_strings

    @property
    def keys(self) -> list[str]:
        """Its names in a file; the first is the canonical one."""
        flags = [flag[2:] for flag in self.action.option_strings if flag.startswith("--") and "_" not in flag]
        return flags or [self.action.dest]

    @property
    def by_default(self) -> InForce:
        """The value in force if none is given; the text of the help, if the default is no plain value."""
        if isinstance(self.default, bool | int | float | str) and self.default is not argparse.SUPPRESS:
            return InForce(Rank.DEFAULT, "default", self.default)
        _, marker, words = (self.action.help or "").partition("(default: ")
        return InForce(Rank.DEFAULT, f"not set (default: {words.partition(')')[0]})" if marker else "not set", None)

    def as_toml(self, text: str) -> object:
        """Convert the text of the flag to the value of a file."""
        if int in self.kinds and text.isascii() and text.isdecimal():
            return int(text)
        return float(text) if float in self.kinds else text


def filled(kind: type[Made], given: argparse.Namespace, **others: Any) -> Made:
    """Make a record from the settings named as its fields, and `others`; duplicates are removed from lists."""
    named = {field.name: vars(given)[field.name] for field in fields(kind) if field.name in given} | others
    return kind(
        **{name: tuple(dict.fromkeys(value)) if isinstance(value, list) else value for name, value in named.items()}
    )
