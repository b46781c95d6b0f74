"""One log line an event, with structured fields, as text for people or as JSON for machines.

Text is `time LEVEL program: message key=value ...`, JSON one object a line that also names the event.
"""

from __future__ import annotations

import json
import logging
import math
import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

LEVELS = ("debug", "info", "warning", "error")

FORMATS = ("text", "json")

EXACT_BELOW = 2**53
"""Many readers of JSON take every number for a floating one, in which greater ones are not exact: these go as text."""

OTHER_EVENT = "other"
"""The name of what is logged without one: by the libraries in use, mostly."""


def fields(event: str = "", /, **values: object) -> dict[str, Any]:
    """Return fields for the `extra` argument of a logging call; empty ones are left out.

    `event` names for machines what the message says in words: it stays the same when the words change.
    """
    kept = {name: value for name, value in values.items() if value is not None and value != ""}
    return {"fields": kept, "event": event}


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


def configure(level: str, name: str, form: str = "text") -> None:
    """Send the log lines of the program `name` (and of what it imports) to standard error, from `level` upward."""
    install(logging.StreamHandler(sys.stderr), level, name, form)


def install(handler: logging.Handler, level: str, name: str, form: str) -> None:
    """Have all log lines of this process go through one handler, which writes them in this form."""
    handler.setFormatter(FORMATTERS[form](name))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(True)
    # Its access log would say each event a second time.
    logging.getLogger("aiohttp").setLevel(logging.WARNING)


def is_for_machines() -> bool:
    """Whether this process has been told to log as JSON: then nothing else is to come from it on standard error."""
    return any(isinstance(handler.formatter, JsonFormatter) for handler in logging.getLogger().handlers)


def complain(program: str, text: str) -> None:
    """Say why the program ends, after its name; for machines as the last of its log lines."""
    if is_for_machines():
        logging.getLogger(program).error("%s", text, extra=fields("failed"))
    else:
        sys.stderr.write(f"{program}: {text}\n")


class LineFormatter(logging.Formatter):
    """Renders a record as one line, whatever it contains."""

    def __init__(self, program: str) -> None:
        super().__init__()
        self._program = program

    def format(self, record: logging.LogRecord) -> str:
        """Render; an exception follows on lines of its own, since it is a bug to be read by a developer."""
        message = _printable(_one_line(record))
        pairs = [f"{name}={_value(value)}" for name, value in getattr(record, "fields", {}).items()]
        line = " ".join([_when(record), f"{record.levelname:<7}", f"{self._program}:", message, *pairs])
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    """Renders a record as one JSON object on one line, of ASCII alone, whatever it contains."""

    def __init__(self, program: str) -> None:
        super().__init__()
        self._program = program

    def format(self, record: logging.LogRecord) -> str:
        """Render; what every line has comes first, then the fields of this event, then an exception."""
        always = {
            "ts": _when(record),
            "level": record.levelname.lower(),
            "program": self._program,
            "event": getattr(record, "event", "") or OTHER_EVENT,
            "message": _one_line(record),
        }
        # What every line has wins over a field of the same name.
        line: dict[str, object] = always | getattr(record, "fields", {}) | always
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps({name: _plain(value) for name, value in line.items()})


FORMATTERS: dict[str, Callable[[str], logging.Formatter]] = {"text": LineFormatter, "json": JsonFormatter}


def _when(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _one_line(record: logging.LogRecord) -> str:
    return " ".join(record.getMessage().splitlines())


def _value(value: object) -> str:
    text = _printable(str(value))
    return json.dumps(text, ensure_ascii=False) if any(character in text for character in ' "=') else text


def _printable(text: str) -> str:
    """Take the power from what could steer a terminal or break a line."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def _plain(value: object) -> object:
    """Return what every reader of JSON understands alike: no infinite numbers, no halves of characters."""
    match value:
        case None | bool():
            return value
        case int():
            return value if abs(value) < EXACT_BELOW else str(value)
        case float():
            return value if math.isfinite(value) else str(value)
        case list() | tuple():
            return [_plain(one) for one in value]
        case dict():
            return {str(name): _plain(one) for name, one in value.items()}
        case _:
            return str(value).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
