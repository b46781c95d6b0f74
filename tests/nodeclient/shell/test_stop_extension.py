"""systemd is asked for more time while a node that leaves writes, and for no other reason."""

import asyncio

import pytest

from coordinatord.protocol.kept_state import PersistReport, PersistState
from nodeclient.shell import stop_extension
from nodeclient.shell.stop_extension import StopExtension

MORE = ("EXTEND_TIMEOUT_USEC=45000000",)


def writing(count: int, step: int = 8) -> PersistReport:
    return PersistReport(1, step, PersistState.WRITING, count)


def test_more_time_is_asked_for_when_more_is_written_and_only_then() -> None:
    said: list[tuple[str, ...]] = []
    extension = StopExtension(lambda *words: said.append(words), 30.0)
    extension.record_progress(writing(100))
    assert said == [], "the service goes on"
    extension.begin()
    assert said.pop() == ("STOPPING=1", "EXTEND_TIMEOUT_USEC=60000000")
    extension.record_progress(writing(100))
    extension.record_progress(None)
    assert said == []
    for report in (writing(100), writing(200), writing(0, step=9)):
        extension.record_progress(report)
        assert said.pop() == MORE
        extension.record_progress(report)
        assert said == []


async def test_what_is_written_is_looked_at_from_when_the_service_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop_extension, "POLL_EVERY_S", 0.0)
    said: asyncio.Queue[tuple[str, ...]] = asyncio.Queue()
    extension, reports = StopExtension(lambda *words: said.put_nowait(words), 30.0), iter(map(writing, range(1000)))
    watching = asyncio.ensure_future(extension.watch(lambda: next(reports)))
    await asyncio.sleep(0)
    assert said.empty(), "the service goes on"
    extension.begin()
    await said.get()
    assert [await said.get(), await said.get()] == [MORE, MORE]
    watching.cancel()
