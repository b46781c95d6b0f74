"""Hosts that share nothing but a network: where they meet, and what happens when a cable is cut or a node killed."""

import asyncio
import json
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from coordinatord.core.rounds.policy import Policy
from coordinatord.core.rounds.values.records import NodeLost, RoundEnded, RoundFormed
from coordinatord.server import driver
from coordinatord.server.app import ListenAddress, serve
from coordinatord.store.database_store import MemoryStore
from tests.support.cluster import TRAINING, Node
from tests.support.histories import records_in
from tests.support.programs import BIN, TIMEOUT_S, USER_HOME, await_end, kill_quietly, run
from tests.support.sites import COORDINATOR, Site

pytestmark = pytest.mark.slow

SHORT = ("--heartbeat", "0.4")
"""A lease lasts 2 s."""


@pytest.fixture
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    """Yield hosts with a coordinator, to which a test may give flags."""
    with Site("abc", *SHORT, *getattr(request, "param", ())) as running:
        yield running


def restarts(site: Site, host: str) -> dict[str, Any]:
    """Return the restarts of the job, as a person on a host would see them."""
    asked = f"{site.address[COORDINATOR]}:{site.coordinator.port}"
    shown = run(*site.hosts.on(host), BIN / "nodeclient", "status", "--coord", asked, "--json")
    [job] = json.loads(shown.stdout)["jobs"]
    return dict(job["restarts"])


@pytest.mark.parametrize("site", [("--outage-grace", "0.5")], indirect=True, ids=["a short grace"])
def test_the_survivors_of_a_cut_cable_go_on_and_the_host_that_is_back_joins_them(site: Site) -> None:
    flags = ("--nnodes", "2:3", "--max-restarts", "1", "--stop-timeout", "1")
    nodes = {name: site.join(name, *flags, script="--mesh --family") for name in "abc"}
    before = site.cluster.await_round(3)
    assert {worker.address for worker in before.workers} == {site.address[before.nodes[0]]}
    victim = before.nodes[0]
    for node in nodes.values():
        node.await_event("connected", round=before.number)

    site.hosts.cut(victim)
    cut_at = time.monotonic()
    without = site.cluster.await_round(2, before, [name for name in nodes if name != victim])
    print(f"re-formed {time.monotonic() - cut_at:.1f} s after the cut, with a lease of 2 s")  # noqa: T201 - a figure
    assert {worker.address for worker in without.workers} == {site.address[without.nodes[0]]}
    assert without.restarts == {0}

    nodes[victim].await_line("out of touch with the coordinator for 0.5 s")
    [stale] = before.on(victim)
    for pid in (stale.pid, *stale.family):
        await_end(pid)

    site.hosts.mend(victim)
    assert site.cluster.await_round(3, without).restarts == {0}
    assert restarts(site, "a") == {"used": 0, "max": 1, "window_s": None}


@pytest.mark.long
@pytest.mark.parametrize("site", [("--outage-grace", "1")], indirect=True, ids=["a short grace"])
def test_workers_that_are_blocked_in_a_collective_by_a_cut_cable_are_not_waited_for(site: Site) -> None:
    flags = ("--nnodes", "2:3", "--join-timeout", "60")
    nodes = [site.join(name, *flags, command=TRAINING) for name in "abc"]
    first, second, third = sorted(nodes, key=lambda node: node.await_event("sum", sum=3)["rank"])
    after = first.await_event("sum", sum=3)["round"] + 1
    site.hosts.cut(first.name)
    rank_0 = second.await_event("sum", sum=2, round=after)
    assert rank_0["rank"] == 0
    assert rank_0["address"] == site.address[second.name]
    third.await_event("sum", sum=2, round=after)
    assert restarts(site, second.name)["used"] == 0
    kill_quietly(rank_0["pid"], signal.SIGUSR1)
    assert (second.wait(), third.wait()) == (0, 0)


def test_nodes_on_one_host_away_from_the_coordinator_meet_over_loopback(site: Site) -> None:
    site.join("a", "--nnodes", "2", name="1")
    site.join("a", "--nnodes", "2", name="2")
    assert {worker.address for worker in site.cluster.await_round(2).workers} == {"127.0.0.1"}


def test_a_named_interface_carries_the_training(site: Site) -> None:
    own = {"a": "10.99.0.1", "b": "10.99.0.2"}
    for host, address in own.items():
        for words in (
            "link add link eth0 name train0 type macvlan mode bridge",
            f"address add {address}/24 dev train0",
            "link set train0 up",
        ):
            assert run(*site.hosts.on(host), "ip", *words.split()).returncode == 0
    nodes = [site.join(host, "--nnodes", "2", "--interface", "train0", command=TRAINING) for host in own]
    first, second = sorted(nodes, key=lambda node: node.await_event("sum", sum=2)["rank"])
    rank_0 = first.await_event("sum", sum=2)
    assert rank_0["address"] == own[first.name]
    talking = run(*site.hosts.on(first.name), "ss", "--no-header", "--tcp", "--numeric").stdout.split()
    ends = {end.rpartition(":")[0].strip("[]").removeprefix("::ffff:") for end in talking if ":" in end}
    # To the coordinator it goes as before.
    assert ends == {*own.values(), site.address[first.name], site.address[COORDINATOR]}
    kill_quietly(rank_0["pid"], signal.SIGUSR1)
    assert (first.wait(), second.wait()) == (0, 0)


@pytest.mark.long
def test_an_address_that_its_user_names_is_the_one_that_others_are_given(site: Site) -> None:
    address = site.address["b"]
    site.join("b", "--nnodes", "2", "--advertise-addr", address, script="--mesh", name="1")
    site.join("a", "--nnodes", "2", script="--mesh", name="2").await_event("connected", address=address)


def test_an_address_that_leads_nowhere_fails_the_round_in_words_that_name_both_ends(site: Site) -> None:
    lost = "10.255.0.1"  # of no host here, and there is no route to it
    first = site.join("a", "--nnodes", "2", "--advertise-addr", lost)
    second = site.join("b", "--nnodes", "2", "--topology", "z")
    for node in (first, second):
        assert node.wait() == 69
        assert (
            f"could not start its workers: {lost}, offered by node a as its address, cannot be reached" in node.output
        )
        assert "see --advertise-addr of node a" in node.output


PATIENT = Policy(heartbeat_s=20.0, reconnect_grace_s=90.0)
"""Whatever else would end the wait takes longer than the test."""


@contextmanager
def nodes(coordinator: str, names: str) -> Iterator[list[Node]]:
    """Start nodes that train together."""
    with ExitStack() as stack:
        flags = ("--nnodes", f"2:{len(names)}", "--max-restarts", "0")
        started = []
        for name in names:
            started.append(Node(name, "job", coordinator, flags, TRAINING))
            stack.callback(started[-1].close)
        yield started


@pytest.mark.long
async def test_a_node_that_is_killed_while_it_trains_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its closed connection and the errors of its peers' collectives prove that it is gone."""
    monkeypatch.delenv(USER_HOME)  # the coordinator in this process serves everybody
    monkeypatch.setattr(driver, "WRITE_WITHIN_S", TIMEOUT_S)
    store = MemoryStore()
    async with serve(ListenAddress("127.0.0.1", 0), PATIENT, store) as server:
        with nodes(server.url.rpartition("/")[2], "abc") as started:
            events = [await asyncio.to_thread(node.await_event, "sum", sum=3) for node in started]
            known = len(await records_in(store))  # a first round may have formed before all had come
            [gone] = [node for node, event in zip(started, events, strict=True) if event["rank"] == 0]
            gone.process.kill()
            left = [node for node in started if node is not gone]
            again = [await asyncio.to_thread(node.await_event, "sum", sum=2) for node in left]
            [first] = [event for event in again if event["rank"] == 0]
            kill_quietly(first["pid"], signal.SIGUSR1)
            assert [await asyncio.to_thread(node.wait) for node in left] == [0, 0]
    records = (await records_in(store))[known:]
    [lost] = [record for record in records if isinstance(record, NodeLost)]
    assert (lost.node, lost.reason.partition(":")[0]) == (gone.name, "its workers are gone")
    [ended] = [record for record in records if isinstance(record, RoundEnded)]
    assert not ended.charged
    assert ended.reason.startswith(f"lost node {gone.name}; workers on ")
    assert len([record for record in records if isinstance(record, RoundFormed)]) == 1
