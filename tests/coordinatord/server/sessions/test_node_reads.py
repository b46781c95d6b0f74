"""A reader that gets no answer learns why."""

import asyncio

import pytest

from coordinatord.protocol.log_messages import LogChunk, LogStream, ReadLog
from coordinatord.server.sessions.node_reads import NoAnswerError, NodeReads

WANTED = ReadLog(0, "r1", 1, 0, LogStream.STDERR, None, 1, None, follow=False)


async def test_a_reader_whose_turn_does_not_come_suspects_no_disk() -> None:
    reads, sent = NodeReads(), asyncio.Event()
    reads.open(1, lambda _: sent.set())
    async with asyncio.TaskGroup() as readers:
        first = readers.create_task(reads.read(1, WANTED, LogChunk, 60.0))
        await sent.wait()
        with pytest.raises(NoAnswerError, match="within 0 s: do many ask it"):
            await reads.read(1, WANTED, LogChunk, 0.0)
        first.cancel()
