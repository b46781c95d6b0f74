"""`nodeclient logs`: what the workers of a job have written, from the nodes that keep it, by way of the coordinator.

The logs of several workers have each line behind its rank, as on the terminal of a node. Notes, such as why a log
cannot be read, go to standard error.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from urllib.parse import urlencode

from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.protocol.log_answers import LogPart
from coordinatord.protocol.schema import fields_of
from nodeclient.config.operate import LogsConfig
from nodeclient.operate.client import Client, read
from nodeclient.operate.job_lookup import job_path, only_job, unknown_job
from nodeclient.operate.request_errors import UnknownNameError
from nodeclient.operate.terminal_info import TerminalInfo, terminal, write_text
from nodeclient.output.line_prefix import WorkerLabel, make_prefix
from nodeclient.output.lines import LineCutter, as_lines, as_overwritten, prefixed

_STEERING = re.compile(r"\x1b(?!\[[\d;]*m)(?:\[[0-?]*[ -/]*[@-~])?|[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f]")
"""What would steer a terminal: all escape sequences but colours, and control characters but ends of lines."""

Key = tuple[int | None, str]
"""The rank and the stream of a log."""


def show(config: LogsConfig) -> int:
    """Print the logs and return the exit code: 0 if any could be read, or nothing was written."""
    client = Client(config.coordinators)
    job = only_job(client, config.job)
    printer = _Printer(terminal(), one=config.ranks.isdecimal(), follow=config.follow, as_json=config.json)
    try:
        for part in _parts(client, f"{job_path(job)}/logs?{_query(config)}"):
            printer.print(part)
    except UnknownNameError:
        raise unknown_job(client, job) from None
    printer.end()
    return ExitCode.UNAVAILABLE if printer.found_none else ExitCode.OK


def _query(config: LogsConfig) -> str:
    last = config.last
    query: list[tuple[str, object]] = [("stream", config.stream), ("follow", str(config.follow).lower())]
    query += [("rank", config.ranks)] * bool(config.ranks)
    query += [("node", node) for node in config.nodes]
    query += [("round", config.round)] * (config.round is not None)
    query += [("last_bytes", last.bytes)] if last.bytes is not None else []
    query += [("last", "all" if last.lines is None else last.lines)] if last.bytes is None else []
    return urlencode(query)


def _parts(client: Client, path: str) -> Iterator[LogPart]:
    """Yield the parts of the answer until the last one. Raises `LostError` if it breaks off before that."""
    for data in client.events(path, None):
        part = read(LogPart, data, "part")
        if part.over:
            return
        yield part


class _Printer:
    """Writes parts of logs, each line whole."""

    def __init__(self, where: TerminalInfo, *, one: bool, follow: bool, as_json: bool) -> None:
        """Write to a terminal, pipe or file; `one` if a single worker was chosen, whose lines have no prefix."""
        self._where = where
        self._one = one
        self._follow = follow
        self._as_json = as_json
        self._cutters: dict[Key, LineCutter] = {}
        self._labels: dict[Key, bytes] = {}
        self._noted = 0
        self._read = 0

    @property
    def found_none(self) -> bool:
        """Whether there were only notes."""
        return bool(self._noted) and not self._read

    def print(self, part: LogPart) -> None:
        """Write what is complete of a part, and its note."""
        if part.text:
            self._read += 1
        if self._as_json:
            write_text(f"{json.dumps(fields_of(part))}\n")
            return
        if part.note:
            self._noted += part.node != ""
            which = "" if part.rank is None else f"rank {part.rank}, {part.stream}: "
            sys.stderr.write(f"nodeclient: {which}{part.note}\n")
        if part.text:
            self._print(part)

    def _print(self, part: LogPart) -> None:
        if self._one:
            write_text(self._fit(part.text))
            return
        key = part.rank, part.stream
        if not self._follow and key not in self._cutters:
            self.end()  # one log comes after the other
        cutter = self._cutters.setdefault(key, LineCutter())
        self._labels[key] = make_prefix(
            WorkerLabel(part.rank or 0, 0, "", part.host), None, several_hosts=True, coloured=self._where.coloured
        )
        self._write(key, cutter.feed(part.text.encode()))

    def end(self) -> None:
        """Write last lines that have no end."""
        for key, cutter in self._cutters.items():
            if rest := cutter.take_rest():
                self._write(key, rest + b"\n")

    def _write(self, key: Key, pieces: bytes) -> None:
        lines, rest = as_overwritten(pieces) if self._where.is_terminal else (as_lines(pieces), b"")
        lines += rest + b"\n" if rest else b""
        if lines:
            write_text(self._fit(prefixed(self._labels[key], lines).decode(errors="replace")))

    def _fit(self, text: str) -> str:
        """Return what a terminal may be sent: what others wrote must not steer it."""
        return _STEERING.sub("", text) if self._where.is_terminal else text
