"""The life of a write to the disk: from which state it goes to which, and what is left of an attempt."""

import itertools

import pytest

from coordinatord.core.keeping.write_progress import RETRY_S, WRITES, Persisting, WriteEvent, WriteState
from coordinatord.protocol.errors import InternalError
from coordinatord.protocol.kept_state import KeptStep
from tests.support.kept_runs import a_write

AT = KeptStep(1, 8)


def at_state(state: WriteState) -> Persisting:
    """Return a disk whose write stands like this."""
    disk = Persisting()
    if state is not WriteState.NONE:
        disk.begin(a_write(AT, attempt=3))
    if state is WriteState.COMMITTING:
        disk.commit()
    assert disk.state is state
    return disk


def bring(disk: Persisting, event: WriteEvent) -> None:
    """Have something happen at 100 s."""
    match event:
        case WriteEvent.BEGUN:
            disk.begin(a_write(AT, attempt=4))
        case WriteEvent.WRITTEN:
            disk.commit()
        case WriteEvent.MADE_WHOLE:
            disk.succeed(100.0)
        case WriteEvent.FAILED:
            disk.fail("no space left", 100.0, AT)
        case WriteEvent.DROPPED:
            disk.drop()


@pytest.mark.parametrize(("state", "event"), [*itertools.product(WriteState, WriteEvent)])
def test_each_event_leads_where_the_table_says_or_is_a_bug(state: WriteState, event: WriteEvent) -> None:
    disk = at_state(state)
    if (state, event) not in WRITES:
        with pytest.raises(InternalError):
            bring(disk, event)
        return
    bring(disk, event)
    assert disk.state is WRITES[state, event]
    assert (disk.attempt is None) == (disk.state is WriteState.NONE)


def test_a_step_that_is_whole_settles_everything() -> None:
    disk = at_state(WriteState.WRITING)
    disk.fail("no space left", 50.0, AT)
    assert (disk.problem, disk.retry_at, disk.failed_at) == ("no space left", 50.0 + RETRY_S, AT)
    disk.begin(a_write(AT, attempt=5))
    disk.commit()
    disk.succeed(100.0)
    assert (disk.found.newest, disk.since, disk.problem, disk.failed_at, disk.aborted) == (AT, 100.0, "", None, ())
