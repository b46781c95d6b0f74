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
    "S": (int, float, str),
    **dict.fromkeys(("FACTOR", "WEIGHT", "H", "SHARE"), (int, float)),
    **dict.fromkeys(("SIZE", "STREAMS", "RANKS", "N[/TIME]"), (int, str)),
}
"""The types that a settings file may use for a value, by the value's name in the help. Where only a number fits, one in
quotes is rejected, because `port = "2"` may be a mistake."""

_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
"""The seconds of the units of a duration."""


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


def duration(
    text: str, least: float = 0.0, most: float = math.inf, expected: str = "a duration, such as 90, 15m, 2h or 3d"
) -> float:
    """Parse a duration in seconds, or with a unit, such as `90`, `15m`, `2h`, `3d`; return its seconds."""
    unit = text[-1:] if text[-1:] in _UNITS else ""
    try:
        found = float(text.removesuffix(unit)) * _UNITS.get(unit, 1)
    except ValueError:
        found = math.nan
    if not (least <= found <= most and math.isfinite(found)):
        raise argparse.ArgumentTypeError(f"{text!r}: expected {expected}")
    return found


def seconds(text: str, least: float = 0.0) -> float:
    """Parse a duration of at most `DURATION_S_MAX`: of at least `least` seconds or, if `least` is 0, of more than 0."""
    lower = f"at least {least:g}" if least else "more than 0"
    smallest = math.ulp(0.0)  # the least number above 0
    expected = f"seconds, {lower} and at most {DURATION_S_MAX}, or with a unit, such as 15m"
    return duration(text, least or smallest, DURATION_S_MAX, expected)


def seconds_or_zero(text: str) -> float:
    """Parse a duration from 0 to `DURATION_S_MAX`."""
    return duration(text, 0.0, DURATION_S_MAX, f"seconds, 0 to {DURATION_S_MAX}, or with a unit, such as 15m")


def joined(parts: Sequence[str]) -> str:
    """Join an array of TOML with commas, as the text of a flag."""
    for part in parts:
        if "," in part:
            raise argparse.ArgumentTypeError(f"{part!r} has a comma: make it several elements")
    return ",".join(parts)
