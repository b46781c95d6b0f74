"""Workers that were killed before they had saved their state are named in the verdict on their round."""

import pytest

from coordinatord.core.rounds.values.records import REASON_MAX, RoundEnded
from coordinatord.protocol.fields import MESSAGE_MAX
from coordinatord.protocol.messages import Killed, Phase
from tests.support.builders import a_failure
from tests.support.script import Stage, play

LOST = "killed, as they had not ended in time, so what they had not saved is lost"


def end(stage: Stage, killed: dict[str, Killed]) -> str:
    """Let the workers of all nodes end, of some of them by force; return the verdict that is recorded."""
    for name in stage.puppets:
        stage.report(name, phase=Phase.STOPPED, killed=killed.get(name))
    [ended] = stage.records(RoundEnded)
    return ended.reason


@pytest.mark.parametrize("asked", ["ask restart default", "ask stop default", "ask drain n2", "leave n1"])
def test_the_end_of_a_round_names_whose_state_is_lost(asked: str) -> None:
    stage = play("join n1 n2 min=2 max=2", "running n1 n2", asked)
    verdict = end(stage, {"n1": Killed((0,), 1, 30.0)})
    lost = f"; {LOST}: rank 0 on node n1 (within 30 s)"
    assert verdict.endswith(lost)
    if asked == "ask stop default":
        stage.play("advance 1s")
        assert stage.run.durable.reason.endswith(lost), "and so does the end of the job"


@pytest.mark.parametrize(("number", "others"), [(3, "1 more node"), (5, "3 more nodes")])
def test_of_many_a_few_are_named_and_all_are_counted(number: int, others: str) -> None:
    nodes = " ".join(f"n{index + 1}" for index in range(number))
    stage = play(f"join {nodes} min={number} max={number}", f"running {nodes}", "ask restart default")
    verdict = end(stage, dict.fromkeys(stage.puppets, Killed(tuple(range(8)), 16, 2.5)))
    named = ", ".join(f"ranks 0, 1, 2, 3, 4, 5, 6, 7 and 8 more on node {name} (within 2.5 s)" for name in ("n1", "n2"))
    assert verdict.endswith(f"; {LOST}: {named} and on {others}")


def test_the_longest_of_such_sentences_can_be_recorded() -> None:
    names = ["a" * 127 + "1", "a" * 127 + "2"]
    stage = play(f"join {' '.join(names)} min=2 max=2", f"running {' '.join(names)}")
    failure = a_failure(message="m" * MESSAGE_MAX, error="e" * MESSAGE_MAX)
    stage.report(names[0], phase=Phase.STOPPING, failure=failure)
    many = Killed(tuple(10**6 - number for number in range(8)), 4_096, 86_400.0)
    verdict = end(stage, dict.fromkeys(names, many))
    assert LOST in verdict
    assert len(verdict) < REASON_MAX / 2, "the next round's reason begins with it"
