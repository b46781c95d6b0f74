"""What is kept is compared with what was saved, and read no more often than that takes."""

import zlib
from collections.abc import Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import replace
from random import Random
from threading import Event

import pytest

from nodeclient.keeping.parts.digests import Digests, digests_of, is_comparable
from workerlib.contract.arena import CHOSEN, CONTROL_WORDS, Commit, Place
from workerlib.contract.manifest import BYTES_MARK, Piece, lay_out

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
    digests.compute([place, place])
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
    place.invalidate()
    busy.set()
    assert not check.result()
    place.commit(COMMIT)
    assert place.digest(COMMIT) is None


def test_a_digest_is_not_computed_to_its_end_once_nobody_wants_it(place: Place, thread: ThreadPoolExecutor) -> None:
    digests, busy = Digests(thread), Event()
    thread.submit(busy.wait)
    first = digests.check(place, COMMIT)
    place.store_digest(COMMIT, 7)
    second = digests.check(place, COMMIT)
    digests.close()
    busy.set()
    for check in (first, second):
        with pytest.raises(CancelledError):
            check.result()


def digest_of(
    tensors: dict[str, bytes], thread: ThreadPoolExecutor, *, rest: bytes = b"", shards: int = 1
) -> int | None:
    """Return the digest of the tensors of a place, whose other bytes are `rest`."""
    layout = lay_out(Piece(name, "uint8", (len(raw),), (0,), (len(raw),), len(raw)) for name, raw in tensors.items())
    data = bytearray((rest * 1_000)[:1_000].ljust(1_000, b"."))
    data[: len(layout.manifest)] = layout.manifest
    for begin, raw in zip(layout.begins, tensors.values(), strict=True):
        data[begin : begin + len(raw)] = raw
    place = Place(memoryview(bytearray(CONTROL_WORDS * 8)).cast("Q"), memoryview(data))
    commit = replace(COMMIT, length=len(data), shards=shards)
    place.commit(commit)
    digests = Digests(thread)
    assert digests.of_tensors(place, commit) is None
    assert len(digests.compute([place])) == (shards < COMMIT.world_size)
    assert digests.check(place, commit).result()
    return digests.of_tensors(place, commit)


def test_ranks_with_the_same_tensors_have_the_same_digest_and_others_another(thread: ThreadPoolExecutor) -> None:
    alike = digest_of({"a": b"12345", "b": b"678"}, thread)
    assert alike is not None
    assert digest_of({"b": b"678", "a": b"12345"}, thread, rest=b"x") == alike, "the order and what is between differ"
    assert digest_of({"a": b"12345", "b": b"679"}, thread) != alike
    assert digest_of({"a": b"12345", "c": b"678"}, thread) != alike
    pickles = {"n" + BYTES_MARK: b"one way"}, {"n" + BYTES_MARK: b"the other"}
    with_one, with_other = ({"a": b"12345", "b": b"678"} | pickled for pickled in pickles)
    assert digest_of(with_one, thread) == digest_of(with_other, thread) == alike


def test_one_look_at_the_data_gives_both_digests() -> None:
    rng = Random(7)  # noqa: S311 - it keeps no secret
    lengths = {"c": 300_001, "a" + BYTES_MARK: 9, "b": 0, "a": 64}
    pieces = [Piece(name, "uint8", (length,), (0,), (length,), length) for name, length in lengths.items()]
    layout = lay_out(pieces)
    data = bytearray(rng.randbytes(layout.end + 77))
    data[: len(layout.manifest)] = layout.manifest
    tensors = 0
    for piece, begin in sorted(zip(pieces, layout.begins, strict=True), key=lambda pair: pair[0].name):
        if not piece.name.endswith(BYTES_MARK):
            tensors = zlib.crc32(repr(piece).encode() + data[begin : begin + piece.length], tensors)
    assert digests_of(memoryview(data), zlib.crc32) == (zlib.crc32(data), tensors)


def test_a_part_that_no_other_rank_has_is_compared_with_none(thread: ThreadPoolExecutor) -> None:
    assert digest_of({"a": b"12345"}, thread, shards=COMMIT.world_size) is None


def test_a_copy_of_a_shared_part_gets_the_digest_of_its_tensors_too(place: Place, thread: ThreadPoolExecutor) -> None:
    digests = Digests(thread)
    place.store_digest(COMMIT, 7)  # as it came
    assert [noted.result() for noted in digests.compute([place])] == [True]
    assert digests.of_tensors(place, COMMIT) is not None
    assert place.digest(COMMIT) == 7
    assert not digests.compute([place])


def test_what_a_script_has_chosen_to_save_is_compared_with_nothing() -> None:
    """Each rank has other statistics of its batch norms under DDP, and `dcp` loads those of any of them."""
    assert is_comparable(COMMIT)
    assert not is_comparable(replace(COMMIT, flags=CHOSEN))
    assert not is_comparable(replace(COMMIT, shards=COMMIT.world_size))
