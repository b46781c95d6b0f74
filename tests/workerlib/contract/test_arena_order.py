"""What another processor may see of an arena: a lock is released and acquired between any two accesses in order."""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Self

import pytest

from workerlib.contract import arena as arena_module
from workerlib.contract.arena import HEADER_BYTES, HEADER_WORDS, Arena, ArenaSizes, Commit

COMMIT = Commit(step=7, round=2, length=40, rank=1, world_size=3, shard=0, shards=1, serial=1)

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
def arena(accesses: list[Access]) -> Arena:
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


def test_data_change_only_while_their_place_is_seen_not_to_be_whole(arena: Arena, accesses: list[Access]) -> None:
    place = arena.generations[0]
    place.invalidate()
    accesses.append(("store", HEADER_BYTES))
    assert are_in_order(accesses, ("store", CHECK), ("store", HEADER_BYTES))
    del accesses[:-1]
    place.commit(COMMIT)
    assert are_in_order(accesses, ("store", HEADER_BYTES), ("store", CHECK))


def test_data_are_read_between_two_looks_at_the_words(arena: Arena, accesses: list[Access]) -> None:
    place = arena.generations[0]
    assert place.read() == COMMIT
    accesses.append(("load", HEADER_BYTES))
    assert are_in_order(accesses, ("load", CHECK), ("load", HEADER_BYTES))
    del accesses[:-1]
    assert place.still_has(COMMIT)
    assert are_in_order(accesses, ("load", HEADER_BYTES), ("load", CHECK))


def test_each_side_says_what_it_does_before_it_looks_what_the_other_does(arena: Arena, accesses: list[Access]) -> None:
    arena.protect({(2, 7)})
    arena.generations[0].read()
    assert are_in_order(accesses, ("store", PROTECTED + 2), ("load", CHECK))
    arena.protect(())
    for step, place in enumerate(arena.generations, 1):
        place.commit(replace(COMMIT, step=step))
    accesses.clear()
    assert arena.begin_generation(4) is arena.generations[0]
    assert are_in_order(accesses, ("store", CHECK), ("load", PROTECTED))
