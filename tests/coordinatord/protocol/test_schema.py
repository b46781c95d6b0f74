"""Tuples in a schema: a list of data becomes a tuple of its checked items, within bounds; threads may check at once."""

import subprocess
import sys
from typing import Annotated

import pytest
from msgspec import Meta

from coordinatord.protocol.schema import SchemaError, Strict, check, printable
from tests.support.programs import TIMEOUT_S

Small = Annotated[int, Meta(ge=0, le=9)]


class Point(Strict, frozen=True):
    """An item that is a message itself."""

    x: Small


class Drawing(Strict, frozen=True):
    """Tuples of numbers, of messages, one that may be missing, and one of numbers that may be."""

    sizes: Annotated[tuple[Small, ...], Meta(max_length=3)]
    points: Annotated[tuple[Point, ...], Meta(min_length=1, max_length=2)]
    more: Annotated[tuple[Small, ...], Meta(min_length=1, max_length=2)] | None
    gaps: Annotated[tuple[Small | None, ...], Meta(max_length=3)]
    name: Annotated[str, printable(8)] = ""


def test_a_list_becomes_a_tuple_of_checked_items() -> None:
    drawing = check({"sizes": [1, 2, 3], "points": [{"x": 4}], "more": None, "gaps": [6, None, 7]}, Drawing, "drawing")
    assert drawing == Drawing((1, 2, 3), (Point(4),), None, (6, None, 7))
    assert check({"sizes": [], "points": [{"x": 4}], "more": [5], "gaps": []}, Drawing, "drawing").more == (5,)


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("name", "a\x1b[2J", "drawing.name: expected text of printable characters"),
        ("sizes", None, "drawing.sizes: expected a list, not null"),
        ("sizes", "123", "drawing.sizes: expected a list, not text"),
        ("sizes", {"0": 1}, "drawing.sizes: expected a list, not an object"),
        ("sizes", [1, 2, 3, 4], "drawing.sizes: expected a list of length <= 3"),
        ("sizes", [1, 10], "drawing.sizes[1]: expected a whole number <= 9"),
        ("sizes", [1, None], "drawing.sizes[1]: expected a whole number, not null"),
        ("points", [], "drawing.points: expected a list of length >= 1"),
        ("points", [{"x": 1}, 2], "drawing.points[1]: expected an object, not a whole number"),
        ("points", [{"x": 1}, {"x": "2"}], "drawing.points[1].x: expected a whole number, not text"),
        ("points", [{"y": 1}], "drawing.points[0]: unknown field `y`"),
        ("points", [{}], "drawing.points[0]: missing field `x`"),
        ("more", [], "drawing.more: expected a list of length >= 1"),
        ("gaps", None, "drawing.gaps: expected a list, not null"),
        ("gaps", [None, 1, 10], "drawing.gaps[2]: expected a whole number <= 9"),
        ("gaps", [None, False], "drawing.gaps[1]: expected a whole number or null, not true or false"),
    ],
)
def test_anything_else_is_refused_by_its_place(field: str, value: object, error: str) -> None:
    body: dict[str, object] = {"sizes": [], "points": [{"x": 1}], "more": None, "gaps": []}
    with pytest.raises(SchemaError) as caught:
        check(body | {field: value}, Drawing, "drawing")
    assert str(caught.value) == error


def test_a_list_is_measured_before_its_items_are_looked_at() -> None:
    with pytest.raises(SchemaError, match="of length <= 3"):
        check({"sizes": ["wrong"] * 1_000_000, "points": [{"x": 1}], "more": None, "gaps": []}, Drawing, "drawing")


FIRST_USES = """
import sys
import threading
from typing import Annotated

from msgspec import defstruct

from coordinatord.protocol.schema import check, printable

THREADS = 8
kinds = []
for _ in range(200):
    inner = defstruct("Inner", [("text", Annotated[str, printable(8)])])
    kinds.append(defstruct("Outer", [("inner", inner), ("more", tuple[inner, ...])]))
together = threading.Barrier(THREADS)


def use():
    for kind in kinds:
        together.wait()
        check({"inner": {"text": "a"}, "more": [{"text": "b"}]}, kind, "map")


sys.setswitchinterval(1e-6)
threads = [threading.Thread(target=use) for _ in range(THREADS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""
"""Threads that use new classes for the first time, each class all at the same moment."""


@pytest.mark.slow
def test_threads_that_use_a_class_for_the_first_time_at_once_do_not_crash() -> None:
    command = [sys.executable, "-c", FIRST_USES]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    assert (ended.returncode, ended.stderr) == (0, "")
