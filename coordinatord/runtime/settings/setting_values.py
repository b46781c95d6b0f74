"""Parses values of settings: ports, directories, numbers and lists. Errors are `argparse.ArgumentTypeError`."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from coordinatord.protocol.fields import DURATION_S_MAX, PORT_MAX

_TYPES: Mapping[str, tuple[type, ...]] = {
    "N": (int,),
    "PORT": (int,),
    "S": (int, float),
    **dict.fromkeys(("FACTOR", "WEIGHT", "H", "SHARE"), (int, float)),
    **dict.fromkeys(("SIZE", "STREAMS", "RANKS", "N[/TIME]"), (int, str)),
}
"""The types that a settings file may use for a value, by the value's name in the help. A number in quotes is rejected,
because `settle = "2"` may be a mistake."""


def types(value: str) -> tuple[type, ...]:
    """Return the types that a file may use for a value with this name, such as `N`, or `N|auto` with an alternative."""
    return _TYPES.get(value, (int, str) if "|" in value else (str,))


def port(text: str) -> int:
    """Parse a port number, 0 included."""
    if not text.isdecimal() or int(text) > PORT_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is no port: 0 to {PORT_MAX}")
    return int(text)


def folder(text: str) -> Path:
    """Parse the path of a directory."""
    if not text:
        raise argparse.ArgumentTypeError("'': expected a directory")
    return Path(text)


def number(text: str, least: float, most: float, expected: str = "") -> float:
    """Parse a number within limits; `expected` says in an error what is expected."""
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not least <= found <= most:
        raise argparse.ArgumentTypeError(f"{text!r}: expected {expected or f'a number from {least:g} to {most:g}'}")
    return found


def seconds(text: str, least: float = 0.0) -> float:
    """Parse a duration in seconds, at least `least`."""
    lower = f"at least {least:g}" if least else "more than 0"
    smallest = math.ulp(0.0)  # the least number above 0
    return number(text, least or smallest, DURATION_S_MAX, f"seconds, {lower} and at most {DURATION_S_MAX}")


def joined(parts: Sequence[str]) -> str:
    """Join an array of TOML with commas, as the text of a flag."""
    for part in parts:
        if "," in part:
            raise argparse.ArgumentTypeError(f"{part!r} has a comma: make it several elements")
    return ",".join(parts)
