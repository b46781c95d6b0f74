"""Reads the logs of some workers from their nodes, chunk by chunk, and optionally follows new output.

The files are on the nodes; the coordinator knows only their paths. A chunk is requested once the reader has consumed
the one before. So nothing is buffered for a slow reader.

A reader that names no round and follows gets the logs of the last round, then those of each later one, until the run
ends.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from dataclasses import dataclass

from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.state.run import Run
from coordinatord.core.rounds.values.round_history import rounds_of
from coordinatord.core.shown.log_sources import LogSource, LogSources, NoLogError, log_sources
from coordinatord.protocol.http.log_answers import LogPart
from coordinatord.protocol.log_messages import LogChunk, LogPlace, ReadLog
from coordinatord.server.driver import Driver
from coordinatord.server.http.log_query import LogQuery, format_place
from coordinatord.server.reads.change_signal import ChangeSignal
from coordinatord.server.sessions.node_reads import NoAnswerError, NodeReads
from coordinatord.store.database_store import Store

ANSWER_WITHIN_S = 10.0
"""How long to wait for one chunk: it takes milliseconds, unless the node's disk hangs."""

FOLLOW_EVERY_S = 1.0
"""The polling interval of followed logs, as in `tail -f`; a record, such as the end of the run, ends it early."""

TOTAL_BYTES_MAX = 1024**3
"""The size limit of one reading: for more than a gigabyte, a person should copy the file on its host."""

WITHIN_S = 24 * 3_600.0
"""The time limit of one reading: a person has forgotten a reader of more than a day."""

TURN_BYTES = 1024**2
"""How much of one log a reader that follows gets before the next log has its turn. A log may grow as fast as it is
read."""

BEGINNING = LogPlace(0, 0)
"""The place before the first byte of the oldest file."""

NO_LOGS = LogSources(sources=(), omitted=0)


@dataclass(slots=True)
class _Log:
    """One log, and how far it was read."""

    source: LogSource
    place: LogPlace | None
    """Where to continue; None to begin with its last lines."""
    session: int | None
    """The last known session of its node."""
    has_failed: bool = False
    """Whether it is read no further, for a reason that the reader was told."""
    at_end: bool = False
    """Whether it was read to its present end."""
    is_behind: bool = False
    """Whether its last turn ended because of `TURN_BYTES`, before its present end."""

    def part(self, text: str = "", note: str = "") -> LogPart:
        """Return a part of the answer with text of this log, which ends at `place`, or with a note about the log."""
        source, log = self.source, (self.source.rank, self.source.stream)
        return LogPart(
            run=source.run,
            round=source.round,
            rank=source.rank,
            node=source.node,
            host=source.host,
            stream=source.stream,
            file=source.file,
            text=text,
            place="" if note or self.place is None else format_place(source.round, log, self.place),
            note=note,
        )


@dataclass(eq=False)
class LogReading:
    """One reader's logs of one run."""

    _driver: Driver
    _store: Store
    _reads: NodeReads
    _change_signal: ChangeSignal
    _run: Run
    """The live or last run of the job."""
    _query: LogQuery
    _bytes_left: int = TOTAL_BYTES_MAX

    def __post_init__(self) -> None:
        query = self._query
        self.run_id = query.run or self._run.id
        """The id of the wanted run, which may be an earlier one."""
        wanted = query.after_round if query.round is None else query.round
        self.round = self._run.durable.round if wanted is None else wanted
        """The number of the round that is being read."""
        self._knows_round = wanted is not None
        """Whether the query names a round, or the places at which to continue the logs of a round."""
        self._until = self._driver.now + WITHIN_S

    @property
    def _limit_reached(self) -> bool:
        """Whether `TOTAL_BYTES_MAX` or `WITHIN_S` is reached."""
        return self._bytes_left <= 0 or self._driver.now >= self._until

    @property
    def _is_earlier(self) -> bool:
        """Whether the wanted run is an earlier one of the job."""
        return self.run_id != self._run.id

    async def find(self) -> LogSources:
        """Return the logs of the round and their nodes; none before the first round of a run that is followed.

        Raises `NoLogError` and `StoreError`.
        """
        run, query = self._run, self._query
        if self._is_earlier and not self._knows_round:
            self.round = await self._last_round()
        records = await self._store.read_round(run.job, self.run_id, self.round)
        if not records and not self._is_earlier:
            await self._driver.written()  # the round may have been formed only lately
            records = await self._store.read_round(run.job, self.run_id, self.round)
        awaits_first_round = query.follow and query.round is None and not run.durable.has_had_rounds
        if awaits_first_round and not records and not self._is_earlier:
            return NO_LOGS
        earlier = self.run_id if self._is_earlier else ""
        return log_sources(run, self.round, records, query.choice, earlier=earlier, follow=query.follow)

    async def _last_round(self) -> int:
        """Return the last round of the earlier run. Raises `NoLogError` and `StoreError`."""
        rounds = await self._rounds()
        if not rounds:
            known = ", ".join([self._run.id, *(earlier.run for earlier in self._run.durable.earlier)])
            raise NoLogError(f"job {self._run.job} has no rounds of a run {self.run_id}: its runs are {known}")
        return rounds[-1]

    async def _rounds(self) -> list[int]:
        """Return the stored round numbers of the run. Raises `StoreError`."""
        return [round_.number for round_ in rounds_of(await self._store.read_rounds(self._run.job, self.run_id))]

    async def parts(self, found: LogSources) -> AsyncGenerator[LogPart | None, None]:
        """Yield the run's id, the parts of these logs, then those of later rounds if they are wanted.

        Yield None now and then while there is nothing new, so that the caller can show its reader that it lives.
        """
        yield LogPart(run=self.run_id)
        logs = [
            _Log(source, self._query.after.get((source.rank, source.stream)), source.session)
            for source in _readable(found)
        ]
        while True:
            for note in _notes_of_unread(found):
                yield note
            async for part in self._parts_of_round(logs):
                yield part
            number = None
            while number is None:
                if self._limit_reached or self.is_interrupted or not self._has_next_round:
                    return
                version = self._change_signal.version
                number = await self._next_round()
                if number is None:  # the store fails
                    if self._is_over:
                        return
                    yield None
                    await self._change_signal.wait_after(version, FOLLOW_EVERY_S)
            self.round = number
            text, found = await self._find_next()
            yield LogPart(run=self.run_id, round=self.round, note=text)
            logs = [_Log(source, BEGINNING, source.session) for source in _readable(found)]

    async def _parts_of_round(self, logs: Sequence[_Log]) -> AsyncIterator[LogPart | None]:
        """Yield the parts of one round's logs, until no more output is awaited, or a later round is wanted."""
        while not self.is_interrupted:
            # Checked before the logs are read, so that the last pass also gets the output before the end.
            version, is_last = self._change_signal.version, self._is_over or self._has_next_round
            for log in logs:
                async for part in self._new_parts(log, is_last=is_last):
                    yield part
                yield None  # a node without an answer takes a while
            if self._limit_reached:
                text = "this is as much as one request reads: ask again, or look on the hosts"
                yield LogPart(run=self.run_id, note=text)
                return
            if is_last:
                return
            yield None
            if not any(log.is_behind for log in logs):
                await self._change_signal.wait_after(version, FOLLOW_EVERY_S)

    async def _find_next(self) -> tuple[str, LogSources]:
        """Return a note about the next round, and the sources of its logs."""
        try:
            return f"round {self.round} begins", await self.find()
        except NoLogError as error:
            return str(error), NO_LOGS

    async def _next_round(self) -> int | None:
        """Return the next stored round; several may have passed since the last poll. Raises `StoreError`.

        None if there is none yet, because the store fails.
        """
        await self._driver.written()
        return min((number for number in await self._rounds() if number > self.round), default=None)

    @property
    def is_interrupted(self) -> bool:
        """Whether the daemon's end interrupts a reader that follows. It will continue at the next coordinator."""
        return self._query.follow and self._change_signal.closed

    @property
    def _is_over(self) -> bool:
        """Whether no more output is awaited: the reader does not follow, or the run or the named round has ended."""
        durable = self._run.durable
        if not self._query.follow or self._is_earlier or durable.state.ended:
            return True
        if self._driver.machine.jobs.get(self._run.job) is not self._run:  # forgotten
            return True
        # Between two rounds the number is still that of the last one.
        has_round_ended = durable.round != self.round or durable.state is State.FORMING
        return self._query.round is not None and has_round_ended

    @property
    def _has_next_round(self) -> bool:
        """Whether the reader follows all rounds, and a later one than `round` was formed."""
        follows_rounds = self._query.follow and self._query.round is None and not self._is_earlier
        return follows_rounds and self._run.durable.round != self.round

    async def _new_parts(self, log: _Log, *, is_last: bool) -> AsyncIterator[LogPart]:
        """Yield what is new in a log, at most `TURN_BYTES`, and advance its place.

        `is_last` means that there is no later call, so the whole rest is read.
        """
        left_after_turn = self._bytes_left - TURN_BYTES
        while not (log.has_failed or self._limit_reached or self.is_interrupted):
            log.is_behind = not is_last and self._bytes_left <= left_after_turn
            if log.is_behind:
                return
            try:
                chunk = await self._read_chunk(log)
            except NoAnswerError as error:
                if (not is_last and log.source.served_by in self._run.members) or self.is_interrupted:
                    return  # the node may come back, or the next coordinator reads on
                log.has_failed = True
                has_left = log.at_end and self._run.durable.state.ended  # the node left after all its output was read
                if not has_left:
                    yield log.part(note=_with_path(log.source, str(error)))
                return
            before, log.place = log.place, chunk.place or log.place
            # A node that says it has more and does not go on would be asked for ever.
            is_stuck = chunk.more and not chunk.data and log.place == before
            problem = chunk.problem or ("its node sends nothing of the rest" if is_stuck else "")
            # With a problem and more to come, the node is still asked for the rest.
            log.at_end, log.has_failed = not chunk.more, is_stuck or (bool(problem) and not chunk.more)
            self._bytes_left -= len(chunk.data)
            if chunk.gap:
                yield log.part(note="something is left out here: it was rotated away, or is too far back")
            text = chunk.data.decode(errors="replace")  # nodes send whole characters
            # A reader that follows gets an empty first part, too: it has the place at which to continue.
            if text or (before is None and self._query.follow and log.place is not None):
                yield log.part(text)
            if problem:
                yield log.part(note=_with_path(log.source, problem))
            if log.at_end:
                return

    async def _read_chunk(self, log: _Log) -> LogChunk:
        """Return the next chunk. Raises `NoAnswerError`."""
        source, query, member = log.source, self._query, self._run.members.get(log.source.served_by)
        if member is not None and member.session.id is not None:
            log.session = member.session.id  # a reconnected node has a new one
        if log.session is None:
            raise NoAnswerError("its node is not connected")
        wanted = ReadLog(
            request=1,  # replaced when it is sent
            run=source.run,
            round=source.round,
            rank=source.rank,
            stream=source.stream,
            after=log.place,
            last_bytes=query.last_bytes,
            last_lines=query.last_lines,
            follow=query.follow and not self._is_earlier,
        )
        return await self._reads.read(log.session, wanted, LogChunk, ANSWER_WITHIN_S)


def _readable(found: LogSources) -> list[LogSource]:
    return [source for source in found.sources if not source.problem]


def _notes_of_unread(found: LogSources) -> Iterator[LogPart]:
    """Yield notes about logs that cannot be read, one for each node."""
    run = next((source.run for source in found.sources), "")
    if found.omitted:
        yield LogPart(run=run, note=f"{found.omitted} more workers are left out: choose some by rank or node")
    for source in {source.node: source for source in found.sources if source.problem}.values():
        yield LogPart(run=run, round=source.round, node=source.node, host=source.host, note=source.problem)


def _with_path(source: LogSource, problem: str) -> str:
    return f"{problem}: look on host {source.host} at {source.file}" if source.file else problem
