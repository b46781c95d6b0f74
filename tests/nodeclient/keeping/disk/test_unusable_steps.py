"""A step that could not be read is tried again after a while, unless it is damaged."""

import math

import pytest

from coordinatord.protocol.kept_state import KeptStep
from nodeclient.keeping.disk.known_steps import RETRY_MAX_S, RETRY_S, UnusableSteps

OLD, NEW = ("r-1", KeptStep(1, 4)), ("r-1", KeptStep(1, 8))


def test_a_damaged_step_is_never_tried_again() -> None:
    steps = UnusableSteps()
    steps.record(NEW, "digest", 0.0, may_pass=False)
    assert steps.is_barred(NEW, 1e9)
    assert not steps.is_barred(OLD, 0.0)


def test_pauses_after_errors_of_the_file_system_grow_to_a_limit() -> None:
    steps, now, pauses = UnusableSteps(), 0.0, []
    for _ in range(7):
        steps.record(NEW, "EIO", now, may_pass=True)
        again = next(at for at in range(int(now), int(now + RETRY_MAX_S) + 2) if not steps.is_barred(NEW, at))
        pauses.append(again - now)
        now = again
    assert pauses == [RETRY_S * 2**number for number in range(5)] + [RETRY_MAX_S] * 2


@pytest.mark.parametrize(("there", "why"), [((NEW, OLD), "digest"), ((OLD,), "EIO"), ((), "")])
def test_what_is_wrong_with_the_newest_step_that_is_there_is_said(
    there: tuple[tuple[str, KeptStep], ...], why: str
) -> None:
    steps = UnusableSteps()
    steps.record(OLD, "EIO", 0.0, may_pass=True)
    steps.record(NEW, "digest", 0.0, may_pass=False)
    assert steps.why(there, RETRY_S - 1) == why
    assert steps.why((OLD,), RETRY_S) == ""
    assert steps.why((NEW,), math.nextafter(RETRY_S, math.inf)) == "digest"


def test_a_step_that_is_gone_is_forgotten() -> None:
    steps = UnusableSteps()
    steps.record(NEW, "its checksum is wrong", 0.0, may_pass=False)
    steps.forget_gone([NEW])
    assert steps.is_barred(NEW, 1.0)
    steps.forget_gone([])
    assert not steps.is_barred(NEW, 1.0)
