"""A device that does later what it was given: what is saved is the state of a step that it has come to, or nothing."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator

import pytest
import torch

from tests.support.kept_script import Script
from tests.support.programs import TIMEOUT_S, wait_until
from workerlib.keep import intervals
from workerlib.keep.channel_messages import NotSaved, Saved
from workerlib.keep.small_state import copy

LAST = 7
"""The step before is saved at an interval."""


class Device:
    """A thread that does one thing after the other, while the host goes on."""

    def __init__(self) -> None:
        self._given: queue.Queue[Callable[[], object] | None] = queue.Queue()
        self._end = threading.Event()
        self._end.set()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()
        self.broken = False

    def _work(self) -> None:
        while (call := self._given.get()) is not None:
            call()

    def give(self, call: Callable[[], object]) -> None:
        """Do this when all that was given before is done."""
        self._given.put(call)

    def note_end(self) -> None:
        """Put a mark behind all that was given."""
        self._end = threading.Event()
        self.give(self._end.set)

    def has_ended(self, within_s: float | None) -> bool:
        """Wait for the mark."""
        if self.broken:
            raise RuntimeError("an illegal memory access was encountered")
        return self._end.wait(within_s)

    def copy(self, to: list[torch.Tensor], of: list[torch.Tensor]) -> None:
        """Copy beside what was given."""
        copy(to, of)

    def close(self) -> None:
        """End the thread."""
        self._given.put(None)
        self._thread.join(TIMEOUT_S)


@pytest.fixture
def device() -> Iterator[Device]:
    started = Device()
    yield started
    started.close()


@pytest.mark.parametrize("trouble", ["", "stuck", "broken"])
def test_what_is_saved_at_a_break_is_a_step_that_the_device_has_come_to(
    script: Script, device: Device, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    monkeypatch.setattr(intervals, "SHARE_MAX", 1e6)  # each step is saved from the fifth one on
    weights, release = torch.zeros(3), threading.Event()
    with script.runs({"weights": weights}) as (_, kept):
        kept._saver._generations.order, kept._saver.at_intervals = device, True
        for step in range(LAST):
            kept._begin_change()
            device.give(lambda: weights.data.add_(1))
            kept.step(step)
            if not step:
                wait_until("memory", lambda: not kept._saver.memory.obstacle())
        kept._saver.interval.steps = intervals.STEPS_MAX
        kept._begin_change()
        if trouble == "stuck":
            device.give(lambda: release.wait(TIMEOUT_S))
        device.give(lambda: weights.data.add_(1))
        device.broken = trouble == "broken"
        kept.step(LAST)
        answer = script.save(kept)
        release.set()
    assert isinstance(answer, NotSaved if trouble else Saved), answer
    fresh = torch.zeros(3)
    with script.runs({"weights": fresh}) as (done, _):
        assert done == (LAST - 1 if trouble else LAST)
        assert fresh.tolist() == [done + 1] * 3
