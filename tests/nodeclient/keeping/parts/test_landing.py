"""The memory of a part that comes in is counted once, and given back whoever gives the part up."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from nodeclient.keeping.parts.arena_memory import ArenaMemory, NoMemoryError
from nodeclient.keeping.parts.landing import Landing
from nodeclient.keeping.parts.part_fetch import FetchError
from nodeclient.keeping.parts.part_messages import Kind
from tests.nodeclient.keeping.stage import Hanging
from tests.support.programs import TIMEOUT_S
from workerlib.contract.arena import HEADER_BYTES, PAGE_BYTES, WITH_SMALL, Arena, Commit

DATA = b"weights" * 1000


def a_commit(flags: int = 0, length: int = len(DATA)) -> Commit:
    return Commit(7, 1, length, rank=0, world_size=1, shard=0, shards=1, serial=1, flags=flags)


def memory() -> ArenaMemory:
    return ArenaMemory(1 << 20, lambda: 1 << 30)


@pytest.mark.parametrize(
    ("kind", "flags", "is_generation"), [(Kind.BIG, 0, True), (Kind.SMALL, 0, False), (Kind.SMALL, WITH_SMALL, True)]
)
def test_a_part_is_taken_with_its_memory(kind: Kind, flags: int, *, is_generation: bool) -> None:
    owner, commit = memory(), a_commit(flags)
    landing = Landing(owner, kind)
    place = landing.room(commit)
    place.data[: len(DATA)] = DATA
    place.commit(commit)
    landed = landing.take()
    landing.close()
    assert (landed.commit, landed.is_generation) == (commit, is_generation)
    assert landed.owned.size == owner.used_bytes == HEADER_BYTES + PAGE_BYTES * -(-len(DATA) // PAGE_BYTES)
    arena = Arena.attach(landed.owned.file, writable=False)
    [held] = [place for place in (*arena.generations, *arena.smalls) if place.read() == commit]
    assert held.data[: len(DATA)] == DATA
    owner.free([landed.owned])
    assert owner.used_bytes == 0


def test_memory_that_was_given_up_is_given_back_and_there_is_none_after_that() -> None:
    owner = memory()
    landing = Landing(owner, Kind.BIG)
    landing.room(a_commit())
    landing.close()
    landing.close()
    assert owner.used_bytes == 0
    with pytest.raises(FetchError, match="it is not wanted any more"):
        landing.room(a_commit())
    assert owner.used_bytes == 0


@pytest.mark.parametrize("length", [1 << 21, 1 << 50])
def test_a_part_that_is_too_large_leaves_nothing_behind(length: int) -> None:
    owner = memory()
    landing = Landing(owner, Kind.BIG)
    with pytest.raises(NoMemoryError):
        landing.room(a_commit(length=length))
    landing.close()
    assert owner.used_bytes == 0


def test_nobody_waits_for_memory_that_is_being_allocated_to_give_a_part_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system takes a second for each gigabyte, and the event loop has other things to do."""
    slow = Hanging("posix_fallocate")
    monkeypatch.setattr(os, "posix_fallocate", slow)
    owner = memory()
    landing = Landing(owner, Kind.BIG)
    with ThreadPoolExecutor(1) as thread:
        place = thread.submit(landing.room, a_commit())
        assert slow.begins.wait(TIMEOUT_S)
        landing.close()
        assert not place.done()
        slow.heal.set()
        with pytest.raises(FetchError, match="it is not wanted any more"):
            place.result(TIMEOUT_S)
    assert owner.used_bytes == 0
