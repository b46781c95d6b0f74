"""A machine that was written down in the middle of a history, and built again, decides as the one that goes on."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from coordinatord.core.machine import Coordinator
from coordinatord.core.rounds.policy import Policy
from coordinatord.runtime.flight_recorder import Subject
from coordinatord.runtime.object_graph import attributes, dump, load, snapshot
from coordinatord.server.driver import RECORDED as COORDINATOR
from nodeclient.core.agent import Agent
from nodeclient.core.agent_settings import Settings
from nodeclient.shell.participation import RECORDED as AGENT
from tests.sim.history import hanging_world, small_world
from tests.sim.world import World

STIMULI = 10
"""The stimuli to a twin, which is then made anew: often enough that each kind of stimulus comes soon after it was."""


class Twins:
    """Has every machine of one class accompanied by one that was written down a little earlier."""

    def __init__(self, patch: pytest.MonkeyPatch, kind: type, subject: Subject, *blank: Any) -> None:
        self.answers = 0
        self._subject = subject
        self._make = partial(kind, *blank)
        self._handle = kind.handle  # type: ignore[attr-defined]
        self._twins: dict[int, tuple[object, object, int]] = {}
        """Each machine with its twin, and the stimuli to that. A machine that is here keeps its id to itself."""

        def handle(machine: object, event: object, now: float) -> object:
            return self._both(machine, event, now)

        patch.setattr(kind, "handle", handle)

    def _both(self, machine: object, event: object, now: float) -> object:
        _, twin, taken = self._twins.get(id(machine), (None, None, STIMULI))
        if taken == STIMULI:
            twin, taken = self._written_down(machine), 0
        self._twins[id(machine)] = machine, twin, taken + 1
        answer, again = self._handle(machine, event, now), self._handle(twin, event, now)
        assert answer == again
        self.answers += 1
        return answer

    def _written_down(self, machine: object) -> object:
        copy, _ = snapshot(machine, without=self._subject.code, most=10_000)
        plain = json.loads(json.dumps(dump(list(attributes(copy)))))
        twin = self._make()
        for name, value in load(plain, self._subject.packages):
            setattr(twin, name, value)
        return twin


@pytest.mark.parametrize(("play", "seed"), [*((small_world, seed) for seed in range(8)), (hanging_world, 1)])
def test_what_was_written_down_goes_on_as_the_machine_itself(
    play: Callable[[int], World], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinators = Twins(monkeypatch, Coordinator, COORDINATOR, Policy(), "")
    agents = Twins(monkeypatch, Agent, AGENT, Settings(1, 1.0, 1.0, 1.0), 1, 0.0)
    play(seed)
    assert min(coordinators.answers, agents.answers) > STIMULI
