"""A coordinator for those with a token, and what a test asks it: over HTTP, and as a node."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from coordinatord.core.policy import Policy
from coordinatord.protocol.access_token import AccessToken
from coordinatord.protocol.codec import decode, encode
from coordinatord.protocol.messages import Desired, Goal, Join, Refused
from coordinatord.runtime.pinned_tls import pinned_context
from coordinatord.server.app import ListenAddress, Server, serve
from coordinatord.store.interface import Store
from coordinatord.store.memory_store import MemoryStore
from tests.support.raw_websocket import Wire, message, request
from tests.support.secured import Secured

TRUSTING = pinned_context(lambda _: None)
"""The TLS of a client that takes any key."""


@asynccontextmanager
async def serving(ours: Secured, store: Store | None = None) -> AsyncIterator[Server]:
    """Run a coordinator with these tokens."""
    async with serve(ListenAddress("127.0.0.1", 0), Policy(), store or MemoryStore(), security=ours.security) as server:
        yield server


async def ask(
    server: Server, path: str, token: AccessToken | None = None, method: str = "GET", body: object = None
) -> tuple[int, Any, str]:
    """Return the status, the answer and the header with the reason."""
    headers = {"Accept": "application/json"} | ({"Authorization": f"Bearer {token.text}"} if token else {})
    async with (
        aiohttp.ClientSession() as client,
        client.request(method, f"{server.url}{path}", ssl=TRUSTING, headers=headers, json=body) as answer,
    ):
        said = await answer.json() if "json" in answer.content_type else await answer.text()
        return answer.status, said, answer.headers.get("WWW-Authenticate", "")


def session(token: AccessToken, first: Join) -> bytes:
    """Return all that a node sends to begin a session."""
    return request(f"Authorization: Bearer {token.text}") + message(encode(first))


async def goal(peer: Wire) -> Goal:
    """Return the goal that a node is given first."""
    await peer.upgraded()
    found = await peer.frame()
    assert found is not None
    return decode(found[1], Desired).goal


async def refusal(peer: Wire) -> Refused:
    """Return the refusal that ends a session."""
    await peer.upgraded()
    found = await peer.frame()
    assert found is not None
    return decode(found[1], Refused)
