"""Two coordinators, three members of etcd and a job, each on a host of its own: cuts and delays between any of them."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.etcd import needs_etcd
from tests.support.programs import wait_until
from tests.support.standbys import COORDINATORS, LEADS, MEMBERS, Pair, Site

pytestmark = [pytest.mark.slow, needs_etcd]

FIRST, SECOND = COORDINATORS

COMMIT_S = 0.5
"""How long each request to a slow etcd takes."""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """Start all of it, and a job that runs on two nodes."""
    with ExitStack() as stack:
        site = Site(stack, tmp_path)
        for name in "ab":
            site.pair.join(name)
        site.pair.await_running()
        yield site


def test_a_leader_cut_off_from_etcd_sends_its_nodes_away(site: Site) -> None:
    pair = site.pair
    site.part([FIRST], MEMBERS)
    pair.coordinators[0].await_line("another coordinator may lead")
    pair.coordinators[1].await_line(LEADS)
    pair.await_running()
    pair.coordinators[0].await_line("it is not known who leads")
    site.link.mend()
    pair.await_turn(1)
    pair.await_running()
    pair.finish()


@pytest.mark.long
def test_a_leader_cut_off_from_nodes_leads_on_until_somebody_stands_by(site: Site) -> None:
    pair = site.pair
    assert pair.coordinators[1].stop() == 0
    wait_until("the end of the standby", lambda: "no coordinator stands by" in pair.status())
    site.part([FIRST], ["a", "b"])
    wait_until("all nodes to be silent", lambda: "silent" in pair.status(on=FIRST))
    assert pair.last_role(0) == "leads"
    pair.start(1)
    pair.coordinators[0].await_line("no node is heard any more")
    pair.await_turn(1)
    pair.await_running()
    site.link.mend()
    pair.finish()


@pytest.mark.long
def test_with_a_slow_etcd_rounds_are_formed_and_the_leader_stays(tmp_path: Path) -> None:
    with ExitStack() as stack:
        site = Site(stack, tmp_path)
        pair = site.pair
        for coordinator in COORDINATORS:
            site.slow(coordinator, MEMBERS, COMMIT_S / 2)
        for name in "ab":
            pair.join(name)
        pair.await_running()
        _renewals(pair, 3)
        assert "cannot" not in "\n".join(pair.coordinators[0].lines)
        assert [pair.last_role(place) for place in (0, 1)] == ["leads", "stands by"]
        pair.finish()


def _renewals(pair: Pair, number: int) -> None:
    """Wait until the leader has renewed its lease so often: each time there is more of it left than before."""
    left_s, renewed = [0.0], 0

    def look() -> bool:
        nonlocal renewed
        now_s = pair.lease_s()
        renewed += now_s > left_s[-1]
        left_s.append(now_s)
        return renewed > number

    wait_until("the lease to be renewed", look)
