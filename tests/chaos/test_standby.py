"""Two coordinators over one etcd: whatever happens to the one that leads, no worker restarts and no rank changes."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.cluster import TRAINING
from tests.support.etcd import needs_etcd
from tests.support.programs import BIN, run, wait_until
from tests.support.standbys import LEADS, STANDS_BY, Pair, on_this_host

pytestmark = [pytest.mark.slow, needs_etcd]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Close everything in the end."""
    with ExitStack() as held:
        yield held


@pytest.fixture
def pair(request: pytest.FixtureRequest, stack: ExitStack, tmp_path: Path) -> Pair:
    """Start two coordinators over one member of etcd, or as many as a test wants, and a job on two nodes."""
    pair = on_this_host(stack, tmp_path, getattr(request, "param", 1))
    for name in "ab":
        pair.join(name)
    pair.await_running()
    return pair


def test_a_leader_that_is_killed_is_followed_by_the_standby_over_tls(stack: ExitStack, tmp_path: Path) -> None:
    pair = on_this_host(stack, tmp_path, home=tmp_path / "home")
    for name in "ab":
        pair.join(name)
    pair.await_running()
    first, second = pair.coordinators
    first.process.kill()
    first.wait()
    second.await_line(LEADS)
    pair.await_running()
    second.await_line("listening on https://")
    pair.start(0)
    pair.coordinators[0].await_line("stands by")
    pair.finish()


def test_a_leader_that_is_told_to_steps_down_and_stands_by(pair: Pair) -> None:
    first, second = pair.coordinators
    leads, stands_by = pair.addresses
    wait_until("both to be named", lambda: f"{leads} leads; standing by: {stands_by}" in pair.status())
    pair.step_down(on="a")
    second.await_line(LEADS)
    first.await_line("the leader key is gone")
    first.await_line("stands by: ")
    pair.await_running()
    pair.finish()


@pytest.mark.long
def test_a_leader_that_was_paused_stands_by_once_it_goes_on(pair: Pair) -> None:
    first, second = pair.coordinators
    first.signal(signal.SIGSTOP)
    second.await_line(LEADS)
    pair.await_running()
    first.signal(signal.SIGCONT)
    first.await_line(STANDS_BY)
    pair.await_running()
    pair.finish()


@pytest.mark.long
@pytest.mark.parametrize("pair", [3], indirect=True)
def test_of_three_members_of_etcd_one_may_die_and_of_two_nobody_leads(pair: Pair) -> None:
    pair.etcd.kill(0)
    pair.await_running()
    assert not any("leads no more" in line or "stands by" in line for line in pair.coordinators[0].lines)
    pair.etcd.kill(1)
    pair.coordinators[0].await_line("it is not known who leads")
    pair.etcd.start(0)
    pair.await_running()
    pair.finish()


def test_without_etcd_jobs_run_on_and_go_on_with_it(pair: Pair) -> None:
    pair.etcd.kill(0)
    for coordinator in pair.coordinators:
        coordinator.await_line("it is not known who leads")
    pair.etcd.start(0)
    wait_until(
        "one to lead again",
        lambda: sum(sum(LEADS in line for line in coordinator.lines) for coordinator in pair.coordinators) >= 2,
    )
    pair.await_running()
    pair.finish()


@pytest.mark.long
def test_without_etcd_a_worker_that_fails_waits_for_it_and_people_are_told_why(
    stack: ExitStack, tmp_path: Path
) -> None:
    pair = on_this_host(stack, tmp_path)
    for name in "ab":
        pair.join(name, more=("--max-restarts", "1"))
    pair.await_running()
    pair.etcd.kill(0)
    for coordinator in pair.coordinators:
        coordinator.await_line("it is not known who leads")
    os.kill(pair.started[0]["pid"], signal.SIGKILL)
    pair.nodes[0].await_line("stands by, and nobody leads: etcd")
    asked = run(BIN / "nodeclient", "status", "--coord", pair.coord, "--insecure")
    assert "stands by, and nobody leads: etcd" in asked.stderr
    assert "is coordinatord running there" not in asked.stderr
    assert pair.rounds == [1, 1]
    pair.etcd.start(0)
    wait_until("another round", lambda: sorted(pair.rounds) == [1, 1, 2, 2])
    pair.await_running()
    for event in pair.started[2:]:
        os.kill(event["pid"], signal.SIGUSR1)
    assert [node.wait() for node in pair.nodes] == [0, 0]


@pytest.mark.long
def test_everything_is_restarted_one_after_the_other_under_a_training(stack: ExitStack, tmp_path: Path) -> None:
    pair = on_this_host(stack, tmp_path, 3)
    nodes = [pair.join(name, TRAINING) for name in "ab"]
    nodes[0].await_event("sum", sum=2)
    pair.await_running()
    for number in range(3):
        pair.etcd.kill(number)
        pair.etcd.start(number)
        pair.etcd.await_healthy(number)
    for place in (0, 1):  # the second one leads by then
        assert pair.coordinators[place].stop() == 0
        pair.start(place)
        pair.await_turn(1 - place)
        pair.await_running()
    sums = len(nodes[0].events)
    wait_until("training to go on", lambda: len(nodes[0].events) > sums)
    assert {event["round"] for node in nodes for event in node.events} == {1}
    assert len({event["pid"] for node in nodes for event in node.events}) == 2
    first = next(event for event in nodes[0].events + nodes[1].events if event["rank"] == 0)
    os.kill(first["pid"], signal.SIGUSR1)
    assert [node.wait() for node in nodes] == [0, 0]


QUOTA_BYTES = 4 * 1024 * 1024


@pytest.mark.long
def test_an_etcd_that_is_full_stops_no_worker_and_says_what_to_do(stack: ExitStack, tmp_path: Path) -> None:
    pair = on_this_host(stack, tmp_path, 1, "--quota-backend-bytes", str(QUOTA_BYTES))
    pair.join("a")
    wait_until("a node to wait", lambda: "forming" in pair.status())
    pair.etcd.fill()
    node = pair.join("b")  # without it there is no round
    pair.coordinators[0].await_line("nothing can be recorded: .*out of space: make room or raise its quota")
    health = run("curl", "--silent", f"http://{pair.addresses[0]}/healthz")
    assert json.loads(health.stdout)["status"] == "cannot record"
    assert "etcdctl alarm disarm" in json.loads(health.stdout)["reason"]
    node.await_line("cannot record|out of space")
    assert pair.rounds == []
    pair.etcd.make_room()
    pair.coordinators[0].await_line("records can be written again")
    pair.await_running()
    assert all(pair.last_role(place) == role for place, role in enumerate(("leads", "stands by")))
    pair.finish()
