"""Fixtures of the server's tests: a real server on a port of the kernel's choice, on either kind of event loop."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
import uvloop

from coordinatord.core.rounds.policy import Policy
from coordinatord.server import driver
from coordinatord.server.app import ListenAddress, Server, serve
from coordinatord.server.driver import NOT_SHARED, Sharing
from coordinatord.server.sessions.connection_limits import ConnectionLimits
from coordinatord.store.database_store import MemoryStore, Store
from tests.support.programs import TIMEOUT_S

Start = Callable[..., AbstractAsyncContextManager[Server]]


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Use the loop of the daemon; run what handles connections by itself on that of a program that embeds it, too."""
    loops: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"uvloop": uvloop.new_event_loop}
    return loops | ({"asyncio": asyncio.new_event_loop} if item.path.parent.name == "sessions" else {})


@pytest.fixture(autouse=True)
def _no_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take no store for failed because this machine is busy."""
    monkeypatch.setattr(driver, "WRITE_WITHIN_S", TIMEOUT_S)


@pytest.fixture
def start() -> Start:
    """Return what starts a server with a store and a policy, for the length of a context."""

    @asynccontextmanager
    async def running(
        store: Store | None = None,
        limits: ConnectionLimits | None = None,
        sharing: Sharing = NOT_SHARED,
        **policy: Any,
    ) -> AsyncIterator[Server]:
        where = ListenAddress("127.0.0.1", 0)
        async with serve(where, Policy(**policy), store or MemoryStore(), limits=limits, sharing=sharing) as server:
            yield server

    return running
