"""What the end of one node of `nodeclient up` means for the others, and the exit code of all of it."""

import pytest

from nodeclient.core.fleet import END_WITHIN_S, LOST, Fleet, why_not_ready

STOP_TIMEOUT_S = 30.0


@pytest.mark.parametrize(
    ("codes", "code"),
    [
        ((0, 0), 0),
        ((1, 1), 1),
        ((LOST, 0), 0),
        ((LOST, 3), 3),
        ((143, 3), 3),
        ((64, 143), 64),
        ((130, 130), 130),
        ((LOST, 143), 143),
        ((LOST, LOST), LOST),
    ],
)
def test_the_exit_code_is_that_of_the_job(codes: tuple[int, int], code: int) -> None:
    fleet = Fleet(["a", "b"], 2, STOP_TIMEOUT_S)
    for host, ended_with in zip("ab", codes, strict=True):
        fleet.record_end(host, ended_with, 0.0)
    assert not fleet.live
    assert fleet.exit_code == code


def test_nodes_that_can_form_no_round_any_more_are_ended_once_they_had_time_to_hear_of_the_failure() -> None:
    fleet = Fleet(["a", "b", "c"], 2, STOP_TIMEOUT_S)
    fleet.record_end("a", LOST, 0.0)
    with_enough = fleet.stop_at
    fleet.record_end("b", 1, 100.0)
    assert (with_enough, fleet.stop_at) == (None, 100.0 + END_WITHIN_S + STOP_TIMEOUT_S)
    assert fleet.time_out()
    fleet.record_end("c", 143, 200.0)
    assert not fleet.time_out(), "a second signal would leave no time to save"


@pytest.mark.parametrize(
    ("first", "signalled", "code"), [(LOST, False, 75), (143, False, 75), (LOST, True, 143), (3, False, 3)]
)
def test_it_may_be_tried_again_if_only_too_few_hosts_were_left(first: int, signalled: bool, code: int) -> None:
    fleet = Fleet(["a", "b"], 2, STOP_TIMEOUT_S)
    fleet.record_end("a", first, 0.0)
    assert fleet.time_out()
    if signalled:
        fleet.record_signal(15)
    fleet.record_end("b", 143, 100.0)
    assert fleet.exit_code == code


def test_nodes_that_were_asked_to_end_are_not_asked_again_since_that_would_leave_no_time_to_save() -> None:
    fleet = Fleet(["a", "b", "c"], 3, STOP_TIMEOUT_S)
    fleet.record_end("a", LOST, 0.0)
    assert fleet.record_signal(2)
    fleet.record_end("b", 130, 1.0)
    assert fleet.stop_at is None
    assert not fleet.time_out()


def test_a_node_that_a_signal_has_killed_before_or_as_it_began_is_not_lost() -> None:
    fleet = Fleet(["a", "b"], 2, STOP_TIMEOUT_S)
    fleet.record_signal(2)
    assert fleet.exit_code == 130
    for host in "ab":
        fleet.record_end(host, LOST, 0.0)
    assert fleet.exit_code == 130


def test_after_the_third_signal_nobody_is_waited_for() -> None:
    fleet = Fleet(["a"], 1, STOP_TIMEOUT_S)
    assert [fleet.record_signal(15) for _ in range(3)] == [True, True, False]


@pytest.mark.parametrize(("needed", "code"), [(2, 0), (4, 1)], ids=["a success", "other hosts are needed too"])
def test_an_end_that_ends_nobody_else(needed: int, code: int) -> None:
    fleet = Fleet(["a", "b"], needed, STOP_TIMEOUT_S)
    assert (fleet.record_end("a", code, 0.0) is None) == (code == 0)
    assert fleet.stop_at is None


def test_an_end_is_told_with_how_many_are_left() -> None:
    fleet = Fleet(["a", "b"], 1, STOP_TIMEOUT_S)
    assert fleet.record_end("a", LOST, 0.0) == (
        "the connection is lost, or the node was killed, or it has ended with exit code 255; 1 of 2 hosts are left"
    )
    assert fleet.record_end("b", 3, 0.0) == "the node has ended with exit code 3; 0 of 2 hosts are left"


def test_a_host_that_is_not_ready_is_told_with_the_remedy() -> None:
    assert "ssh -o BatchMode=yes gpu9 true" in why_not_ready("gpu9", LOST, is_here=False, serves=False)
    assert "ssh" not in why_not_ready("gpu9", LOST, is_here=True, serves=True), "this host is reached without it"
    lacking = why_not_ready("gpu9", 127, is_here=False, serves=False)
    assert "exit code 127" in lacking
    assert "--remote-python" in lacking
    told = why_not_ready("gpu9", 1, is_here=False, serves=True)
    assert "its coordinator did not start (exit code 1, see above), or it has no nodeclient" in told
