"""A bug ends the daemon, with all there is to know, instead of letting it decide by what it no longer knows."""

from __future__ import annotations

import asyncio
import logging

import pytest

from coordinatord.core.machine import Coordinator
from tests.server.conftest import Start
from tests.support.wire import TIMEOUT_S, connect, join

pytestmark = pytest.mark.asyncio


async def test_an_exception_in_the_machine_ends_the_server(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)

    def stumble(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Coordinator, "handle", stumble)
    async with start() as server, connect(server.url, join()):
        ended = asyncio.get_running_loop().create_future()
        with pytest.raises(ZeroDivisionError):
            await asyncio.wait_for(server.until(ended), TIMEOUT_S)
