"""Sends pieces of a node's log files to the coordinator at its request, and deletes old files.

`core/logged_rounds` selects the files, out of the catalogue of rounds that lies beside them. Each read has a thread,
and another thread writes the catalogue and deletes files. So a disk that hangs delays neither the event loop nor a
round, and deleting delays no reader.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from operator import methodcaller
from tempfile import TemporaryFile

from msgspec.structs import replace

from coordinatord.protocol.fields import LOG_PATH_MAX
from coordinatord.protocol.log_messages import LogChunk, LogStream, ReadLog
from coordinatord.runtime.local_time import now
from coordinatord.runtime.tasks import in_thread
from nodeclient.core.logged_rounds import LoggedRound, NotLoggedError, find, is_in_future, rounds_to_delete
from nodeclient.keeping.disk.steps_on_disk import MISTAKEN, UnwritableError
from nodeclient.output.file_thread import HANGS_AFTER_S, FileThread
from nodeclient.output.log_catalogue import LogCatalogue
from nodeclient.output.log_paths import LogPaths
from nodeclient.output.log_reader import LOG_START, read_chunk, refused_chunk
from nodeclient.output.output_settings import OutputSettings
from nodeclient.shell.coordinator_connection import Answer

FOLLOWED_WITHIN_S = 3.0
"""How long a log counts as followed after it was last read: a follower reads each second."""

FOLLOWERS_WITHIN_S = 2.0
"""How long the exit of this process waits for followers to read to the end."""

SETTLE_S = 2.0
"""How long the first write may take, and how long the exit of this process waits for the catalogue to be written."""

READERS_MAX = 8
"""How many logs may hang in a read before reads of other logs are refused, too: each read takes a thread."""

Key = tuple[str, int, int, LogStream]
"""The run, round, rank and stream of a log."""


class LogFollowers:
    """The logs of a node that users read while they are written; times in seconds of the event loop's clock."""

    def __init__(self) -> None:
        self._read_at: dict[Key, float] = {}
        """When each log was last read by a follower."""
        self._unread: set[Key] = set()
        """While this node ends: the logs whose followers have not read to the end yet."""
        self._all_read = asyncio.Event()
        self._ends_at: float | None = None
        """When this node began to end; None before."""

    def forget(self) -> None:
        """Forget all followers. Those that go on reading are recorded again."""
        self._read_at.clear()

    def followed(self, now: float) -> set[Key]:
        """Return the logs that have followers."""
        return {key for key, at in self._read_at.items() if at >= now - FOLLOWED_WITHIN_S}

    def record(self, key: Key, asked_at: float, now: float, *, more: bool) -> None:
        """Record that a piece was sent to a follower that requested it at `asked_at`, and whether there is more."""
        self._read_at[key] = now
        if self._ends_at is not None and asked_at >= self._ends_at and not more:
            self._unread.discard(key)
            if not self._unread:
                self._all_read.set()

    async def await_end(self, now: float) -> None:
        """Wait until all followers have read everything that was written until `now`, if there are any."""
        self._ends_at, self._unread = now, self.followed(now)
        self._all_read.clear()
        if self._unread:
            with suppress(TimeoutError):
                async with asyncio.timeout(FOLLOWERS_WITHIN_S):
                    await self._all_read.wait()


def _place_of(round_: LoggedRound) -> tuple[str, str, int]:
    """Return the node, the run and the number of a round, which identify it on a host."""
    return round_.node, round_.run, round_.round


class LogService:
    """The log files of one node. Its methods are for the running event loop, and none of them blocks it for a disk."""

    def __init__(
        self,
        settings: OutputSettings,
        job: str,
        node: str,
        complain: Callable[[str], None],
        fail: Callable[[Exception], None],
    ) -> None:
        """Begin without rounds; `complain` gets warnings for the user, `fail` the error of a bug."""
        self._retained = settings.retained_rounds
        self._job = job
        self._node = node
        self._complain = complain
        self._loop = asyncio.get_running_loop()
        log_dir, host = settings.log_dir, socket.gethostname()
        self._catalogue = None if log_dir is None else LogCatalogue(log_dir.absolute(), job, host)
        self._rounds: dict[tuple[str, str, int], LoggedRound] = {}
        """The rounds of the job with log files on this host, also those of other nodes here; see `_place_of`. A node's
        newest round comes last: rounds that are found later are older, so `_add` puts them in front."""
        self._present: LoggedRound | None = None
        """The last round that workers of this node have begun."""
        self._writer = FileThread(partial(self._in_loop, fail))
        """Writes the catalogue, and deletes files."""
        self._reads: dict[asyncio.Future[LogChunk], tuple[Key, float]] = {}
        """The reads in progress, each with its log and when it began."""
        self._followers = LogFollowers()

    @property
    def folder(self) -> str:
        """The folder with this job's logs; empty if there is none, or its name cannot be sent."""
        path = "" if self._catalogue is None else str(self._catalogue.folder)
        return path if path.isprintable() and len(path) <= LOG_PATH_MAX else ""

    def start(self) -> None:
        """Find the log files that nodes of this host have written before."""
        if self._catalogue is not None:
            scan = self._catalogue.scan
            self._writer.post(lambda: self._in_loop(self._add_older, scan()))

    async def try_out(self) -> None:
        """Write to the job's folder, and wait for that for `SETTLE_S` at most: a disk that hangs stops no training.

        Raises `UnwritableError` if the directory is not the right one, or may not be written, and the `OSError` of a
        thread that cannot be started.
        """
        if self._catalogue is None:
            return
        folder = self._catalogue.folder

        def write() -> None:
            folder.mkdir(parents=True, exist_ok=True)
            TemporaryFile(dir=folder).close()

        tried = in_thread(write, "log files")
        await asyncio.wait([tried], timeout=SETTLE_S)
        try:
            if tried.done():
                tried.result()
        except OSError as error:
            if error.errno in MISTAKEN:  # other errors, as of a full disk, may pass
                text = f"log files cannot be written to {folder}: {error.strerror}; see --log-dir"
                raise UnwritableError(text) from error

    def begin_round(self, place: LogPaths, ranks: range) -> None:
        """Record that the workers of this node begin to write a round's files."""
        if self._catalogue is None:
            return
        begun_at = now().timestamp()
        names = (self._catalogue.host, self._job, self._node, place.run, place.round)
        present = LoggedRound(*names, first_rank=ranks.start, workers=len(ranks), begun_at=begun_at)
        self._rounds[_place_of(present)] = self._present = present
        self._followers.forget()  # they may have read an older round
        self._update(lambda catalogue: catalogue.begin(present))

    def end_round(self) -> None:
        """Record that no worker of the present round lives."""
        if self._present is not None:
            ended = self._rounds[_place_of(self._present)]
            self._update(methodcaller("write", ended, create=True))  # its note is missing if `begin` has failed

    async def settle(self) -> None:
        """Wait until the catalogue is written, for at most `SETTLE_S` because the disk may hang."""
        settled = asyncio.Event()
        if self._catalogue is not None and self._writer.post(partial(self._in_loop, settled.set)):
            with suppress(TimeoutError):
                async with asyncio.timeout(SETTLE_S):
                    await settled.wait()

    def fail_round(self, number: int) -> None:
        """Record that a round of the present run has failed. Its files are kept until another one fails."""
        # The run is that of this node's newest round, since a restarted nodeclient has no present round yet.
        run = next((run for node, run, _ in reversed(self._rounds) if node == self._node), "")
        place = self._node, run, number
        if place in self._rounds and not self._rounds[place].failed:
            self._rounds[place] = failed = replace(self._rounds[place], failed=True)
            self._update(methodcaller("write", failed, create=False))  # no new note, if its files are deleted by now

    def read(self, wanted: ReadLog, answer: Answer) -> None:
        """Answer a request for a piece of a log; `answer` gets the piece, and a function to call when it was sent."""
        asked_at = self._loop.time()
        key = wanted.run, wanted.round, wanted.rank, wanted.stream

        def record(more: bool) -> None:
            self._followers.record(key, asked_at, self._loop.time(), more=more)

        def respond(chunk: LogChunk) -> None:
            answer(chunk, partial(record, chunk.more) if wanted.follow else lambda: None)

        if self._catalogue is None:
            respond(refused_chunk(wanted, f"node {self._node} keeps no log files: see --log-dir"))
            return
        if is_in_future(wanted, self._rounds.values()):
            respond(LogChunk(wanted.request, b"", wanted.after or LOG_START, more=False, gap=False, problem=""))
            return
        try:
            found = find(wanted, self._rounds.values())
        except NotLoggedError as error:
            respond(refused_chunk(wanted, str(error)))
            return
        log_dir, parts = self._catalogue.log_dir, self._catalogue.parts(found)
        hung = [read for read, began_at in self._reads.values() if asked_at >= began_at + HANGS_AFTER_S]
        if key in hung or len(hung) >= READERS_MAX:
            respond(refused_chunk(wanted, "the disk does not answer"))
            return

        def pass_on(done: asyncio.Future[LogChunk]) -> None:
            del self._reads[done]
            respond(done.result())

        try:
            reading = in_thread(partial(read_chunk, log_dir, parts, wanted), "log reader")
        except OSError as error:
            respond(refused_chunk(wanted, f"the log cannot be read: {error.strerror}"))
            return
        self._reads[reading] = key, asked_at
        reading.add_done_callback(pass_on)

    @property
    def followed(self) -> set[Key]:
        """The logs that have followers."""
        return self._followers.followed(self._loop.time())

    async def await_followers(self) -> None:
        """Wait until all followers have read everything that was written until now, if there are any."""
        await self._followers.await_end(self._loop.time())

    def _add_older(self, rounds: list[LoggedRound]) -> None:
        self._add(*rounds)
        self.delete_old()

    def delete_old(self) -> None:
        """Delete the files of old rounds. The present round stays, and so do those that another process writes.

        Call it only when this node has nothing left to write into the files of rounds before the present one.
        """
        if self._retained is None:
            return
        for old in rounds_to_delete(self._rounds.values(), self._retained, self._present):
            del self._rounds[_place_of(old)]
            self._update(partial(self._delete, old))

    def _delete(self, old: LoggedRound, catalogue: LogCatalogue) -> None:
        if not catalogue.delete(old):  # another process is still writing it
            self._in_loop(self._add, old)

    def _add(self, *older: LoggedRound) -> None:
        """Add rounds in front of the others; of a round that is known already, the known state stays."""
        self._rounds = {**{_place_of(round_): round_ for round_ in older}, **self._rounds}

    def _update(self, work: Callable[[LogCatalogue], object]) -> None:
        """Have the writing thread do work on the catalogue; warn the user if that fails."""
        catalogue = self._catalogue
        if catalogue is None:
            return

        def call() -> None:
            try:
                work(catalogue)
            except OSError as error:
                where = f"{error.filename}: " if error.filename else ""  # a write that fails has no name
                self._in_loop(self._complain, f"log files cannot be kept in order: {where}{error.strerror}")

        self._writer.post(call)

    def _in_loop(self, call: Callable[..., None], *arguments: object) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(call, *arguments)
