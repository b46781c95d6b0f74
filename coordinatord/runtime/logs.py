"""Logs to standard error: one line for each event, with structured fields, as text or as JSON.

Text is `time LEVEL program: message key=value ...`. JSON is one object a line, which also has the name of the event. On
a terminal, text has only the time of day, and the level in colour if it is not INFO. In systemd's journal, each line
begins with its priority (sd-daemon(3)), and text has no time, because the journal adds it.
"""

from __future__ import annotations

import json
import logging
import math
import os
import sys
import traceback
from datetime import UTC, datetime
from typing import Any

from coordinatord.protocol.errors import operational
from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.runtime.line_writer import LineWriter
from coordinatord.runtime.local_time import local, moment

LEVELS = ("debug", "info", "warning", "error")

FORMATS = ("text", "json")

EXACT_BELOW = 2**53
"""Integers from here on are written as text in JSON, since readers with floating-point numbers would round them."""

STDERR = 2
"""The descriptor of standard error."""

PRIORITIES = ((logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6), (logging.NOTSET, 7))
"""The priority in syslog, from each level upward (RFC 5424, 6.2.1)."""

COLOURS = ((logging.ERROR, 31), (logging.WARNING, 33))
"""The colour of a level's name on a terminal, from each level upward (ECMA-48, SGR): red, and yellow."""

QUOTED = frozenset(' "=')
"""A value with one of these is quoted."""

OTHER_EVENT = "other"
"""The event of a line without one, mostly of a library."""


def fields(event: str = "", /, **values: object) -> dict[str, Any]:
    """Return the `extra` argument of a logging call with these fields; empty ones are left out.

    Programs recognize a message by the name of its `event`, even if the text changes.
    """
    kept = {name: value for name, value in values.items() if value is not None and value != ""}
    return {"fields": kept, "event": event}


def level_number(name: str) -> int:
    """Return the number that `logging` has for one of `LEVELS`."""
    return logging.getLevelNamesMapping()[name.upper()]


def replace_closed_streams() -> None:
    """Open /dev/null in place of a standard stream that is closed, as with `2>&-`.

    Call it before any file is opened, because that would get the descriptor of the closed stream.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            # It gets the lowest free number, which is this one. Child processes inherit standard streams.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    # Python has None for a stream that was closed at its start.
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def configure(level: str, name: str, form: str = "text") -> None:
    """Send the log lines of the program `name` (and of its imports) to standard error, from `level` upward.

    Logging never blocks. At the end of the process, queued lines are written within a time limit.
    """
    install(_handler_of_stderr() or _StderrHandler(), level, name, form)


def install(handler: logging.Handler, level: str, name: str, form: str) -> None:
    """Send all log lines of this process to standard error through one handler, in `form`, one of `FORMATS`."""
    handler.setFormatter(FORMATTERS[form](name, for_journal=leads_to_journal(STDERR), on_terminal=os.isatty(STDERR)))
    root = logging.getLogger()
    for other in root.handlers[:]:
        if other is not handler:
            root.removeHandler(other)
            other.close()
    if handler not in root.handlers:
        root.addHandler(handler)
    root.setLevel(level.upper())
    logging.captureWarnings(True)
    # aiohttp's access log would repeat each event.
    logging.getLogger("aiohttp").setLevel(logging.WARNING)


def leads_to_journal(fd: int) -> bool:
    """Whether a descriptor leads to systemd's journal (systemd.exec(5), JOURNAL_STREAM)."""
    try:
        found = os.fstat(fd)
    except OSError:
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"


def colours_wanted() -> bool:
    """Return whether the user allows colours on a terminal (NO_COLOR, no-color.org)."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def prioritized(text: str, level: int) -> str:
    """Put the priority of a level before each line, in the form of sd-daemon(3)."""
    priority = next(priority for least, priority in PRIORITIES if level >= least)
    return "\n".join(f"<{priority}>{line}" for line in text.split("\n"))


def is_for_machines() -> bool:
    """Whether this process logs JSON, so that standard error must have nothing else."""
    return any(isinstance(handler.formatter, JsonFormatter) for handler in logging.getLogger().handlers)


def report_end(program: str, text: str) -> None:
    """Write the name of the program and why it ends, as the last line of its log."""
    if is_for_machines():
        logging.getLogger(program).error("%s", text, extra=fields("failed"))
    else:
        write_last_lines(f"{program}: {text}\n")


def write_last_lines(text: str) -> None:
    """Write the program's last lines to standard error, after all log lines, within a time limit.

    In systemd's journal they have the priority of errors, because they explain the end.
    """
    if leads_to_journal(STDERR):
        text = prioritized(text.removesuffix("\n"), logging.ERROR) + "\n"
    handler = _handler_of_stderr()
    if handler is not None:  # it writes them when `logging` closes it, at the end of the process
        handler.writer.put(_encoded(text))
        return
    writer = LineWriter(STDERR, lambda _: b"")  # without a remark about lost lines
    writer.put(_encoded(text))
    writer.close()


class _StderrHandler(logging.Handler):
    """Writes to standard error. At the end of the process `logging` calls `close`, which writes the queued lines."""

    def __init__(self) -> None:
        super().__init__()
        self.writer = LineWriter(STDERR, self._lost)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
        except Exception:  # noqa: BLE001 - no log line may end a program
            self.handleError(record)
        else:
            self.writer.put(_encoded(f"{line}\n"))

    def close(self) -> None:
        super().close()
        self.writer.close()

    def _lost(self, count: int) -> bytes:
        text = "log lines were lost, since standard error took nothing"
        record = logging.LogRecord("logs", logging.WARNING, __file__, 0, text, None, None)
        record.__dict__.update(fields("lines_lost", count=count))
        return _encoded(f"{self.format(record)}\n")


def _handler_of_stderr() -> _StderrHandler | None:
    return next((handler for handler in logging.getLogger().handlers if isinstance(handler, _StderrHandler)), None)


def _encoded(text: str) -> bytes:
    return text.encode(sys.stderr.encoding or "utf-8", "backslashreplace")


class _Formatter(logging.Formatter):
    """The common part of both formatters."""

    def __init__(self, program: str, *, for_journal: bool = False, on_terminal: bool = False) -> None:
        super().__init__()
        self._program = program
        self._for_journal = for_journal
        self._on_terminal = on_terminal

    def format(self, record: logging.LogRecord) -> str:
        """Render a record; for the journal each line begins with its priority."""
        text = self._render(record)
        return prioritized(text, record.levelno) if self._for_journal else text

    def _render(self, record: logging.LogRecord) -> str:
        raise NotImplementedError


class LineFormatter(_Formatter):
    """Renders a record as one line of text; an exception follows on further lines."""

    def _render(self, record: logging.LogRecord) -> str:
        at = local(record.created)
        if self._on_terminal:
            before = [f"{at:%H:%M:%S}", *([_coloured(record)] if record.levelno != logging.INFO else [])]
        else:
            when = [] if self._for_journal else [moment(at, "milliseconds", "T")]
            before = [*when, f"{record.levelname:<7}"]
        message = _printable(_one_line(record))
        pairs = [f"{name}={_value(value)}" for name, value in getattr(record, "fields", {}).items()]
        line = " ".join([*before, f"{self._program}:", message, *pairs])
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonFormatter(_Formatter):
    """Renders a record as one JSON object, on one line of ASCII.

    The fields that every line has come first, then those of the event, then an exception. Times are in UTC.
    """

    def _render(self, record: logging.LogRecord) -> str:
        ts = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        common = {
            "ts": ts.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "program": self._program,
            "event": getattr(record, "event", "") or OTHER_EVENT,
            "message": _one_line(record),
        }
        # The first `common` comes first in the line. The last one wins over a field of the event with the same name.
        line: dict[str, object] = common | getattr(record, "fields", {}) | common
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps({name: _plain(value) for name, value in line.items()})


FORMATTERS: dict[str, type[_Formatter]] = {"text": LineFormatter, "json": JsonFormatter}


def _coloured(record: logging.LogRecord) -> str:
    colour = next((colour for least, colour in COLOURS if record.levelno >= least), None)
    return f"\x1b[{colour}m{record.levelname}\x1b[0m" if colour and colours_wanted() else record.levelname


def _one_line(record: logging.LogRecord) -> str:
    return " ".join(record.getMessage().splitlines())


def _value(value: object) -> str:
    text = _printable(str(value))
    return text if QUOTED.isdisjoint(text) else json.dumps(text, ensure_ascii=False)


def _printable(text: str) -> str:
    """Replace characters that could control a terminal or break a line."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def _plain(value: object) -> object:
    """Convert a value to one that every JSON reader accepts, without infinite numbers and lone surrogates."""
    match value:
        case None | bool():
            return value
        case int():
            return value if abs(value) < EXACT_BELOW else str(value)
        case float():
            return value if math.isfinite(value) else str(value)
        case list() | tuple():
            return [_plain(item) for item in value]
        case dict():
            return {str(name): _plain(item) for name, item in value.items()}
        case _:
            return str(value).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def explain_end(program: str, error: Exception) -> int:
    """Log the error that ends the program, in one line unless it is a bug; return the exit code."""
    known = operational(error)
    if known is not None:
        report_end(program, str(known))
        return known.exit_code
    if is_for_machines():
        text = "this is a bug of %s, please report it"
        logging.getLogger(program).error(text, program, exc_info=error, extra=fields("bug"))
    else:
        text = "".join(traceback.format_exception(error))
        write_last_lines(f"{text}{program}: this is a bug of {program}, please report it with the lines above\n")
    return ExitCode.INTERNAL
