"""What a node knows by itself when its coordinator is gone."""

from __future__ import annotations

import pytest

from coordinatord.protocol.messages import Goal, RefusalCode
from nodeclient.core.effects import Exit, Level
from nodeclient.core.endings import REPORT_WITHIN_S
from nodeclient.core.events import EmbeddedCoordinatorEnded
from tests.support.bench import SETTINGS, Bench
from tests.support.builders import OUTAGE_GRACE_S, an_assignment

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


@pytest.mark.parametrize(("sizes", "code"), [((2, 1), 0), ((3, 2, 1), 0), ((1, 2), 69), ((2, 2), 69)])
def test_what_counts_is_the_size_of_the_round_in_which_the_workers_succeeded(sizes: tuple[int, ...], code: int) -> None:
    bench = Bench()
    bench.open()
    for number, size in enumerate(sizes, start=1):
        bench.receive(Goal.RUN, round=number, assignment=an_assignment(group_world_size=size, world_size=size))
        bench.started()
        if number < len(sizes):
            bench.receive(Goal.STOP, round=number)  # a node of this round was lost or released, or another one arrived
            bench.all_exited(-15)
            bench.swept()
    bench.close()
    succeed(bench)
    bench.advance(SETTINGS.join_timeout_s + 0.01)
    assert bench.last(Exit).code == code


def test_workers_that_end_well_because_their_node_was_cut_off_have_not_succeeded() -> None:
    bench = Bench().running()
    bench.close()
    bench.exited(0, 0)
    bench.advance(OUTAGE_GRACE_S + 0.01)
    bench.exited(1, 0)
    bench.swept()
    bench.advance(SETTINGS.join_timeout_s + 0.01)
    assert bench.last(Exit).code == 69


def test_a_node_that_is_to_take_part_in_another_round_knows_nothing_of_the_last_one() -> None:
    bench = Bench().running()
    succeed(bench)
    bench.receive(Goal.WAIT)  # its success came too late
    bench.close()
    bench.advance(SETTINGS.join_timeout_s + 0.01)
    assert bench.last(Exit).code == 69


def test_a_coordinator_that_turns_it_away_for_now_cannot_be_notified() -> None:
    bench = Bench().running()
    bench.close()
    succeed(bench)
    bench.open()
    bench.refused(RefusalCode.DRAINED, "n1 is drained", retry=True)
    bench.advance(REPORT_WITHIN_S + 0.01)
    assert bench.last(Exit).code == 0
    assert "could not be notified: n1 is drained" in bench.last(Exit).message


def test_the_user_who_ends_it_meanwhile_is_obeyed() -> None:
    bench = Bench().running()
    bench.close()
    succeed(bench)
    bench.leave()
    assert bench.last(Exit).code == 143


@pytest.mark.parametrize("swept_before", [False, True])
def test_it_does_not_wait_for_a_coordinator_that_was_its_own_child_and_has_ended(swept_before: bool) -> None:
    bench = Bench().running()
    bench.all_exited(0)
    if swept_before:
        bench.swept()
    bench.submit(EmbeddedCoordinatorEnded("killed by SIGKILL"))
    if not swept_before:
        assert not bench.agent.exited
        bench.swept()
    assert bench.last(Exit).code == 0
    assert "this node was the only one of its round: the job is done" in bench.last(Exit).message


def test_without_that_child_nothing_else_is_known_to_have_succeeded() -> None:
    working = Bench().running()
    working.submit(EmbeddedCoordinatorEnded("killed by SIGKILL"))
    working.all_exited(0)
    working.swept()
    one_of_several = Bench().running(**OTHERS)
    succeed(one_of_several)
    one_of_several.submit(EmbeddedCoordinatorEnded("killed by SIGKILL"))
    stopped = Bench().running()
    stopped.all_exited(0)
    stopped.receive(Goal.STOP, planned=True)
    stopped.submit(EmbeddedCoordinatorEnded("killed by SIGKILL"))
    stopped.swept()
    for bench in (working, one_of_several, stopped):
        assert bench.last(Exit).code == 69
        assert bench.last(Exit).message.startswith("the coordinator that this node brought along has ended")
