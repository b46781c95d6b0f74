"""Writes settings as lines of TOML, so that what `--show-config` prints can be used as a file."""

from __future__ import annotations

import json


def toml_line(key: str, value: object, origin: str) -> str:
    """Write a line that sets a key, and say where its value came from."""
    return f"{key} = {toml_value(value)}  {remark(origin)}"


def toml_value(value: object) -> str:
    """Write a value: a switch, a number, a text, or an array of these; anything else as its text."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return repr(int(value))  # a file may say either
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    # JSON's escapes are TOML's too; what is not to be seen is escaped on top, and never in halves as JSON would.
    quoted = json.dumps(str(value), ensure_ascii=False)
    return "".join(character if character.isprintable() else f"\\U{ord(character):08x}" for character in quoted)


def remark(text: str) -> str:
    """Write a comment, without what it must not have, or what a terminal would obey."""
    return "# " + "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)
