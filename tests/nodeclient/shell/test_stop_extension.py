"""systemd is asked for more time while a node that leaves writes, and for no other reason."""

from __future__ import annotations

from coordinatord.protocol.kept_state import Holding
from coordinatord.protocol.persisted_state import PersistReport, PersistState
from nodeclient.shell.stop_extension import StopExtension

MORE = ("EXTEND_TIMEOUT_USEC=45000000",)


def writing(count: int, step: int = 8) -> Holding:
    return Holding((), persisting=PersistReport(1, step, PersistState.WRITING, count))


def test_more_time_is_asked_for_when_more_is_written_and_only_then() -> None:
    said: list[tuple[str, ...]] = []
    extension = StopExtension(lambda *words: said.append(words), 30.0)
    extension.note(writing(100))
    assert said == [], "the service goes on"
    extension.begin()
    assert said.pop() == ("STOPPING=1", "EXTEND_TIMEOUT_USEC=60000000")
    extension.note(writing(100))
    extension.note(None)
    assert said == []
    for holding in (writing(100), writing(200), writing(0, step=9)):
        extension.note(holding)
        assert said.pop() == MORE
        extension.note(holding)
        assert said == []
