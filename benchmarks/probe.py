"""Asks a coordinatord for its health many times a second, from a quiet process: the delay is that of its loop."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

INTERVAL_S = 0.02
"""The pause between an answer and the next request: 50 a second cost the daemon half a percent of a core."""

QUESTION = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


@asynccontextmanager
async def probe(url: str) -> AsyncIterator[array[float]]:
    """Ask while the context lasts, over one connection; the array has how many seconds each answer took."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    answers_s = array("d")

    async def ask() -> None:
        while True:
            asked_at = time.monotonic()
            writer.write(QUESTION)
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(_length(head))
            answers_s.append(time.monotonic() - asked_at)
            await asyncio.sleep(INTERVAL_S)

    asking = asyncio.get_running_loop().create_task(ask(), name="probe")
    try:
        yield answers_s
    finally:
        asking.cancel()
        with suppress(asyncio.CancelledError):
            await asking
        writer.close()


def _length(head: bytes) -> int:
    [found] = (line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
    return int(found.partition(b":")[2])
