"""Sets up the output of one node's workers: where each stream goes, and the end of stderr for reports.

`Output` is what the rest of nodeclient uses of this package. It lives in the event loop, and hands all work to two
threads: `pump` moves the bytes, and `file_thread` writes files. Calls to them are posted, so the loop never waits.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

from msgspec import Struct

from coordinatord.runtime.line_writer import LineWriter
from nodeclient.output.descriptors import copy_size, same_place
from nodeclient.output.file_thread import FileThread
from nodeclient.output.files import LogFileErrors
from nodeclient.output.lines import WorkerLabel
from nodeclient.output.log_paths import LogPaths, PrivateFolder
from nodeclient.output.output_settings import OutputSettings, Streams
from nodeclient.output.pump import Pump
from nodeclient.output.round import RoundFiles, RoundStreams
from nodeclient.output.terminal_writer import TerminalWriter

ANSWER_WITHIN_S = 1.0
"""How long the report of a failure, and so the job, waits for the pump at most. The pump takes milliseconds."""


class WorkerStreams(Struct, frozen=True):
    """The outputs that a worker is started with."""

    stdout: int
    """The descriptor of its stdout."""
    stderr: int
    error_file: Path
    """The file for its error (TORCHELASTIC_ERROR_FILE)."""
    terminal_variables: Mapping[str, str]
    """Variables that describe the terminal of its output, which goes through a pipe; the user's own values win."""


class Output:
    """All output of one node. The methods are for the running event loop, and none of them waits for a slow reader."""

    def __init__(
        self,
        settings: OutputSettings,
        host: str,
        role: str,
        warn: Callable[[str], None],
        fds: tuple[int, int] | None = None,
    ) -> None:
        """Prepare outputs; `host` and `role` go into prefixes, and `warn` takes a text for the user, in the loop.

        `fds` are descriptors of stdout and stderr (default: this process's). Raises `OSError` if they are not open.
        """
        fds = fds or (sys.stdout.fileno(), sys.stderr.fileno())
        self._settings = settings
        self._label = partial(WorkerLabel, role=role, host=host)
        self._warn = warn
        self._loop = asyncio.get_running_loop()
        self._failure: asyncio.Future[None] = self._loop.create_future()
        stderr = TerminalWriter(fds[1], self._warn_soon)
        stdout = stderr if same_place(*fds) else TerminalWriter(fds[0], self._warn_soon)
        self._terminal_writers = {Streams.STDOUT: stdout, Streams.STDERR: stderr}
        self._pump = Pump([stderr] if stdout is stderr else [stdout, stderr], self._failed)
        self.terminal = Terminal(self._pump, stderr)
        """Writes the lines of this node itself."""
        self._files = FileThread(self._failed)
        self._private = PrivateFolder()
        self._round: RoundStreams | None = None

    @property
    def private_folder(self) -> Path:
        """A directory that is removed at the end of this process, however it ends."""
        return self._private.path

    async def watch(self) -> None:
        """Wait for ever, or raise the error that ended the pump."""
        await self._failure

    @contextmanager
    def begin(self, place: LogPaths, ranks: Sequence[int], *, several_hosts: bool) -> Iterator[list[WorkerStreams]]:
        """Set up a round of workers with these global ranks; start them inside the context, with the yielded streams.

        The remaining output of the last round is moved. Its processes may live on: their later output goes where that
        of the new workers goes. Raises `OSError` for lack of descriptors.
        """
        before = [] if self._round is None else self._round.streams_of
        self._round = None
        log_dir = self._settings.log_dir
        folder = None if log_dir is None else place.folder(log_dir.absolute())
        labels = [self._label(rank, local_rank) for local_rank, rank in enumerate(ranks)]
        round_streams = RoundStreams(
            self._settings,
            self._terminal_writers,
            labels,
            RoundFiles(self._settings, folder, self._files, LogFileErrors(self._warn_soon)),
            several_hosts=several_hosts,
        )
        with ExitStack() as children, ExitStack() as failure:
            old = [stream for streams in before for stream in streams]
            failure.callback(self._pump.post, lambda: self._pump.retire(old))
            children_fds = round_streams.open(children, failure)
            # Error files are not in the log directory: that may be on a network file system, whose failure may be the
            # error.
            self._private.empty()
            error_files = [self._private.path / f"{rank}.json" for rank in ranks]
            # From here on the pump has the new streams and hands the old ones over, even if a worker cannot be started.
            failure.pop_all()
            self._round = round_streams
            if round_streams.pseudo_terminals:
                self._loop.add_signal_handler(signal.SIGWINCH, self._resize)
            self._pump.post(lambda: self._pump.add(round_streams.streams))
            # `before` is empty in the first round. The settings decide which streams a worker has, in every round.
            for had, has in zip(before, round_streams.streams_of, strict=False):
                for stream, successor in zip(had, has, strict=True):
                    self._pump.post(partial(self._pump.hand_over, stream, successor))
            screens = map(round_streams.terminal_variables, labels)
            own = zip(children_fds, error_files, screens, strict=True)
            yield [WorkerStreams(*fds, file, screen) for fds, file, screen in own]

    def stderr_log(self, local_rank: int) -> Path | None:
        """Return the file with the stderr of a worker of this round, if there is one."""
        return None if self._round is None else self._round.stderr_log(local_rank)

    async def end_of_stderr(self, local_rank: int) -> bytes:
        """Return the last bytes of a worker's stderr in this round, up to its end if it has ended.

        Its log files then have its output too: a report names them, and followers read them. Takes at most a second,
        even if another process has the other end, or the terminal or the disk is slow; files may then lack the end.
        """
        if self._round is None or local_rank >= len(self._round.tails):
            return b""
        streams, tail = self._round.streams_of[local_rank], self._round.tails[local_rank]
        drained: Future[None] = Future()

        def drain() -> None:
            # Both streams are drained, so that their output appears above the lines about the worker's end.
            for stream in streams:
                self._pump.drain(stream)
            # The tail has all of it by now. The writes to log files are queued, and this call comes after them.
            self._files.post(partial(drained.set_result, None))

        if self._pump.post(drain):
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(drained)), ANSWER_WITHIN_S)
        return tail.data

    def expect_interrupts(self) -> None:
        """Hide the tracebacks of workers that SIGINT ends, before it is passed on to them."""
        if self._round is not None:
            self._round.interrupts.set()

    def on_worker_exit(self, local_rank: int, exit_code: int) -> None:
        """Record how a worker of this round has ended, after which the rest of its output is shown."""
        if self._round is None or (interrupt_filter := self._round.interrupt_filters.get(local_rank)) is None:
            return
        streams = self._round.streams_of[local_rank]

        def settle() -> None:
            for stream in streams:
                self._pump.drain(stream)
            interrupt_filter.on_exit(exit_code)

        self._pump.post(settle)

    def call_when_written(self, call: Callable[[], None]) -> None:
        """Make a call in the loop once all output of earlier rounds is in its files."""
        self._pump.post(lambda: self._files.post(lambda: self._in_loop(call)))

    async def close(self) -> None:
        """Write all remaining output, unless its reader does not read, and close everything."""
        self._loop.remove_signal_handler(signal.SIGWINCH)
        await asyncio.to_thread(self._pump.stop)
        if not await asyncio.to_thread(self._files.stop):
            self._warn(
                f"the last lines are missing in {self._settings.log_dir}: its file system does not answer; if it is "
                "frozen, the kernel keeps this process until it is thawed"
            )
        self._private.remove()
        for terminal_writer in set(self._terminal_writers.values()):
            terminal_writer.close()
        if not self._failure.cancel() and not self._failure.cancelled():
            self._failure.exception()  # it was reported already: this keeps asyncio from logging it

    def _resize(self) -> None:
        pseudo_terminals = self._round.pseudo_terminals if self._round else ()

        def resize() -> None:
            for stream, terminal in pseudo_terminals:
                if not stream.ended:
                    copy_size(terminal, stream.fd)

        self._pump.post(resize)

    def _warn_soon(self, text: str) -> None:
        self._in_loop(lambda: self._warn(text))

    def _failed(self, error: Exception) -> None:
        def fail() -> None:
            if not self._failure.done():
                self._failure.set_exception(error)

        self._in_loop(fail)

    def _in_loop(self, call: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop is closed, and nothing waits for the result
            self._loop.call_soon_threadsafe(call)


UNREAD_BYTES_MAX = 1024 * 1024
"""The limit of bytes of log lines for a stopped terminal; further ones are dropped, so that no caller waits."""


class Terminal:
    """Writes log lines, and draws the live line, between the lines of workers."""

    def __init__(self, pump: Pump, terminal_writer: TerminalWriter) -> None:
        self._pump = pump
        self._terminal_writer = terminal_writer

    @property
    def is_live(self) -> bool:
        """Whether a live line can be drawn and erased."""
        return self._terminal_writer.is_terminal and not self._terminal_writer.broken

    def columns(self) -> int:
        """Return the width of the terminal."""
        return self._terminal_writer.size_in_cells()[0]

    def write_lines(self, text: str) -> None:
        """Write lines at the start of a line; `text` is without the end of the last one."""
        data = f"{text}\n".encode(errors="replace")
        if self._terminal_writer.size >= UNREAD_BYTES_MAX:
            return
        if not self._pump.post(lambda: self._terminal_writer.write_pieces(self, b"", data)):
            # The output was closed, and these are the last lines.
            last = LineWriter(self._terminal_writer.fd, lambda _: b"")
            last.put(data)
            last.close()

    def draw(self, text: str) -> None:
        """Redraw the live line, which the next output erases; an empty text erases it."""
        self._pump.post(lambda: self._terminal_writer.draw_live(b"", text.encode(errors="replace")))
