"""One log line an event, with structured fields: `time LEVEL message key=value ...`."""

from __future__ import annotations

import json
import logging
import os
import sys
from datetime import UTC, datetime
from typing import Any

LEVELS = ("debug", "info", "warning", "error")


def fields(**values: object) -> dict[str, Any]:
    """Return fields for the `extra` argument of a logging call; empty ones are left out."""
    return {"fields": {name: value for name, value in values.items() if value not in {None, ""}}}


def replace_closed_streams() -> None:
    """Let the program work all the same if it was started without standard input, output or error (`2>&-`).

    To be called before anything is opened, which would take the place of what is missing.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number that is free is this one
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def configure(level: str, name: str) -> None:
    """Send the log lines of the program `name` (and of what it imports) to standard error, from `level` upward."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(name))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # Its access log would say each event a second time.
    logging.getLogger("aiohttp").setLevel(logging.WARNING)


class LineFormatter(logging.Formatter):
    """Renders a record as one line, whatever it contains."""

    def __init__(self, program: str) -> None:
        super().__init__()
        self._program = program

    def format(self, record: logging.LogRecord) -> str:
        """Render; an exception follows on lines of its own, since it is a bug to be read by a developer."""
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        message = _printable(" ".join(record.getMessage().splitlines()))
        pairs = [f"{name}={_value(value)}" for name, value in getattr(record, "fields", {}).items()]
        line = " ".join([when, f"{record.levelname:<7}", f"{self._program}:", message, *pairs])
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _value(value: object) -> str:
    text = _printable(str(value))
    return json.dumps(text, ensure_ascii=False) if any(character in text for character in ' "=') else text


def _printable(text: str) -> str:
    """Take the power from what could steer a terminal or break a line."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)
