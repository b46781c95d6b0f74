"""Loss, delay and cuts between hosts: a bad network loses nobody, and a cut in one direction is acted on."""

import time

import pytest

from tests.support.programs import await_end, wait_until
from tests.support.sites import COORDINATOR, LinkedSite

pytestmark = pytest.mark.slow

SHORT = ("--heartbeat", "0.2")
"""A lease lasts 1 s."""

LEASE_S = 5.0
"""The default lease."""

SEED = 388
"""No node loses more than two packets in a row. Where one and three retransmissions of it are lost, TCP waits for
longer than the lease."""


@pytest.mark.long
def test_30_percent_loss_and_200_ms_delay_lose_nobody_at_the_default_lease() -> None:
    with LinkedSite("abc", seed=SEED) as site:
        for name in "abc":
            site.join(name, "--nnodes", "2:3", script="--mesh")
        begun = site.cluster.await_round(3)
        site.coordinator.await_line(f"all workers are started .*round={begun.number}")
        # `tc netem` on a node's interface does the same: it shapes what the node sends.
        site.link.shape(delay_s=0.2, loss=0.3, towards=COORDINATOR)
        degraded_at = time.monotonic()
        wait_until("two leases in the bad network", lambda: time.monotonic() > degraded_at + 2 * LEASE_S)
        site.link.shape(delay_s=0.0, loss=0.0)
        assert site.link.set_way("a", COORDINATOR)["lost"] > 0
        assert max(round_.number for round_ in site.cluster.rounds()) == begun.number
        assert " lost" not in site.coordinator.output


@pytest.mark.parametrize(("source", "target"), [("c", COORDINATOR), (COORDINATOR, "c")])
def test_a_cut_in_one_direction_is_a_loss_and_the_node_ends_its_workers(source: str, target: str) -> None:
    """`tests/e2e/test_hosts.py` cuts both."""
    flags = ("--nnodes", "2:3", "--max-restarts", "1", "--stop-timeout", "1")
    with LinkedSite("abc", *SHORT, "--outage-grace", "3") as site:
        nodes = {name: site.join(name, *flags, script="--family") for name in "abc"}
        begun = site.cluster.await_round(3)
        site.coordinator.await_line("all workers are started")

        site.link.cut(source, target)
        without = site.cluster.await_round(2, after=begun, nodes="ab")
        assert without.restarts == {0}
        [stale] = begun.on("c")
        nodes["c"].await_line("out of touch with the coordinator for 3 s: .* its workers stop")
        for pid in (stale.pid, *stale.family):
            await_end(pid)

        site.link.mend()
        assert site.cluster.await_round(3, after=without).restarts == {0}
