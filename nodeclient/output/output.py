"""The output of one node's workers: sets up where each stream goes, and keeps the end of stderr for reports."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from coordinatord.protocol.frozen_class import frozen
from nodeclient.output.descriptors import copy_size, same_place
from nodeclient.output.files import LogFileErrors
from nodeclient.output.line_prefix import WorkerLabel
from nodeclient.output.log_paths import LogPaths, PrivateFolder
from nodeclient.output.output_settings import OutputSettings, Streams
from nodeclient.output.pump import Pump
from nodeclient.output.round import RoundStreams
from nodeclient.output.terminal import Terminal
from nodeclient.output.terminal_writer import TerminalWriter

ANSWER_WITHIN_S = 1.0
"""How long the pump may take to answer. It takes milliseconds unless a file system hangs, and a node that waited longer
would have less than its lease left."""


@frozen
class WorkerStreams:
    """What a worker is started with."""

    stdout: int
    """The descriptor that becomes its stdout."""
    stderr: int
    error_file: Path
    """The file in which it may write why it ended (TORCHELASTIC_ERROR_FILE)."""
    screen: Mapping[str, str]
    """Variables by which programs notice that their output is shown on a terminal, though it is none itself; the user's
    own values win."""


class Output:
    """All output of one node. The methods are for the running event loop, and none of them waits for a reader."""

    def __init__(
        self,
        settings: OutputSettings,
        host: str,
        role: str,
        complain: Callable[[str], None],
        fds: tuple[int, int] | None = None,
    ) -> None:
        """Prepare outputs; `host` and `role` go into prefixes, and `complain` gets, in the loop, warnings for the user.

        `fds` are descriptors of stdout and stderr (default: this process's). Raises `OSError` if they are not open.
        """
        fds = fds or (sys.stdout.fileno(), sys.stderr.fileno())
        self._settings = settings
        self._host = host
        self._role = role
        self._complain = complain
        self._fds = fds
        self._loop = asyncio.get_running_loop()
        self._failure: asyncio.Future[None] = self._loop.create_future()
        stderr = TerminalWriter(fds[1], self._complain_soon)
        stdout = stderr if same_place(*fds) else TerminalWriter(fds[0], self._complain_soon)
        self._terminal_writers = {Streams.STDOUT: stdout, Streams.STDERR: stderr}
        self._pump = Pump([stderr] if stdout is stderr else [stdout, stderr], self._failed)
        self.terminal = Terminal(fds[1], self._pump, stderr)
        """Writes the lines of this node itself."""
        self._errors = LogFileErrors(self._complain_soon)
        self._private = PrivateFolder()
        self._round: RoundStreams | None = None

    @property
    def private_folder(self) -> Path:
        """A directory that is removed at the end, however this process ends."""
        return self._private.path

    async def watch(self) -> None:
        """Wait for ever, or raise the error that ended the pump."""
        await self._failure

    @contextmanager
    def begin(self, place: LogPaths, ranks: Sequence[int], *, several_hosts: bool) -> Iterator[list[WorkerStreams]]:
        """Set up a round of workers with these global ranks; inside the context, start them with what it yields.

        What is left of the last round is taken, and no longer read. Raises `OSError` if there are not enough
        descriptors.
        """
        self._retire()
        self._errors.begin_round()
        log_dir = self._settings.log_dir
        folder = None if log_dir is None else place.folder(log_dir.absolute())
        labels = [WorkerLabel(rank, local_rank, self._role, self._host) for local_rank, rank in enumerate(ranks)]
        fds = dict(zip(self._terminal_writers, self._fds, strict=True))
        round_streams = RoundStreams(
            self._settings, self._terminal_writers, fds, folder, labels, self._errors, several_hosts=several_hosts
        )
        with ExitStack() as children, ExitStack() as failure:
            children_fds = round_streams.open(children, failure)
            # The directory is never below the log directory: that may be on a network, which may be why the workers
            # end.
            self._private.empty()
            error_files = [self._private.path / f"{rank}.json" for rank in ranks]
            failure.pop_all()
            self._round = round_streams
            if round_streams.pseudo_terminals:
                self._loop.add_signal_handler(signal.SIGWINCH, self._resize)
            self._pump.post(lambda: self._pump.add(round_streams.streams))
            screens = map(round_streams.screen, labels)
            own = zip(children_fds, error_files, screens, strict=True)
            yield [WorkerStreams(*fds, file, screen) for fds, file, screen in own]

    def stderr_log(self, local_rank: int) -> Path | None:
        """Return the file with all that a worker of this round wrote to stderr; None if none is kept."""
        return None if self._round is None else self._round.stderr_log(local_rank)

    async def end_of_stderr(self, local_rank: int) -> bytes:
        """Return the end of what a worker of this round wrote to stderr; all of it is there if the worker has ended.

        Takes a second at most, even if another process holds the other end or the terminal is slow.
        """
        if self._round is None or local_rank >= len(self._round.tails):
            return b""
        streams, tail = self._round.streams_of[local_rank], self._round.tails[local_rank]
        drained: Future[None] = Future()

        def drain() -> None:
            # Both streams, so that its output does not come below the lines about its end.
            for stream in streams:
                self._pump.drain(stream)
            drained.set_result(None)

        if self._pump.post(drain):
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(drained)), ANSWER_WITHIN_S)
        return tail.data

    def when_settled(self, call: Callable[[], None]) -> None:
        """Make a call in the loop once all that earlier rounds have written is in its files."""
        self._pump.post(lambda: self._in_loop(call))

    async def close(self) -> None:
        """Write out what there is, unless its reader takes nothing, and close everything."""
        self._loop.remove_signal_handler(signal.SIGWINCH)
        await asyncio.to_thread(self._pump.stop)
        self._private.remove()
        for terminal_writer in set(self._terminal_writers.values()):
            terminal_writer.close()
        if not self._failure.cancel() and not self._failure.cancelled():
            self._failure.exception()  # it was reported already

    def _retire(self) -> None:
        last, self._round = self._round, None
        if last is not None:
            self._pump.post(lambda: self._pump.retire(last.streams))

    def _resize(self) -> None:
        pseudo_terminals = self._round.pseudo_terminals if self._round else ()

        def resize() -> None:
            for stream, model in pseudo_terminals:
                if not stream.ended:
                    copy_size(model, stream.fd)

        self._pump.post(resize)

    def _complain_soon(self, text: str) -> None:
        self._in_loop(lambda: self._complain(text))

    def _failed(self, error: Exception) -> None:
        def fail() -> None:
            if not self._failure.done():
                self._failure.set_exception(error)

        self._in_loop(fail)

    def _in_loop(self, call: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop is closed, and nothing waits for the result
            self._loop.call_soon_threadsafe(call)
