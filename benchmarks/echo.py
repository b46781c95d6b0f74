"""The limit of this stack: a bare aiohttp WebSocket server on uvloop that unpacks each message and packs an answer.

    python -m benchmarks.echo ANSWER

Its answer is always the msgpack message in ANSWER, in hexadecimal digits, so that it sends as much as a coordinatord.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import sys

import msgpack
import uvloop
from aiohttp import WSMsgType, web

from coordinatord.protocol.messages import SESSION_PATH


async def serve(answer: object) -> None:
    """Serve until SIGTERM."""

    async def echo(request: web.Request) -> web.WebSocketResponse:
        connection = web.WebSocketResponse(compress=False)
        await connection.prepare(request)
        async for message in connection:
            if message.type is WSMsgType.BINARY:
                msgpack.unpackb(message.data)
                await connection.send_bytes(msgpack.packb(answer))
        return connection

    app = web.Application()
    app.add_routes([web.get(SESSION_PATH, echo)])
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.0)
    await runner.setup()
    listener = socket.create_server(("127.0.0.1", 0), backlog=4_096)
    await web.SockSite(runner, listener).start()
    print(f"echo listening on http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    await ended.wait()
    await runner.cleanup()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as loop:
        loop.run(serve(msgpack.unpackb(bytes.fromhex(sys.argv[1]))))
