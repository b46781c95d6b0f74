"""Reads one value of a setting that both programs have; what is wrong is an `argparse.ArgumentTypeError`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from coordinatord.protocol.fields import DURATION_S_MAX, PORT_MAX

_TYPES: Mapping[str, tuple[type, ...]] = {
    "N": (int,),
    "PORT": (int,),
    "S": (int, float),
    "FACTOR": (int, float),
    **dict.fromkeys(("SIZE", "STREAMS", "RANKS"), (int, str)),
}
"""The types in a file, by the name of the value in the help. Each value is read as text in the end, so that a flag and
a key cannot differ in meaning. A number in quotes is still no number in a file: whoever writes `settle = "2"` may have
meant something else."""


def types(value: str) -> tuple[type, ...]:
    """Return the types in a file of a value with this name, which may have alternatives, such as `N|auto`."""
    return _TYPES.get(value, (int, str) if "|" in value else (str,))


def port(text: str) -> int:
    """Read a port number, 0 included."""
    if not text.isdecimal() or int(text) > PORT_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is no port: 0 to {PORT_MAX}")
    return int(text)


def folder(text: str) -> Path:
    """Read the path of a directory."""
    if not text:
        raise argparse.ArgumentTypeError("'': expected a directory")
    return Path(text)


def seconds(text: str, least: float = 0.0) -> float:
    """Read a duration in seconds; 0 is none."""
    try:
        number = float(text)
    except ValueError:
        number = -1
    if number <= 0 or not least <= number <= DURATION_S_MAX:
        lower = f"at least {least:g}" if least else "more than 0"
        raise argparse.ArgumentTypeError(f"{text!r}: expected seconds, {lower} and at most {DURATION_S_MAX}")
    return number


def joined(parts: Sequence[str]) -> str:
    """Write an array of TOML as a flag has it, separated by commas."""
    for part in parts:
        if "," in part:
            raise argparse.ArgumentTypeError(f"{part!r} has a comma: make it elements of their own")
    return ",".join(parts)
