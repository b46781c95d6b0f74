"""Peers of a coordinator that mean harm, or are broken: many in one process, each of one kind, again and again.

python -m tests.support.hostile HOST PORT TOKEN_FILE NODE COUNT

They are kinds of half a handshake, silence, garbage, wrong tokens, stolen identities, refusals, floods and slowness.
TOKEN_FILE has a token of their own: some are bearers who may join. NODE is the id of a live node, which is none of
theirs. It ends with its standard input, and then prints how often each kind has done its worst.
"""

import asyncio
import json
import os
import random
import ssl
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from coordinatord.protocol.codec import encode
from coordinatord.runtime.pinned_tls import pinned_context
from tests.support.raw_session import IDLE, join
from tests.support.raw_websocket import message, request

HOLD_S = 1.0
"""How long an idle connection is held."""

PAUSE_S = 0.05
"""The pause of each peer between two attempts."""

FLOOD = 2_000
"""Messages of a flood."""


@dataclass(frozen=True, slots=True)
class Victim:
    """The coordinator, as the peers know it."""

    host: str
    port: int
    token: str
    node: str

    async def open(
        self, data: bytes, *, tls: bool = True, reads: bool = True
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect, and send this. Without `reads`, the connection reads nothing, not even its end."""
        context: ssl.SSLContext | None = pinned_context(lambda _: None) if tls else None
        reader, writer = await asyncio.open_connection(self.host, self.port, ssl=context)
        writer.write(data)
        if not reads and isinstance(writer.transport, asyncio.Transport):
            writer.transport.pause_reading()
        return reader, writer

    def asking(self, *, token: str = "") -> bytes:
        """Return a request for a session, with a token."""
        return request(f"Authorization: Bearer {token or self.token}")


async def held(opened: Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]) -> None:
    """Hold a connection for a while, and read nothing."""
    _, writer = await opened
    await asyncio.sleep(HOLD_S)
    writer.transport.abort()


async def read_answer(opened: Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]) -> None:
    """Wait for the end of a connection, or for a while."""
    reader, writer = await opened
    with suppress(TimeoutError):
        async with asyncio.timeout(HOLD_S):
            while await reader.read(1 << 16):
                pass
    writer.transport.abort()


def garbage(victim: Victim) -> Awaitable[None]:
    """Send noise where a message belongs."""
    noise = random.randbytes(4_096)  # noqa: S311 - it keeps no secret
    return read_answer(victim.open(victim.asking() + noise))


def flood(victim: Victim) -> Awaitable[None]:
    """Join a job of one's own, as another node each time, which is recorded; and send without end."""
    beat = message(encode(replace(IDLE, beat=True)))
    name = random.randbytes(8).hex()  # noqa: S311 - it keeps no secret
    return read_answer(victim.open(victim.asking() + message(encode(join(name, job="theirs", nodes=2))) + beat * FLOOD))


def stolen(victim: Victim) -> Awaitable[None]:
    """Join as a younger process of a live node of others."""
    claim = join(victim.node, job="fleet", incarnation=2**62)
    return read_answer(victim.open(victim.asking() + message(encode(claim))))


def slow(victim: Victim) -> Awaitable[None]:
    """Join a job of one's own, and read nothing."""
    return held(victim.open(victim.asking() + message(encode(join("y", job="slow", nodes=2)))))


KINDS: dict[str, Callable[[Victim], Awaitable[None]]] = {
    "silent": lambda victim: held(victim.open(b"", tls=False)),
    "half open": lambda victim: held(victim.open(b"\x16\x03\x01\x02", tls=False)),
    "no TLS": lambda victim: read_answer(victim.open(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", tls=False)),
    "half a request": lambda victim: held(victim.open(b"GET /v1/jobs HTTP/1.1\r\nHost:")),
    "no token": lambda victim: read_answer(victim.open(b"GET /v1/jobs HTTP/1.1\r\nHost: x\r\n\r\n")),
    "wrong token": lambda victim: read_answer(victim.open(victim.asking(token=victim.token[:-4] + "aaaa"))),
    "no join": lambda victim: held(victim.open(victim.asking())),
    "garbage": garbage,
    "flood": flood,
    "stolen identity": stolen,
    "slow": slow,
    "refused": lambda victim: held(victim.open(victim.asking() + message(b"\x81\xa4type\xa4nope"), reads=False)),
}


def without_broken_connections(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Report what asyncio caught, except for a connection that broke: to break them is what these peers are for.

    A connection that breaks while its opener is cancelled is reported so, behind the figures that are printed last.
    """
    if not isinstance(context.get("exception"), OSError):
        loop.default_exception_handler(context)


async def harm(victim: Victim, count: int) -> Counter[str]:
    """Do harm until standard input ends and each kind has done its worst; return how often each kind did."""
    done: Counter[str] = Counter()
    loop = asyncio.get_running_loop()
    ended = loop.create_future()

    def read() -> None:
        if not os.read(0, 1) and not ended.done():
            ended.set_result(None)

    loop.add_reader(0, read)
    loop.set_exception_handler(without_broken_connections)

    async def again_and_again(kind: str) -> None:
        while True:
            with suppress(OSError, EOFError):
                await KINDS[kind](victim)
            done[kind] += 1
            await asyncio.sleep(PAUSE_S)

    kinds = list(KINDS)

    async def all_have() -> None:
        await ended
        # A busy machine takes seconds for one of them.
        while done.keys() != set(kinds[:count]):  # noqa: ASYNC110 - the counter announces nothing
            await asyncio.sleep(PAUSE_S)

    tasks = [asyncio.ensure_future(again_and_again(kinds[number % len(kinds)])) for number in range(count)]
    tasks.append(asyncio.ensure_future(all_have()))
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, Exception):
            raise result
    return done


def main() -> None:
    """Do as the arguments say."""
    host, port, token_file, node, count = sys.argv[1:]
    token = next(line for line in Path(token_file).read_text().split() if not line.startswith("#"))
    print(json.dumps(asyncio.run(harm(Victim(host, int(port), token, node), int(count)))))  # noqa: T201 - for our caller


if __name__ == "__main__":
    main()
