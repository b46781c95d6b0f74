"""`nodeclient logs`: prints the output of a job's workers, read from their nodes through the coordinator.

The coordinator streams *parts* of logs: some text of one worker's stream, or a note, such as why a log cannot be read.
With several workers, each line has the prefix of its rank. Notes go to stderr.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from typing import Any

from msgspec.structs import asdict

from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.protocol.http.log_answers import LogPart
from nodeclient.config.operate import LogEnd, LogsConfig
from nodeclient.operate.client import Client, read, repeat
from nodeclient.operate.job_lookup import job_path, known_job, only_job, query
from nodeclient.operate.terminal_info import TerminalInfo, terminal, write_text
from nodeclient.output.lines import LineCutter, WorkerLabel, as_lines, as_overwritten, make_prefix, prefixed

_CONTROLS = re.compile(r"\x1b(?!\[[\d;]*m)(?:\[[0-?]*[ -/]*[@-~])?|[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f]")
"""Text that could control a terminal: escape sequences but colours, control characters but tabs and ends of lines."""

Key = tuple[int | None, str]
"""The rank and the stream of a log."""


def run(config: LogsConfig) -> int:
    """Print the logs and return the exit code: 0 if any could be read, or if workers have written nothing."""
    client = Client(config.coordinators, config.access)
    job = only_job(client, config.job)
    printer = _LogPrinter(terminal(), single=config.ranks.isdecimal(), follow=config.follow, as_json=config.json)
    with known_job(client, job):
        for part in _LogParts(client, job, config).parts():
            printer.print(part)
    printer.end()
    if printer.is_empty:
        sys.stderr.write(f"nodeclient: job {job} has written nothing there yet\n")
    return ExitCode.UNAVAILABLE if printer.found_none else ExitCode.OK


class _LogParts:
    """The parts of logs from the coordinator. After a broken stream, it continues after the last part."""

    def __init__(self, client: Client, job: str, config: LogsConfig) -> None:
        self._client = client
        self._job = job
        self._config = config
        self._run = config.run or ""
        self._first_round: int | None = None
        """The round of the first part. Only the end of its logs is wanted, and all text of later rounds' logs."""
        self._round: int | None = None
        """The round of the last part."""
        self._places: dict[Key, str] = {}
        """The place where each log of that round continues, as the coordinator names it."""
        self._notes: set[LogPart] = set()
        """The notes so far: the coordinator repeats them with each new stream."""

    def parts(self) -> Iterator[LogPart]:
        """Yield the parts until the last one. With `--follow` it survives a restart of the coordinator.

        Without `--follow`, raises `LostError` if the coordinator becomes unreachable.
        """
        # With `answered=False`, an error before the first part ends the command.
        streams = repeat(self._stream, answered=False) if self._config.follow else self._stream()
        for data in streams:
            part = read(LogPart, data, "part")
            if part.over:
                return
            if self._is_new(part):
                yield part

    def _stream(self) -> Iterator[Any]:
        return self._client.events(f"{job_path(self._job)}/logs{self._query()}", None)

    def _is_new(self, part: LogPart) -> bool:
        """Record a part; return whether it has anything new."""
        self._run = part.run or self._run
        if part.place and part.rank is not None:
            if part.round != self._round:
                self._first_round = part.round if self._first_round is None else self._first_round
                self._round, self._places = part.round, {}
            self._places[part.rank, part.stream] = part.place
        if part.text or not part.note:
            return bool(part.text)
        is_new = part not in self._notes
        self._notes.add(part)
        return is_new

    def _query(self) -> str:
        config = self._config
        # After the first round, each whole log is wanted, even if nothing of it was read yet.
        last = config.last if self._round == self._first_round else LogEnd()
        return query(
            stream=config.stream,
            follow=str(config.follow).lower(),
            rank=config.ranks or None,
            node=config.nodes,
            run=self._run or None,
            round=config.round,
            last_bytes=last.bytes,
            last=None if last.bytes is not None else "all" if last.lines is None else last.lines,
            after=list(self._places.values()),
        )


class _LogPrinter:
    """Prints parts of logs, in whole lines."""

    def __init__(self, output: TerminalInfo, *, single: bool, follow: bool, as_json: bool) -> None:
        """Write to a terminal, pipe or file; `single` if only one worker was chosen, whose lines have no prefix."""
        self._output = output
        self._single = single
        self._follow = follow
        self._as_json = as_json
        self._cutters: dict[Key, LineCutter] = {}
        self._labels: dict[Key, bytes] = {}
        self._unread_count = 0
        """The notes about logs that could not be read."""
        self._notes_count = 0
        self._texts_count = 0

    @property
    def found_none(self) -> bool:
        """Whether no log could be read, and a note said why."""
        return bool(self._unread_count) and not self._texts_count

    @property
    def is_empty(self) -> bool:
        """Whether there was neither text nor a note."""
        return not (self._notes_count or self._texts_count)

    def print(self, part: LogPart) -> None:
        self._notes_count += bool(part.note)
        self._texts_count += bool(part.text)
        self._unread_count += bool(part.note and part.node)  # a note of no node says nothing of a log
        if self._as_json:
            write_text(f"{json.dumps(asdict(part))}\n")
            return
        if part.note:
            log = "" if part.rank is None else f"rank {part.rank}, {part.stream}: "
            sys.stderr.write(f"nodeclient: {log}{part.note}\n")
        if part.text:
            self._print(part)

    def _print(self, part: LogPart) -> None:
        if self._single:
            write_text(self._sanitised(part.text))
            return
        key = part.rank, part.stream
        if not self._follow and key not in self._cutters:
            self.end()  # one log comes after the other
        cutter = self._cutters.setdefault(key, LineCutter())
        self._labels[key] = make_prefix(
            WorkerLabel(part.rank or 0, 0, "", part.host), None, several_hosts=True, coloured=self._output.coloured
        )
        self._write(key, cutter.feed(part.text.encode()))

    def end(self) -> None:
        """Print the unfinished lines."""
        for key, cutter in self._cutters.items():
            if unfinished := cutter.take_unfinished():
                self._write(key, unfinished + b"\n")

    def _write(self, key: Key, pieces: bytes) -> None:
        if self._output.is_terminal:
            lines, unfinished = as_overwritten(pieces)
            if unfinished:  # it gets a line of its own, since the next text may be of another worker
                lines += unfinished + b"\n"
        else:
            lines = as_lines(pieces)
        if lines:
            write_text(self._sanitised(prefixed(self._labels[key], lines).decode(errors="replace")))

    def _sanitised(self, text: str) -> str:
        """Remove text of the workers that could control this terminal."""
        return _CONTROLS.sub("", text) if self._output.is_terminal else text
