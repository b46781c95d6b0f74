"""Workers that were killed before they had saved their state are named in the verdict on their round."""

import pytest
from msgspec.structs import replace

from coordinatord.core.rounds.values.records import REASON_MAX, RoundEnded
from coordinatord.protocol.fields import MESSAGE_MAX
from coordinatord.protocol.messages import Killed
from tests.support.builders import a_failure
from tests.support.script import Stage

LOST = "killed, as they had not ended in time, so what they had not saved is lost"


def a_pair(*names: str) -> Stage:
    """Let two nodes train."""
    stage = Stage()
    for name in names or ("n1", "n2"):
        stage.play(f"join {name} min=2 max=2")
    stage.play(f"running {' '.join(names or ('n1', 'n2'))}")
    return stage


def end(stage: Stage, killed: dict[str, Killed]) -> str:
    """Let the workers of both end, of some of them by force; return the verdict that is recorded."""
    for name, workers in killed.items():
        stage.puppets[name].observed = replace(stage.puppets[name].observed, killed=workers)
    stage.play(f"stopped {' '.join(stage.puppets)}")
    [ended] = stage.records(RoundEnded)
    return ended.reason


@pytest.mark.parametrize("asked", ["ask restart default", "ask stop default", "ask drain n2", "leave n1"])
def test_the_end_of_a_round_names_whose_state_is_lost(asked: str) -> None:
    stage = a_pair()
    stage.play(asked)
    verdict = end(stage, {"n1": Killed((0,), 1, 30.0)})
    assert verdict.endswith(f"; {LOST}: rank 0 on node n1 (within 30 s)")


def test_of_many_a_few_are_named_and_all_are_counted() -> None:
    stage = Stage()
    for number in range(1, 6):
        stage.play(f"join n{number} min=5 max=5")
    stage.play("running n1 n2 n3 n4 n5", "ask restart default")
    verdict = end(stage, {name: Killed(tuple(range(8)), 16, 2.5) for name in list(stage.puppets)})
    named = ", ".join(f"ranks 0, 1, 2, 3, 4, 5, 6, 7 and 8 more on node {name} (within 2.5 s)" for name in ("n1", "n2"))
    assert verdict.endswith(f"; {LOST}: {named} and on 3 more nodes")


def test_the_longest_of_such_sentences_can_be_recorded() -> None:
    names = ["a" * 127 + "1", "a" * 127 + "2"]
    stage = a_pair(*names)
    failure = a_failure(message="m" * MESSAGE_MAX, error="e" * MESSAGE_MAX)
    stage.puppets[names[0]].observed = replace(stage.puppets[names[0]].observed, failure=failure)
    stage.play(f"stopping {names[0]}")
    many = Killed(tuple(10**6 - number for number in range(8)), 4_096, 86_400.0)
    verdict = end(stage, dict.fromkeys(names, many))
    assert LOST in verdict
    assert len(verdict) < REASON_MAX / 2, "the next round's reason begins with it"
