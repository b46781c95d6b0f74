"""The schedule of faults is fair, its score says what happened, and one launcher is really played."""

import importlib
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.programs import TIMEOUT_S

ROOT = Path(__file__).resolve().parents[1]

parts: Any = importlib.import_module("benchmarks.recovery_parts")
"""Not imported as others are, since for mypy it is a script beside other scripts."""
schedule: Any = importlib.import_module("benchmarks.rivals.schedule")
scores: Any = importlib.import_module("rivals.score")


def round_of(name: str, first: int, last: int, began: float, world_size: int = 2) -> Iterator[Any]:
    """Yield the marks of a round with a step each second."""
    for step in range(first, last + 1):
        for rank in range(world_size):
            yield parts.Mark("step", began + step - first, step, 10 + rank, rank, world_size, name)


def test_every_kind_of_deed_comes_as_often_as_any_other() -> None:
    drawn = schedule.draw(7, 18)
    assert set(Counter(planned.deed for planned in drawn).values()) == {3}
    assert drawn == schedule.draw(7, 18) != schedule.draw(8, 18)
    assert all(planned.after_s >= 4 and 0 <= planned.victim < 1 for planned in drawn)


def test_the_pause_the_steps_done_again_and_goodput_are_those_of_the_marks() -> None:
    deed, named = scores.Deed.KILL_WORKER, scores.Named
    # Steps 1 to 10 at 0 to 9 s, a pause, steps 8 to 10 again at 20 to 22 s, and new ones up to 20 at 32 s.
    marks = [*round_of("a", 1, 10, 0.0), *round_of("b", 8, 20, 20.0)]
    episode = scores.Episode(deed, 9.5, 32.0, by_hand=False, named=named.RIGHT)
    found = scores.score("x", marks, [episode])
    assert found.episodes == ((episode, 14.0, 3),), "from 9 to 23 s"
    assert (found.redone, found.by_hand, found.pauses(deed), found.named(named.RIGHT)) == (3, 0, [14.0], 1)
    assert found.goodput == pytest.approx(20 / 32)
    assert found.progress[-1] == (32.0, 20)
    assert scores.picture([found]).count("<polyline") == 1


@pytest.mark.long
def test_a_killed_worker_is_named_and_no_person_is_needed(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    flags = ("--launcher", "coordinatord", "--deeds", "1", "--seed", "2", "--json", str(report))
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.rivals", *flags],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=2 * TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    played, bug = json.loads(report.read_text())["runs"]
    [[episode, pause_s, _]] = played["episodes"]
    assert (episode["deed"], episode["by_hand"], episode["named"]) == ("worker killed", False, "the victim")
    assert pause_s > 0
    assert bug["rounds"] == 2
    assert bug["ended_s"] is not None
