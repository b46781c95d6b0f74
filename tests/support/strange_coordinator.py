"""A coordinator that behaves as a test wants, at the other end of a real nodeclient."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from coordinatord.protocol.messages import SESSION_PATH, Desired, Goal

Behaviour = Callable[[web.WebSocketResponse], Awaitable[object]]
"""What the coordinator does after each join, until it closes the session."""

WAIT = Desired(
    run="run",
    round=0,
    goal=Goal.WAIT,
    reason="strange",
    wait_s=None,
    heartbeat_s=1.0,
    lease_s=5.0,
    outage_grace_s=300.0,
    planned=False,
    assignment=None,
    outcome=None,
    report=None,
)


@asynccontextmanager
async def strange_coordinator(behave: Behaviour) -> AsyncIterator[tuple[str, list[bytes]]]:
    """Serve, and behave like this after each join; yield the address and the joins so far."""
    joins: list[bytes] = []

    async def serve(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(timeout=0.1)
        await socket.prepare(request)
        joins.append(await socket.receive_bytes())
        await behave(socket)
        await socket.close()
        return socket

    app = web.Application()
    app.router.add_get(SESSION_PATH, serve)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"127.0.0.1:{runner.addresses[0][1]}", joins
    finally:
        await runner.cleanup()
