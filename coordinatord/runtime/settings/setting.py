"""Describes one setting: its flag, its other sources, and its value in force."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import IntEnum
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import fields

Made = TypeVar("Made", bound=Struct)


class Source(IntEnum):
    """The sources of a value; the greater one wins."""

    DEFAULT = 0
    FILE = 1
    ENVIRONMENT = 2
    FLAG = 3


class InForce(Struct, frozen=True):
    """The value of a setting and its source."""

    source: Source
    origin: str
    """The source as a text, such as `environment variable X`."""
    value: object
    """The value as a file would have it; None if no file can have it."""


class Setting(Struct, frozen=True):
    """A flag, or the command after all flags."""

    action: argparse.Action
    variables: Sequence[str]
    """Its environment variables; the first one that is set counts."""
    default: Any
    required: bool
    kinds: tuple[type, ...]
    """Its types in TOML, besides an array."""
    array: Callable[[Sequence[str]], str] | None
    """Converts an array of TOML to the text of the flag; None if an array is not allowed."""
    reload: bool = False
    """Whether a running program applies a new value when it reloads its settings."""

    @property
    def is_switch(self) -> bool:
        """Whether it is a flag without a value."""
        return self.action.nargs == 0

    @property
    def is_command(self) -> bool:
        """Whether it is the command after all flags."""
        return not self.action.option_strings

    @property
    def keys(self) -> list[str]:
        """Its names in a file, without torchrun's spellings with `_`; the first is the canonical one."""
        flags = [flag[2:] for flag in self.action.option_strings if flag.startswith("--") and "_" not in flag]
        return flags or [self.action.dest]

    @property
    def default_in_force(self) -> InForce:
        """The default and its source.

        A default that is no plain value is described in the help, by `add_setting`. `origin` quotes that description.
        """
        if isinstance(self.default, bool | int | float | str) and self.default is not argparse.SUPPRESS:
            return InForce(Source.DEFAULT, "default", self.default)
        _, marker, words = (self.action.help or "").partition("(default: ")
        return InForce(Source.DEFAULT, f"not set (default: {words.partition(')')[0]})" if marker else "not set", None)

    def as_toml(self, text: str) -> object:
        """Convert the text of the flag to a value as in a file."""
        if int in self.kinds and text.isascii() and text.isdecimal():
            return int(text)
        if float in self.kinds:
            with suppress(ValueError):  # a duration with a unit stays a text
                return float(text)
        return text


def filled(kind: type[Made], given: argparse.Namespace, **others: Any) -> Made:
    """Make a struct from the settings named as its fields, and `others`; lists become tuples without duplicates."""
    named = {field.name: vars(given)[field.name] for field in fields(kind) if field.name in given} | others
    return kind(
        **{name: tuple(dict.fromkeys(value)) if isinstance(value, list) else value for name, value in named.items()}
    )
