"""A query only reads: no function of `queries`, entered from outside, changes the state."""

import pickle  # noqa: TID251 - nothing is loaded from it
import sys
from functools import cached_property
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from coordinatord.core.keeping.resume_plan import _Holders
from coordinatord.core.rounds import queries
from tests.support.golden import SCRIPTS, staged
from tests.support.script import Stage

ROOM = str(Path(queries.__file__).parent)


class Watch:
    """Compares the state before and after a query, as a profiling function."""

    def __init__(self, stage: Stage) -> None:
        self._cluster = stage.coordinator.cluster
        self._seen: set[tuple[object, object]] = set()
        self._within: FrameType | None = None
        self._before: object = None
        self.changing: set[str] = set()

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """Take in a call or a return."""
        if event == "call" and self._within is None and frame.f_code.co_filename.startswith(ROOM):
            assert frame.f_back is not None
            way = frame.f_code, frame.f_back.f_code
            if way not in self._seen:  # the first call in a script meets most of what could change
                self._seen.add(way)
                self._within, self._before = frame, pickle.dumps(self._cluster)
        elif event == "return" and frame is self._within:
            if pickle.dumps(self._cluster) != self._before:
                self.changing.add(frame.f_code.co_qualname)
            self._within = None


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_query_changes_nothing(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in [*vars(_Holders).items()]:
        if isinstance(value, cached_property):  # holders never change, so they may keep what was worked out
            monkeypatch.setattr(_Holders, name, property(value.func))
    stage = Stage()
    watch = Watch(stage)
    lines = [line for line in script.read_text().splitlines() if line and line[0] not in " #"]
    for line in lines:
        if line.startswith("policy "):
            stage = staged(line)
            watch = Watch(stage)
            continue
        before = sys.getprofile()
        sys.setprofile(watch)
        try:
            stage.play(line)
        finally:
            sys.setprofile(before)
    assert not watch.changing
