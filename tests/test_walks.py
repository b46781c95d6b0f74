"""The walks in DESIGN.md are those that real events take through the pure rooms of the two machines."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType
from typing import Any

from coordinatord.core.events import Reported
from coordinatord.core.journal import Journal
from coordinatord.protocol.messages import Goal, Phase
from nodeclient.core.events import DesiredReceived, Tick
from tests.support.bench import SETTINGS, Bench
from tests.support.builders import a_desired, a_failure
from tests.support.script import Stage
from tests.support.source import ROOT

PURE = ("coordinatord/core/", "nodeclient/core/")

NO_MACHINE = "nodeclient/core/lingering"
"""It is pure as well, but it is the shell that asks it."""


def walk(title: str) -> list[list[str]]:
    """Return the pure modules of a walk in DESIGN.md, in the order in which they are listed: a list for each table."""
    text = (ROOT / "coordinatord" / "DESIGN.md").read_text().split(f"### {title}\n")[1].split("\n##")[0]
    tables = text.split("\n|---|---|---|\n")[1:]
    listed = [re.findall(r"^\| \d+ \| `([\w/]+)` \|", table, re.MULTILINE) for table in tables]
    return [[module for module in modules if module.startswith(PURE) and module != NO_MACHINE] for modules in listed]


@contextmanager
def recorded() -> Iterator[list[str]]:
    """Collect the pure modules that are entered, in order; one that is entered several times is there as often."""
    entered: list[str] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        module = frame.f_code.co_filename.removeprefix(f"{ROOT}/").removesuffix(".py")
        if event == "call" and module.startswith(PURE) and entered[-1:] != [module]:
            entered.append(module)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield entered
    finally:
        sys.setprofile(before)


def entered_by(act: Callable[[], object]) -> list[str]:
    """Carry something out; return the pure modules that are entered meanwhile."""
    with recorded() as entered:
        act()
    return entered


def are_in_order(modules: list[str], entered: list[str]) -> bool:
    """Whether these modules are among those that were entered, in this order."""
    rest = iter(entered)
    return all(module in rest for module in modules)


def a_round(steps: int = 4) -> Stage:
    """Let two nodes train, and come to their next heartbeats."""
    stage = Stage()
    for node in ("n1", "n2"):
        stage.play(f"join {node} min=2 max=2")
    stage.play("running n1 n2")
    for step in range(steps):
        stage.play(f"step n1 {step}")
        stage.play("advance 1s")
    return stage


def report(stage: Stage, node: str, **changes: Any) -> None:
    """Report a node's state, with some changes, and have what follows made durable."""
    puppet = stage.puppets[node]
    puppet.observed = replace(puppet.observed, **changes)
    batch = stage.coordinator.handle(Reported(puppet.session, puppet.observed), stage.now)
    Journal().take(batch, stage.now)


def test_a_heartbeat_enters_these_rooms_first_in_this_order_and_no_other() -> None:
    stage, bench = a_round(), Bench(replace(SETTINGS, keeps=True)).running()
    due = bench.agent.next_deadline()
    assert due is not None
    ways = [
        entered_by(lambda: bench.agent.handle(Tick(), due)),
        entered_by(lambda: report(stage, "n1", beat=True, steps=(5,))),
        entered_by(lambda: bench.agent.handle(DesiredReceived(a_desired(Goal.RUN)), due + 0.1)),
    ]
    for listed, entered in zip(walk("A heartbeat"), ways, strict=True):
        assert list(dict.fromkeys(listed)) == list(dict.fromkeys(entered))
        assert are_in_order(listed, entered), "what is listed again"


def test_a_failure_of_a_worker_enters_these_rooms_in_this_order() -> None:
    failing, other, stage = Bench().running(), Bench().running(), a_round()
    stop = a_desired(Goal.STOP)

    def end() -> None:
        other.receive_message(stop)
        other.all_exited(-15)
        other.swept()

    def begin() -> None:
        other.receive(Goal.RUN, round=2)
        other.started()

    ways = [
        entered_by(lambda: failing.exited(0, 1)),
        entered_by(lambda: report(stage, "n1", beat=False, phase=Phase.STOPPING, failure=a_failure())),
        entered_by(end),
    ]
    report(stage, "n1", phase=Phase.FAILED)
    ways += [entered_by(lambda: report(stage, "n2", beat=False, phase=Phase.STOPPED)), entered_by(begin)]
    for listed, entered in zip(walk("A worker's failure, until the next round"), ways, strict=True):
        on_this_side = [module for module in listed if module.split("/")[0] == entered[0].split("/")[0]]
        assert are_in_order(on_this_side, entered), (listed, entered)
