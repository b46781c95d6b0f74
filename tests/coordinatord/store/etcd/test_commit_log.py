"""Values that are merged say the same history, whatever is added, dropped and merged in whichever order."""

import random
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinatord.store.etcd import commit_log
from coordinatord.store.etcd.commit_log import MERGED_VALUES_MAX, CommitLog, CommitValue, pack, rows_of, unpack
from coordinatord.store.interface import UnreadableStoreError
from coordinatord.store.row_codec import Row


def a_row(seq: int) -> Row:
    return seq, 1.0, "job", "e-1", "NodeJoined", f"n{seq}", None, "{}"


class World:
    """What etcd holds, the log of it, and the rows that live."""

    def __init__(self) -> None:
        self.log = CommitLog()
        self.values: dict[int, CommitValue] = {}
        self.living: dict[int, Row] = {}
        self._seq = self._number = 0

    def commit(self, added: int, dropped: list[int]) -> None:
        """Add so many rows, and drop those at these places among the living."""
        living = list(self.living)
        gone = sorted({living[place % len(living)] for place in dropped}) if living else []
        rows = [a_row(self._seq + number) for number in range(1, added + 1)]
        self._seq += added
        self._number = number = self._number + 1
        self.values[number] = CommitValue(tuple(rows), tuple(gone))
        self.log.add(number, 10 * len(rows), [row[0] for row in rows], gone)
        self.living.update({row[0]: row for row in rows})
        for seq in gone:
            del self.living[seq]

    def merge(self, *, written: bool = True, answered: bool = True) -> None:
        """Do what the log advises, as a transaction would. It may fail, before it is `written` or `answered`."""
        merger = self.log.next_merger()
        if merger is None or not written:
            return
        for number in [number for number in self.values if merger.first <= number <= merger.last]:
            del self.values[number]
        self.values[merger.last] = CommitValue(tuple(self.living[seq] for seq in merger.rows), merger.dropped)
        self.values = dict(sorted(self.values.items()))
        if answered:
            self.log.merge(merger, 10 * len(merger.rows))

    @property
    def said(self) -> dict[int, Row]:
        """The rows that the values say."""
        return {row[0]: row for row in rows_of(self.values.values())}


COMMITS = st.lists(st.tuples(st.integers(0, 5), st.lists(st.integers(0, 50), max_size=6)), max_size=60)


@given(COMMITS)
def test_the_history_is_the_same_before_and_after_every_merger(commits: list[tuple[int, list[int]]]) -> None:
    world = World()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commit_log, "WASTE_ROWS", 2)
        patch.setattr(commit_log, "MERGED_VALUES_MAX", 4)
        for added, dropped in commits:
            world.commit(added, dropped)
            assert world.said == world.living
            world.merge()
            assert world.said == world.living
    assert len(world.log._values) == len(world.values)


@pytest.mark.parametrize("seed", range(8))
def test_no_row_is_lost_if_mergers_fail_and_some_are_written_all_the_same(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance, world = random.Random(seed), World()  # noqa: S311 - a schedule, no secret
    monkeypatch.setattr(commit_log, "WASTE_ROWS", 0)
    monkeypatch.setattr(commit_log, "MERGED_VALUES_MAX", 4)
    for _ in range(60):
        world.commit(chance.randint(0, 5), [chance.randint(0, 50) for _ in range(chance.randint(0, 6))])
        written, answered = chance.choice([(True, True), (True, False), (False, False)])
        world.merge(written=written, answered=answered)
        assert world.said == world.living


def test_what_is_stored_stays_within_a_few_times_what_lives() -> None:
    world = World()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commit_log, "WASTE_ROWS", 20)
        for _ in range(2_000):
            world.commit(3, [0, 1, 2] if len(world.living) > 30 else [])
            world.merge()
        stored = sum(len(value.rows) for value in world.values.values())
        drops = sum(len(value.dropped) for value in world.values.values())
    assert stored <= 3 * (len(world.living) + 20) + 3 * MERGED_VALUES_MAX
    assert drops <= 2 * stored
    assert len(world.values) <= 3 * MERGED_VALUES_MAX


def test_a_value_is_read_back_as_it_was() -> None:
    rows = (a_row(7), (8, 2.5, "", "", "NodeDrained", "ä", None, '{"reason": "ü"}'))
    assert unpack(pack(rows, [3, 5]), 1) == CommitValue(rows, (3, 5))


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"nonsense",
        pack([a_row(1)], [])[:-3],
        zlib.compress(b"[]"),
        zlib.compress(b'{"rows": [[1]], "dropped": []}'),
        zlib.compress(b'{"rows": [], "dropped": ["x"]}'),
        zlib.compress(b"nonsense"),
    ],
)
def test_a_damaged_value_is_named(value: bytes) -> None:
    with pytest.raises(UnreadableStoreError, match=r"commit 9 is damaged .*: restore etcd from a snapshot"):
        unpack(value, 9)
