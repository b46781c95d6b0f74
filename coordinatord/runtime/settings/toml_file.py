"""Reads and writes a settings file in TOML, and finds the line of a key for errors.

`parser` decides which keys are valid, and what they mean.
"""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path
from typing import Any

from coordinatord.protocol.errors import OperationalError

BYTES_MAX = 64 * 1024
"""The size limit of a file. All settings with comments take a hundredth of it; a larger file was named by mistake."""

_NOT_UTF_8 = re.compile("[\ud800-\udfff]")
"""The surrogates by which Python represents bytes that are not UTF-8."""


class ConfigFileError(OperationalError):
    """The file cannot be read."""


class ConfigFile:
    """The content of one file."""

    def __init__(self, path: Path) -> None:
        """Read it. Raises `ConfigFileError`."""
        self.path = path
        text = _read(path)
        self._lines = text.splitlines()
        self.values: dict[str, Any] = {}
        """The values by key, with dashes instead of underscores."""
        for key, value in _parse(path, text).items():
            name = key.replace("_", "-")
            if name in self.values:
                raise ConfigFileError(f"{self.place(name)}: {name} is there twice, once with - and once with _")
            self.values[name] = value

    def place(self, name: str) -> str:
        """Return the path, and the line of a key, for an error."""
        spelled = "[-_]".join(map(re.escape, name.split("-")))
        pattern = re.compile(rf"""\s*\[*\s*["']?{spelled}(?![-\w])""")
        for number, line in enumerate(self._lines, 1):
            if pattern.match(line):
                return f"{self.path}, line {number}"
        return str(self.path)


def _read(path: Path) -> str:
    try:
        # Without O_NONBLOCK, a named pipe would block the daemon at a reload.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ConfigFileError(f"the settings file {path} is no regular file")
            data = file.read(BYTES_MAX + 1)
    except OSError as error:
        raise ConfigFileError(f"the settings file {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigFileError(f"{str(path)!r} is no name of a settings file: {error}") from error
    if len(data) > BYTES_MAX:
        raise ConfigFileError(f"the settings file {path} has more than {BYTES_MAX // 1024} KiB: is it the right one?")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigFileError(f"{path}, line {line}: this is not UTF-8, as TOML has to be") from error


def _parse(path: Path, text: str) -> dict[str, Any]:
    import tomllib  # noqa: PLC0415 - few starts have a file

    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ConfigFileError(f"{path} is not TOML: {why}") from error


def toml_line(key: str, value: object, origin: str) -> str:
    """Format a line that sets a key, with the source of its value as a comment.

    A path may have bytes that are not UTF-8, which TOML cannot express: then the whole line is a comment.
    """
    line = f"{key} = {toml_value(value)}  {remark(origin)}"
    texts = value if isinstance(value, list | tuple) else [value]
    if any(_NOT_UTF_8.search(str(text)) for text in texts):
        return remark(f"{line}: no file can set this, since it is not UTF-8")
    return line


def toml_value(value: object) -> str:
    """Format a switch, a number, a text, or an array of these; another value as its text."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return repr(int(value))  # a file may have 2 or 2.0
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    # JSON's escapes are valid TOML. Invisible characters are escaped too, but not as two surrogates as in JSON.
    quoted = json.dumps(str(value), ensure_ascii=False)
    return "".join(character if character.isprintable() else f"\\U{ord(character):08x}" for character in quoted)


def remark(text: str) -> str:
    """Format a comment; replace characters that TOML forbids or that control a terminal."""
    return "# " + "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)
