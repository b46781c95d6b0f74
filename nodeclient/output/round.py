"""Sets up the streams of one round: the stdout and stderr of each worker, and the sinks of their bytes.

A worker gets a pipe, or a pseudo-terminal where the output goes to a terminal unchanged, and `pump` reads the other
end. It never inherits an output of nodeclient: the reader of a pipe could kill it by SIGPIPE, and each of its prints
would fail on a full disk, or once the terminal is gone. A stdout that nobody wants is /dev/null. The end of stderr is
always kept, for the report of a failure.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Event

from coordinatord.runtime.logs import colours_wanted
from nodeclient.output.descriptors import pipe, pseudo_terminal
from nodeclient.output.file_thread import FileSink, FileThread, Filter
from nodeclient.output.files import LogFileErrors
from nodeclient.output.interrupts import InterruptFilter
from nodeclient.output.lines import WorkerLabel, make_prefix, plain
from nodeclient.output.output_settings import OutputSettings, Streams
from nodeclient.output.streams import Prefixed, Raw, Sink, Tail, WorkerStream
from nodeclient.output.terminal_writer import TerminalWriter

_NAMES = {Streams.STDOUT: "stdout", Streams.STDERR: "stderr"}


class RoundFiles:
    """The log files of a node's workers in one round, if there are any."""

    def __init__(
        self, settings: OutputSettings, folder: Path | None, thread: FileThread, errors: LogFileErrors
    ) -> None:
        """Keep files in `folder`, or none if it is None; `thread` writes them."""
        self._settings = settings
        self._folder = folder
        self._thread = thread
        self._errors = errors
        self._filtered: dict[Streams, FileSink] = {}
        """The files for filtered lines of several workers, by stream."""

    def log_path(self, kind: Streams, label: WorkerLabel) -> Path | None:
        """Return the file with all that a worker writes to a stream; None if none is kept."""
        return None if self._folder is None else self._folder / str(label.rank) / f"{_NAMES[kind]}.log"

    def sinks(self, kind: Streams, label: WorkerLabel, prefix: bytes) -> list[Sink]:
        """Return the files for a stream of a worker; `prefix` begins its lines in files that workers share."""
        log, settings = self.log_path(kind, label), self._settings
        if self._folder is None or log is None:
            return []
        sinks: list[Sink] = [self._file(log)]
        words = settings.stdout_filters if kind is Streams.STDOUT else settings.stderr_filters
        if words and settings.is_shown(label.local_rank):
            if kind not in self._filtered:
                self._filtered[kind] = self._file(self._folder / f"filtered_{_NAMES[kind]}.log")
            sinks.append(Filter(words, prefix, self._filtered[kind]))
        return sinks

    def _file(self, path: Path) -> FileSink:
        return FileSink(self._thread, path, self._errors, self._settings.rotation)


class RoundStreams:
    """The streams of a node's workers in one round."""

    def __init__(
        self,
        settings: OutputSettings,
        terminal_writers: Mapping[Streams, TerminalWriter],
        labels: Sequence[WorkerLabel],
        files: RoundFiles,
        *,
        several_hosts: bool,
    ) -> None:
        self._settings = settings
        self._terminal_writers = terminal_writers
        self._labels = labels
        self._files = files
        self._several_hosts = several_hosts
        sharing = sum(bool(settings.shown(label.local_rank)) for label in labels)
        self._is_prefixed = sharing > 1 or settings.prefix is not None
        """Whether lines on the terminal have a prefix: more than one worker writes there, or the user wants one."""
        self.streams_of: list[list[WorkerStream]] = [[] for _ in labels]
        """The streams of each worker, by local rank, without those to /dev/null."""
        self.interrupts = Event()
        """Whether SIGINT was passed on to the workers. A traceback of KeyboardInterrupt can only come after that."""
        self.interrupt_filters: dict[int, InterruptFilter] = {}
        """The sinks that show the stderr of each worker, by local rank."""
        self.tails = [Tail() for _ in labels]
        """The end of each worker's stderr."""
        self.pseudo_terminals: list[tuple[WorkerStream, int]] = []
        """The streams over pseudo-terminals, each with the descriptor of the terminal whose size they copy."""

    @property
    def streams(self) -> list[WorkerStream]:
        """All streams, in the order of the workers."""
        return [stream for streams in self.streams_of for stream in streams]

    def terminal_variables(self, label: WorkerLabel) -> dict[str, str]:
        """Return the variables that describe the terminal to a worker that shares it, and so writes to pipes.

        The width is that of the terminal less the prefix and the last column, which stays free. Colours are switched
        on, unless the user wants none.
        """
        shown = self._settings.shown(label.local_rank) == Streams.BOTH
        all_terminals = all(terminal_writer.is_terminal for terminal_writer in self._terminal_writers.values())
        if not (shown and self._is_prefixed and all_terminals):
            return {}
        columns, rows = self._terminal_writers[Streams.STDERR].size_in_cells()
        prefix = len(plain(self._prefix(label, None).decode()))
        room = {"COLUMNS": str(max(1, columns - 1 - prefix)), "LINES": str(rows)}
        return room | ({"FORCE_COLOR": "1"} if colours_wanted() else {})

    def stderr_log(self, local_rank: int) -> Path | None:
        """Return the file with all that a worker wrote to stderr; None if none is kept."""
        return self._files.log_path(Streams.STDERR, self._labels[local_rank])

    def open(self, children: ExitStack, failure: ExitStack) -> list[tuple[int, int]]:
        """Return the descriptors of each worker's stdout and stderr. Raises `OSError`.

        `children` closes the workers' ends after their start, and `failure` closes ours if the start fails.
        """
        return [
            (self._open(Streams.STDOUT, label, children, failure), self._open(Streams.STDERR, label, children, failure))
            for label in self._labels
        ]

    def _open(self, kind: Streams, label: WorkerLabel, children: ExitStack, failure: ExitStack) -> int:
        """Set up one stream of a worker; return the descriptor for the worker, as `open` does."""
        terminal_writer = self._terminal_writers[kind] if kind in self._settings.shown(label.local_rank) else None
        sinks = self._files.sinks(kind, label, self._prefix(label, None))
        if kind is Streams.STDERR:
            sinks.append(self.tails[label.local_rank])
        if terminal_writer is None and not sinks:
            null = os.open(os.devnull, os.O_WRONLY)
            children.callback(os.close, null)
            return null
        unchanged = None if self._is_prefixed else terminal_writer
        """The terminal writer, if it gets the worker's bytes as they are."""
        if terminal_writer is not None:
            screen: Sink = (
                Prefixed(terminal_writer, self._prefix(label, terminal_writer)) if unchanged is None else Raw(unchanged)
            )
            if kind is Streams.STDERR:
                screen = self.interrupt_filters[label.local_rank] = InterruptFilter(screen, self.interrupts)
            sinks.append(screen)
        reading, writing, terminal = _channel(unchanged)
        failure.callback(os.close, reading)
        children.callback(os.close, writing)
        stream = WorkerStream(reading, sinks, terminal_writer)
        self.streams_of[label.local_rank].append(stream)
        if terminal is not None:
            self.pseudo_terminals.append((stream, terminal))
        return writing

    def _prefix(self, label: WorkerLabel, terminal_writer: TerminalWriter | None) -> bytes:
        coloured = terminal_writer is not None and terminal_writer.is_terminal and colours_wanted()
        template, several_hosts = self._settings.prefix, self._several_hosts
        return make_prefix(label, template, several_hosts=several_hosts, coloured=coloured)


def _channel(unchanged: TerminalWriter | None) -> tuple[int, int, int | None]:
    """Return the ends of a pseudo-terminal, and the terminal that it is like; or else those of a pipe, and None."""
    if unchanged is not None and unchanged.is_terminal:
        with suppress(OSError):
            return *pseudo_terminal(unchanged.fd), unchanged.fd
    return *pipe(), None
