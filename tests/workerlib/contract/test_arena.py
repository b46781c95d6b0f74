"""The layout of kept state: what is whole, what may be overwritten, and what another processor may see of it."""

import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Self

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workerlib.contract import arena as arena_module
from workerlib.contract.arena import (
    HEADER_BYTES,
    HEADER_WORDS,
    PENDING,
    Arena,
    ArenaError,
    ArenaSizes,
    Commit,
    Place,
    oldest_generation,
    power_of_two,
)

SIZES = ArenaSizes.at_least(5000, 100)

COMMIT = Commit(step=7, round=2, length=40, rank=1, world_size=3, shard=0, shards=1, serial=1)


@pytest.fixture
def file() -> Iterator[int]:
    file = os.memfd_create("arena")
    os.ftruncate(file, SIZES.total)
    yield file
    os.close(file)


@pytest.fixture
def arena(file: int) -> Arena:
    return Arena.create(file, SIZES)


def fill(places: list[Place], round_: int, *steps: int) -> None:
    """Commit the steps into the places, in order."""
    for serial, (place, step) in enumerate(zip(places, steps, strict=True), 1):
        place.commit(replace(COMMIT, round=round_, step=step, serial=serial))


def test_another_process_sees_what_was_committed(file: int, arena: Arena) -> None:
    arena.generations[1].data[:5] = b"state"
    arena.generations[1].commit(COMMIT)
    other = Arena.attach(file, writable=False)
    assert [place.read() for place in other.generations] == [None, COMMIT, None]
    assert bytes(other.generations[1].data[:5]) == b"state"
    assert [place.read() for place in other.smalls] == [None] * 6
    assert other.newest_serial() == 1
    with pytest.raises(TypeError):
        other.generations[1].invalidate()


def test_a_place_that_is_begun_is_no_longer_whole_nor_is_its_digest(arena: Arena) -> None:
    place = arena.generations[0]
    place.commit(COMMIT)
    assert place.digest(COMMIT) is None
    for crc in (0, 0xFFFFFFFF):
        place.store_digest(COMMIT, crc)
        assert place.digest(COMMIT) == crc
    assert place.digest(replace(COMMIT, serial=2)) is None
    place.invalidate()
    assert place.read() is None
    place.commit(replace(COMMIT, serial=2))
    assert place.digest(replace(COMMIT, serial=2)) is None


def test_a_place_that_was_begun_and_not_overwritten_is_whole_again(arena: Arena) -> None:
    place = arena.generations[0]
    place.commit(COMMIT)
    place.store_digest(COMMIT, 5)
    place.invalidate()
    place.revalidate(COMMIT)
    assert (place.read(), place.digest(COMMIT)) == (COMMIT, 5)


def test_to_touch_an_arena_changes_nothing_in_it(arena: Arena) -> None:
    arena.generations[2].data[-5:] = b"state"
    arena.generations[2].commit(COMMIT)
    arena.touch()
    assert [place.read() for place in arena.generations] == [None, None, COMMIT]
    assert bytes(arena.generations[2].data[-5:]) == b"state"


@given(word=st.integers(0, 9), bit=st.integers(0, 63))
def test_a_flipped_bit_in_the_control_words_makes_a_place_not_whole(word: int, bit: int) -> None:
    control = memoryview(bytearray(96)).cast("Q")
    place = Place(control, memoryview(bytearray(100)))
    place.commit(COMMIT)
    assert place.read() == COMMIT
    control[word] ^= 1 << bit
    assert place.read() is None


def test_a_length_beyond_the_place_is_not_believed(arena: Arena) -> None:
    arena.smalls[0].commit(replace(COMMIT, length=SIZES.small + 1))
    assert arena.smalls[0].read() is None


def test_what_is_protected_is_known_whole_or_not_at_all(file: int, arena: Arena) -> None:
    other = Arena.attach(file, writable=False)
    assert other.protected == frozenset()
    arena.protect([(0, 0)])
    assert arena.protected == {(0, 0)}
    arena.protect([(0, 0), (3, 8)])
    assert other.protected == {(0, 0), (3, 8)}
    arena.protect([(4, 9), (3, 8)])
    assert Arena.attach(file, writable=False).protected == {(3, 8), (4, 9)}
    arena.protect([])
    assert other.protected == frozenset()


@pytest.mark.parametrize(
    ("steps", "protected", "overwritten"),
    [
        ((), None, 0),
        ((4,), None, 4),
        ((4, 8, 12), None, 4),
        ((8, 12, 16), None, 12),
        ((8, 12, 16), 12, 8),
        ((16, 24, 28), 24, 16),
        ((0, 4, 8), None, 4),
        ((0, 4, 8), 4, 0),
    ],
)
def test_which_generation_goes(arena: Arena, steps: tuple[int, ...], protected: int | None, overwritten: int) -> None:
    places = list(arena.generations)
    fill(places[: len(steps)], 1, *steps)
    chosen = oldest_generation(places, () if protected is None else [(1, protected)], 1)
    assert chosen is not None
    commit = chosen.read()
    assert (commit.step if commit else None) == (overwritten if len(steps) == len(places) else None)


def test_an_older_round_goes_first_but_for_what_is_protected_or_newest(arena: Arena) -> None:
    places = list(arena.generations)
    fill(places, 1, 64, 12, 8)
    fill(places[1:2], 2, 5)
    assert oldest_generation(places, [(1, 64)], 6) is places[2]
    assert oldest_generation(places[:2], [(1, 64)], 6) is places[1]
    assert oldest_generation(places[:2], [(1, 64)], 7) is None


@given(
    ranks=st.lists(st.tuples(st.sampled_from([4, 8, 16]), st.integers(3, 40)), min_size=2, max_size=4),
    stride=st.integers(1, 12),
    offset=st.integers(0, 11),
)
def test_ranks_that_have_one_place_each_come_to_the_same_step(
    ranks: list[tuple[int, int]], stride: int, offset: int
) -> None:
    """Two steps are protected while one of them is written to a disk, and each rank has another newest one.

    Numbers of steps may be some apart, and all odd, as where gradients are summed up over several batches.
    """
    intervals = [interval for interval, _ in ranks]
    newest = [interval * times + (offset - interval * times) % stride for interval, times in ranks]
    arenas = [[Place(memoryview(bytearray(96)).cast("Q"), memoryview(bytearray(40))) for _ in range(3)] for _ in ranks]
    for places, step in zip(arenas, newest, strict=True):
        fill(places, 1, 4, 8, step)
    alike = 2 * max(*intervals, *(power_of_two(step, stride) for step in newest))
    multiple = (max(newest) // alike + 1) * alike
    last = multiple + (offset - multiple) % stride
    for step in range(max(newest) + stride, last + 1, stride):
        for places, interval in zip(arenas, intervals, strict=True):
            is_due = step // interval > (step - stride) // interval
            place = oldest_generation(places, [(1, 4), (1, 8)], step, stride) if is_due else None
            if place is not None:
                fill([place], 1, step)
    held = [{commit.step for place in places if (commit := place.read())} for places in arenas]
    assert held == [{4, 8, last}] * len(ranks)


@pytest.mark.parametrize("protected", [(), [(2, 3)], [(2, 3), (2, 4)]])
def test_the_last_two_steps_that_were_done_stay(arena: Arena, protected: list[tuple[int, int]]) -> None:
    places = list(arena.smalls)
    arena.protect(protected)
    serial = 0
    for step in range(20):
        for flags in (PENDING, PENDING, 0):
            serial += 1
            place = arena.begin_small()
            assert place is not None
            held = [place.read() for place in places]
            done = [commit.step for commit in held if commit is not None and not commit.pending]
            assert {number for _, number in protected if number < step} <= {*done}
            assert sorted(done)[-2:] == [number for number in (step - 2, step - 1) if number >= 0]
            if (serial - 1) % 3:
                assert any(commit.step == step for commit in held if commit is not None)
            place.commit(replace(COMMIT, step=step, serial=serial, flags=flags))


def test_the_last_look_at_a_protected_step_stays_where_its_end_is_not_there(arena: Arena) -> None:
    for serial, (rank, step, flags) in enumerate([(1, 3, 0), (1, 4, PENDING), (1, 4, PENDING), (2, 4, 0)], 1):
        arena.smalls[serial].commit(replace(COMMIT, rank=rank, step=step, serial=serial, flags=flags))
    arena.protect([(COMMIT.round, 4)])
    for serial in range(5, 25):
        place = arena.begin_small()
        assert place is not None
        place.commit(replace(COMMIT, rank=2, step=serial, serial=serial))
    held = {(commit.rank, commit.step, commit.serial) for commit in map(Place.read, arena.smalls) if commit is not None}
    assert {(1, 4, 3), (2, 4, 4)} <= held


def test_what_is_no_arena_is_refused(file: int, arena: Arena) -> None:
    assert arena.sizes == SIZES
    with pytest.raises(ArenaError, match="at least"):
        Arena(memoryview(bytearray(10)))
    with pytest.raises(ArenaError, match="another release"):
        Arena(memoryview(bytearray(HEADER_BYTES)))
    with pytest.raises(ArenaError, match="cannot have"):
        ArenaSizes.at_least(-1, 0)
    os.ftruncate(file, SIZES.total + 4096)
    with pytest.raises(ArenaError, match=r"an arena of \d+ bytes has \d+"):
        Arena.attach(file, writable=False)


CHECK = HEADER_WORDS + 9
"""The word of an arena that says whether its first place is whole."""

PROTECTED = 4
"""The first word of those that say which steps are protected."""

Access = tuple[str, int]
"""A `store` or a `load` of a word by its number, or what is done with a lock."""


class Watched:
    """The memory of an arena, which notes each access to its header."""

    def __init__(self, memory: memoryview, accesses: list[Access], begin: int = 0) -> None:
        self._memory, self._accesses, self._begin = memory, accesses, begin

    def __len__(self) -> int:
        return len(self._memory)

    def cast(self, form: str) -> Self:
        """Return the header as words."""
        return type(self)(self._memory.cast(form), self._accesses)  # type: ignore[call-overload]  # any format

    def tobytes(self) -> bytes:
        """Load all words."""
        self._accesses += [("load", self._begin + at) for at in range(len(self))]
        return self._memory.tobytes()

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            inner = self._memory[at]
            if inner.itemsize == 1:
                return type(self)(inner, self._accesses) if at.start is None else inner  # else the data of a place
            return type(self)(inner, self._accesses, self._begin + (at.start or 0))
        self._accesses.append(("load", self._begin + at))
        return self._memory[at]

    def __setitem__(self, at: int, word: int) -> None:
        self._accesses.append(("store", self._begin + at))
        self._memory[at] = word

    def __iter__(self) -> Iterator[int]:
        return iter(self[at] for at in range(len(self)))


@pytest.fixture
def accesses(monkeypatch: pytest.MonkeyPatch) -> list[Access]:
    """Have locks note what is done with them."""
    noted: list[Access] = []

    class Lock:
        def acquire(self) -> None:
            noted.append(("acquire", -1))

        def release(self) -> None:
            noted.append(("release", -1))

    monkeypatch.setattr(arena_module, "Lock", Lock)
    return noted


@pytest.fixture
def noted(accesses: list[Access]) -> Arena:
    """Make an arena whose first generation is whole, and whose accesses are noted from here on."""
    sizes = ArenaSizes.at_least(100, 100)
    memory = memoryview(bytearray(sizes.total))
    header = (arena_module.MAGIC, arena_module.LAYOUT_VERSION, sizes.generation, sizes.small)
    struct.pack_into("4Q", memory, 0, *header)
    watched: Any = Watched(memory, accesses)
    made = Arena(watched)
    made.generations[0].commit(COMMIT)
    accesses.clear()
    return made


def are_in_order(accesses: Sequence[Access], first: Access, then: Access) -> bool:
    """Whether every processor sees the first access before the other one, which comes next in the program.

    A release is seen after all that is before it, an acquisition before all that is after it, and an acquisition does
    not overtake a release.
    """
    begin = accesses.index(first)
    between = [kind for kind, _ in accesses[begin : accesses.index(then, begin)]]
    return "release" in between and "acquire" in between[between.index("release") :]


def test_data_change_only_while_their_place_is_seen_not_to_be_whole(noted: Arena, accesses: list[Access]) -> None:
    place = noted.generations[0]
    place.invalidate()
    accesses.append(("store", HEADER_BYTES))
    assert are_in_order(accesses, ("store", CHECK), ("store", HEADER_BYTES))
    del accesses[:-1]
    place.commit(COMMIT)
    assert are_in_order(accesses, ("store", HEADER_BYTES), ("store", CHECK))


def test_data_are_read_between_two_looks_at_the_words(noted: Arena, accesses: list[Access]) -> None:
    place = noted.generations[0]
    assert place.read() == COMMIT
    accesses.append(("load", HEADER_BYTES))
    assert are_in_order(accesses, ("load", CHECK), ("load", HEADER_BYTES))
    del accesses[:-1]
    assert place.still_has(COMMIT)
    assert are_in_order(accesses, ("load", HEADER_BYTES), ("load", CHECK))


def test_each_side_says_what_it_does_before_it_looks_what_the_other_does(noted: Arena, accesses: list[Access]) -> None:
    noted.protect({(2, 7)})
    noted.generations[0].read()
    assert are_in_order(accesses, ("store", PROTECTED + 2), ("load", CHECK))
    noted.protect(())
    for step, place in enumerate(noted.generations, 1):
        place.commit(replace(COMMIT, step=step))
    accesses.clear()
    assert noted.begin_generation(4) is noted.generations[0]
    assert are_in_order(accesses, ("store", CHECK), ("load", PROTECTED))
