"""Bounded runs of all targets of the fuzzer: its first inputs, and some that Hypothesis draws, the same ones each time.

`make fuzz` goes on from there for as long as asked, led by coverage.
"""

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.fuzz.fingerprint import fingerprint
from tests.fuzz.targets import TARGETS
from tests.support.builders import a_coordinator

EXAMPLES = {"coordinator": 40, "agent": 40}
"""How many inputs Hypothesis draws for a target, if not `USUAL`."""

USUAL = 100


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_whatever_is_sent_leads_to_nothing_but_typed_errors(name: str) -> None:
    target = TARGETS[name]
    for seed in target.seeds():
        target.play(seed)

    @settings(max_examples=EXAMPLES.get(name, USUAL), suppress_health_check=list(HealthCheck))
    @given(st.binary(max_size=600))
    @example(b"")
    def holds(data: bytes) -> None:
        target.play(data)

    holds()


def test_the_sequences_of_the_machines_are_whole_lives() -> None:
    for name in ("coordinator", "agent"):
        assert min(TARGETS[name].play(seed) or 0 for seed in TARGETS[name].seeds()) >= 20


def test_states_are_told_apart_by_whatever_differs() -> None:
    machine = a_coordinator()
    before = fingerprint(machine)
    assert fingerprint(machine) == before
    machine.cluster.durable.forgotten["e-9"] = "succeeded"
    assert fingerprint(machine) != before
