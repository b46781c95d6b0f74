"""A rolling upgrade under a training job, in both orders; and an upgrade that goes too far, which is taken back."""

import signal
from collections.abc import Callable

import pytest

from coordinatord.protocol.messages import PROTOCOL_VERSION
from tests.support.cluster import Cluster, Round
from tests.support.lives import Lives
from tests.support.programs import wait_until
from tests.support.releases import LATER_ADDED, of_version

pytestmark = pytest.mark.slow

OLDER, NEWER = 1, max(added.version for added in LATER_ADDED)
"""The versions of the protocol before and after the upgrade."""

FLAGS = ("--nnodes", "2", "--max-restarts", "0")
"""A failure that the upgrade brings about would be charged, and end the job."""


def upgrade_coordinator(lives: Lives, cluster: Cluster, begun: Round) -> None:
    """Start the newer coordinator in place of the one that runs: the training does not notice."""
    lives.kill()
    cluster.coordinator = lives.start(prefix=of_version(NEWER))
    cluster.await_state(state="running", round=begun.number)
    assert len([round_ for round_ in cluster.rounds() if round_.number > begun.number]) == 0


def upgrade_node(cluster: Cluster, name: str, before: Round) -> Round:
    """Start the newer nodeclient in place of one that runs; its workers save, and all go on with it."""
    [node] = [node for node in cluster.nodes if node.name == name and node.process.poll() is None]
    node.signal(signal.SIGTERM)
    assert node.wait() == 143
    cluster.join(name, *FLAGS, prefix=of_version(NEWER))
    return cluster.await_round(2, after=before)


def await_versions(cluster: Cluster, **versions: int) -> None:
    """Wait until the nodes that the coordinator hears report these versions."""

    def look() -> bool:
        job = cluster.coordinator.job(cluster.job)
        return job is not None and {node["node"]: node["protocol"] for node in job["nodes"]} == versions

    wait_until(f"nodes that speak {versions}", look)
    cluster.await_state(state="running")


@pytest.mark.parametrize("first", ["coordinator", "nodes"])
def test_a_training_job_outlives_a_rolling_upgrade(
    make_lives: Callable[..., Lives], make_cluster: Callable[[Lives], Cluster], first: str
) -> None:
    older = of_version(OLDER)
    lives = make_lives(prefix=older)
    cluster = make_cluster(lives)
    for name in "ab":
        cluster.join(name, *FLAGS, prefix=older)
    now = cluster.await_round(2)
    cluster.await_state(state="running")

    if first == "coordinator":
        upgrade_coordinator(lives, cluster, now)
        await_versions(cluster, a=OLDER, b=OLDER)
    now = upgrade_node(cluster, "a", now)
    if first == "coordinator":
        await_versions(cluster, a=NEWER, b=OLDER)
    now = upgrade_node(cluster, "b", now)
    if first == "nodes":
        cluster.await_state(state="running")
        upgrade_coordinator(lives, cluster, now)
    await_versions(cluster, a=NEWER, b=NEWER)

    now.finish()
    assert [node.wait() for node in cluster.nodes[-2:]] == [0, 0]
    assert cluster.await_state(state="succeeded")["restarts"]["used"] == 0


@pytest.mark.long
def test_an_upgrade_that_goes_too_far_is_an_outage_which_the_old_release_heals(
    make_lives: Callable[..., Lives], make_cluster: Callable[[Lives], Cluster]
) -> None:
    lives = make_lives()
    cluster = make_cluster(lives)
    nodes = cluster.join_all("ab", *FLAGS)
    begun = cluster.await_round(2)
    cluster.await_state(state="running")

    lives.kill()
    far = NEWER + 1
    other = lives.start(prefix=of_version(far))
    theirs = f"{far}, {far - 1}, {far - 2}"
    words = f"the coordinator supports protocol {theirs}, this node {PROTOCOL_VERSION}: install"
    for node in nodes:
        node.await_line(f"not let in by .*: {words}.*; the workers go on, and stop in \\d+ s if it is not back")
    newcomer = Cluster(other, "another").join("c")
    assert newcomer.wait() == 77
    assert f"refused by the coordinator: {words}" in newcomer.output
    newcomer.close()

    lives.kill()
    cluster.coordinator = lives.start()
    cluster.await_state(state="running", round=begun.number)
    begun.finish()
    assert [node.wait() for node in nodes] == [0, 0]
    assert len(list(cluster.rounds())) == 1
