"""Deadlines behave as a plain dict of times would, only faster."""

from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from coordinatord.core.rounds.values.deadline_heap import SLACK, DeadlineHeap

KEYS = st.sampled_from("abcde")
TIMES = st.integers(0, 40).map(float)
"""Whole numbers, so that shifting back and forth is exact."""


class DeadlinesAgainstDict(RuleBasedStateMachine):
    """Does the same to `DeadlineHeap` and to a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.deadlines = DeadlineHeap[str]()
        self.model: dict[str, float] = {}

    @rule(key=KEYS, at=TIMES)
    def set(self, key: str, at: float) -> None:
        """Give a key a deadline."""
        self.deadlines.set(key, at)
        self.model[key] = at

    @rule(key=KEYS)
    def discard(self, key: str) -> None:
        """Take it away."""
        self.deadlines.discard(key)
        self.model.pop(key, None)

    @rule()
    def clear(self) -> None:
        """Take all away."""
        self.deadlines.clear()
        self.model.clear()

    @rule(by=st.integers(-10, 10).map(float))
    def shift(self, by: float) -> None:
        """Move all."""
        self.deadlines.shift(by)
        self.model = {key: at + by for key, at in self.model.items()}

    @rule(now=TIMES)
    def pop_due(self, now: float) -> None:
        """Take out what is due."""
        due = self.deadlines.pop_due(now)
        assert sorted(due) == sorted(key for key, at in self.model.items() if at <= now)
        assert [self.model[key] for key in due] == sorted(self.model[key] for key in due)
        for key in due:
            del self.model[key]

    @invariant()
    def knows_the_same(self) -> None:
        """Check that all queries have the same answers."""
        assert self.deadlines.first == min(self.model.values(), default=None)
        assert {key: self.deadlines.get(key) for key in "abcde"} == {key: self.model.get(key) for key in "abcde"}


TestDeadlinesAgainstDict = DeadlinesAgainstDict.TestCase
TestDeadlinesAgainstDict.settings = settings(max_examples=30)


def test_a_heartbeat_adds_no_entry() -> None:
    deadlines = DeadlineHeap[str]()
    for beat in range(1000):
        deadlines.set("node", beat + 5.0)
        deadlines.pop_due(float(beat))
    assert len(deadlines._heap) == 1


def take_away(deadlines: DeadlineHeap[int], number: int, how: Callable[[DeadlineHeap[int], int], None]) -> None:
    """Give a key a deadline, bring it forward, and take it away."""
    deadlines.set(number, 2.0 + number)
    deadlines.set(number, 1.0 + number)
    how(deadlines, number)


AGAIN: dict[str, Callable[[DeadlineHeap[int], int], object]] = {
    "brought forward": lambda deadlines, number: deadlines.set(-1, 10_000.0 - number),
    "taken away": lambda deadlines, number: take_away(deadlines, number, DeadlineHeap.discard),
    "taken away with all": lambda deadlines, number: take_away(deadlines, number, lambda all_, _: all_.clear()),
    "of one key, taken away": lambda deadlines, _: take_away(deadlines, -1, DeadlineHeap.discard),
}


@pytest.mark.parametrize("act", AGAIN.values(), ids=AGAIN)
def test_a_deadline_that_changes_again_and_again_costs_no_memory(
    act: Callable[[DeadlineHeap[int], int], object],
) -> None:
    deadlines = DeadlineHeap[int]()
    deadlines.set(-1, 1.0)
    for number in range(10_000):
        act(deadlines, number)
    assert len(deadlines._heap) <= 2 + SLACK


@pytest.mark.parametrize("by", [0.1, 1 / 3, 1e6 + 0.7])
def test_the_first_deadline_is_due_then_in_spite_of_rounding(by: float) -> None:
    deadlines = DeadlineHeap[str]()
    deadlines.set("node", 5.3)
    deadlines.shift(by)
    assert (first := deadlines.first) is not None
    assert deadlines.pop_due(first) == ["node"]
