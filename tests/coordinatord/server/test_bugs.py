"""A bug ends the daemon, with all there is to know, instead of letting it decide by a damaged state."""

import asyncio
import logging

import pytest

from coordinatord.core.journal import Journal
from coordinatord.core.machine import Coordinator
from coordinatord.server.http import jobs_api
from coordinatord.store.interface import StoreError
from tests.coordinatord.server.conftest import Start
from tests.support.programs import TIMEOUT_S
from tests.support.raw_session import connect, get, join


@pytest.mark.parametrize(
    ("owner", "method"),
    [
        pytest.param(Coordinator, "handle", id="in the machine"),
        pytest.param(Journal, "add", id="while a message is on its way out"),
    ],
)
async def test_an_exception_in_an_event_ends_the_server(
    owner: type, method: str, start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)

    def stumble(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(owner, method, stumble)
    async with start() as server, connect(server.url, join()):
        ended = asyncio.get_running_loop().create_future()
        with pytest.raises(ZeroDivisionError):
            await asyncio.wait_for(server.tasks.guard(ended), TIMEOUT_S)


@pytest.mark.parametrize(
    ("error", "status", "word"), [(ZeroDivisionError(), 500, "bug"), (StoreError("no room"), 503, "unavailable")]
)
async def test_an_exception_while_a_request_is_answered_is_reported_as_any_error(
    error: Exception,
    status: int,
    word: str,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def stumble(*_: object, **__: object) -> None:
        raise error

    async with start() as server:
        monkeypatch.setattr(jobs_api, "respond", stumble)
        found, _, answer = await get(f"{server.url}/healthz", "application/json")
        assert (found, answer["error"]) == (status, word)
    bugs = [record for record in caplog.records if "this is a bug of coordinatord" in record.message]
    assert [record.exc_info is not None for record in bugs] == ([True] if word == "bug" else [])
