"""What a node knows by itself when its coordinator is gone."""

from __future__ import annotations

import pytest

from coordinatord.protocol.messages import Goal
from nodeclient.core.effects import Exit, Level
from nodeclient.core.endings import REPORT_WITHIN_S
from tests.support.bench import SETTINGS, Bench
from tests.support.builders import an_assignment

OTHERS = {"assignment": an_assignment(group_world_size=2, world_size=4)}


def succeed(bench: Bench) -> None:
    bench.all_exited(0)
    bench.swept()


def test_the_only_node_of_a_round_knows_that_the_job_is_done() -> None:
    bench = Bench().running()
    bench.close("Connection refused")
    succeed(bench)
    bench.advance(REPORT_WITHIN_S - 0.01)
    assert not bench.agent.exited, "a coordinator that is started again would receive it"
    bench.advance(0.02)
    said = bench.last(Exit)
    assert (said.code, said.level) == (0, Level.INFO)
    text = "all workers succeeded, and this node was the only one of its round: the job is done"
    assert said.message.startswith(f"{text}; the coordinator could not be notified: Connection refused. ")
    assert said.message.endswith("takes this node for lost, and a spare of the job, if there is one, trains on: end it")


def test_it_looks_no_longer_than_its_settings_allow() -> None:
    bench = Bench(SETTINGS.__class__(workers=1, join_timeout_s=5.0, stop_timeout_s=1.0)).running()
    bench.close()
    succeed(bench)
    bench.advance(5.01)
    assert bench.last(Exit).code == 0


def test_a_coordinator_that_is_back_gives_the_verdict() -> None:
    bench = Bench().running()
    bench.close()
    succeed(bench)
    bench.advance(REPORT_WITHIN_S / 2)
    bench.open()
    bench.receive(Goal.EXIT)
    assert bench.last(Exit).message == "all workers succeeded"


def test_one_node_of_several_does_not_know_of_the_others() -> None:
    bench = Bench().running(**OTHERS)
    bench.close()
    succeed(bench)
    bench.advance(SETTINGS.join_timeout_s - 0.01)
    assert not bench.agent.exited
    bench.advance(0.02)
    assert bench.last(Exit).code == 69
    assert "whether those of the others did is not known" in bench.last(Exit).message


@pytest.mark.parametrize("planned", [False, True])
def test_what_follows_a_round_that_was_being_stopped_is_not_known(planned: bool) -> None:
    bench = Bench().running()
    bench.all_exited(0)
    bench.receive(Goal.STOP, planned=planned)
    bench.swept()
    bench.close()
    bench.advance(SETTINGS.join_timeout_s + 0.01)
    assert bench.last(Exit).code == 69
