"""What is kept is compared with what was saved, and read no more often than that takes."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from nodeclient.parts.digests import Digests
from workerlib.keep.arena import CONTROL_WORDS, Commit, Place

COMMIT = Commit(step=7, round=2, length=40, rank=1, world_size=3, shard=0, shards=1, serial=1)


@pytest.fixture
def place() -> Place:
    place = Place(memoryview(bytearray(CONTROL_WORDS * 8)).cast("Q"), memoryview(bytearray(range(60))))
    place.commit(COMMIT)
    return place


@pytest.fixture
def thread() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as thread:
        yield thread


def test_a_place_that_is_being_read_is_not_read_a_second_time(place: Place, thread: ThreadPoolExecutor) -> None:
    digests, busy = Digests(thread), Event()
    thread.submit(busy.wait)
    digests.note([place, place])
    check = digests.check(place, COMMIT)
    assert digests.check(place, COMMIT) is check
    busy.set()
    assert check.result()
    assert digests.check(place, COMMIT) is not check, "from now on there is something to compare"


def test_a_bit_that_flips_after_its_digest_was_noted_is_found(place: Place, thread: ThreadPoolExecutor) -> None:
    digests = Digests(thread)
    assert digests.check(place, COMMIT).result()
    assert digests.check(place, COMMIT).result()
    place.data[COMMIT.length] ^= 1
    assert digests.check(place, COMMIT).result(), "it is not part of what was saved"
    place.data[COMMIT.length - 1] ^= 1
    assert not digests.check(place, COMMIT).result()


def test_a_place_that_is_overwritten_meanwhile_gets_no_digest(place: Place, thread: ThreadPoolExecutor) -> None:
    digests, busy = Digests(thread), Event()
    thread.submit(busy.wait)
    check = digests.check(place, COMMIT)
    place.begin()
    busy.set()
    assert not check.result()
    place.commit(COMMIT)
    assert place.digest(COMMIT) is None
