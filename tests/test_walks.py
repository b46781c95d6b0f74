"""DESIGN.md prints the walks that real events take through the pure packages of the two machines.

`pytest --rewrite` prints them anew.
"""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from msgspec.structs import replace

from coordinatord.core.journal import Journal
from coordinatord.core.rounds.events import Reported
from coordinatord.protocol.messages import Goal, Phase
from nodeclient.core.events import DesiredReceived, Tick
from tests.support.bench import SETTINGS, Bench
from tests.support.builders import a_desired, a_failure
from tests.support.printed_tables import DESIGN, check_table
from tests.support.script import Stage
from tests.support.source import ROOT

PURE = ("coordinatord/core/", "nodeclient/core/")

Walk = dict[str, str]
"""The first line about the function by which each module is entered first, in the order of the modules."""


def entered_by(act: Callable[[], object]) -> Walk:
    """Carry something out; return the pure modules that are entered meanwhile, by public functions of theirs."""
    entered: Walk = {}

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        module = code.co_filename.removeprefix(f"{ROOT}/").removesuffix(".py")
        if event == "call" and module.startswith(PURE) and module not in entered and code.co_name[0] not in "_<":
            entered[module] = str(code.co_consts[0]).partition("\n")[0]  # its docstring: all public functions have one

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(before)
    return entered


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
    Journal().add(batch, stage.now)


def heartbeat() -> dict[str, Walk]:
    """Return the walk of a heartbeat, on the node and on the coordinator."""
    stage, bench = a_round(), Bench(replace(SETTINGS, keeps=True)).running()

    def beat() -> None:
        due = bench.agent.next_deadline()
        assert due is not None
        bench.agent.handle(Tick(), due)
        bench.agent.handle(DesiredReceived(a_desired(Goal.RUN)), due + 0.1)

    return {
        "heartbeat of a node": entered_by(beat),
        "heartbeat arrives": entered_by(lambda: report(stage, "n1", beat=True, steps=(5,))),
    }


def failure() -> dict[str, Walk]:
    """Return the walk of a worker's failure until the next round, by its events."""
    failing, other, stage = Bench().running(), Bench().running(), a_round()
    stop = a_desired(Goal.STOP)

    def begin_anew() -> None:
        other.submit(DesiredReceived(stop))
        other.all_exited(-15)
        other.swept()
        other.receive(Goal.RUN, round=2)
        other.started()

    walks = {
        "worker fails": entered_by(lambda: failing.exited(0, 1)),
        "failure arrives": entered_by(
            lambda: report(stage, "n1", beat=False, phase=Phase.STOPPING, failure=a_failure())
        ),
    }
    report(stage, "n1", phase=Phase.FAILED)
    walks["last node has stopped"] = entered_by(lambda: report(stage, "n2", beat=False, phase=Phase.STOPPED))
    return walks | {"node stops and starts": entered_by(begin_anew)}


def test_design_shows_both_walks_and_each_module_where_it_is_entered_first(*, rewrite: bool) -> None:
    known: set[str] = set()
    for event, walk in (heartbeat() | failure()).items():
        rows = [f"| `{module}` | {why} |" for module, why in walk.items() if module not in known]
        check_table(DESIGN, event, "| module | what it is entered for |", rows, rewrite=rewrite)
        known |= walk.keys()
