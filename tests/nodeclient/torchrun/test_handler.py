"""What torchrun's agent gets from the rendezvous handler, with a real coordinator and without torchrun processes."""

import json
import secrets
import signal
import sys
from pathlib import Path
from typing import NoReturn

import pytest
from torch.distributed.elastic.agent.server import api
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousTimeoutError,
)

from nodeclient.torchrun.stores import ROLE_INFO, TERMINAL_STATE
from tests.support.cluster import QUICK, Cluster, Coordinator
from tests.support.handlers import Job, master, meet, ranks
from tests.support.programs import TIMEOUT_S, Program, clean_environ
from tests.support.torchruns import NEEDS_BACKENDS, await_node

TREE = Path(__file__).parents[3]

ASSIGNED_RANKS = "torchelastic/assigned_ranks/"
"""The key of torch, before another's group rank, under which group rank 0 writes that agent's ranks."""

pytestmark = [pytest.mark.slow, NEEDS_BACKENDS]


def role_info(rank: int, workers: int) -> str:
    return json.dumps({"role": "default", "rank": rank, "local_world_size": workers})


def get_signal() -> NoReturn:
    raise SignalException("process 1 got signal: 15", signal.SIGTERM)


def test_nodes_of_a_round_have_ranks_one_master_and_one_store(job: Job) -> None:
    a, b, c = (job.agent("3") for _ in range(3))
    infos = meet(a, b, c)
    assert sorted(info.rank for info in infos) == [0, 1, 2]
    assert {info.world_size for info in infos} == {3}
    assert len({master(info) for info in infos}) == 1
    assert a.handler.use_agent_store
    infos[0].store.set("key", "value")
    assert infos[1].store.get("key") == b"value"
    assert infos[2].store.multi_get(["key", "key"]) == [b"value", b"value"]
    assert [agent.handler.num_nodes_waiting() for agent in (a, b, c)] == [0, 0, 0]


def test_a_node_that_arrives_is_let_in_and_the_others_keep_their_ranks(job: Job) -> None:
    a, b = job.agent(), job.agent()
    before = meet(a, b)
    c = job.agent()
    third = c.rendezvous()
    a.await_call()
    b.await_call()
    after = meet(a, b)
    assert [info.rank for info in after] == [info.rank for info in before]
    assert (third.result(TIMEOUT_S).rank, third.result().world_size) == (2, 3)
    assert master(after[0]) != master(before[0])
    assert a.handler.num_nodes_waiting() == b.handler.num_nodes_waiting() == 0


def test_each_round_has_a_store_of_its_own(job: Job) -> None:
    a = job.agent("1")
    [first] = meet(a)
    first.store.set("key", "of the first round")
    [second] = meet(a)
    assert not second.store.check(["key"])


def test_who_asks_for_a_round_unbidden_has_had_a_failure(job: Job, coordinator: Coordinator) -> None:
    a, b = job.agent("2"), job.agent("2")
    before = meet(a, b)
    failed = a.rendezvous()
    b.await_call()
    [after] = meet(b)
    assert (failed.result(TIMEOUT_S).rank, after.rank) == (before[0].rank, before[1].rank)
    assert coordinator.await_job(job.name, round=2)["restarts"]["used"] == 1


def test_who_asks_when_called_has_had_none(job: Job, coordinator: Coordinator) -> None:
    a, b = job.agent(), job.agent()
    meet(a)
    other = b.rendezvous()
    a.await_call()
    meet(a)
    other.result(TIMEOUT_S)
    assert coordinator.await_job(job.name, round=2)["restarts"]["used"] == 0


def test_one_that_shuts_down_closes_nothing_for_the_others(job: Job) -> None:
    a, b, c = (job.agent() for _ in range(3))
    meet(a, b, c)
    assert a.handler.shutdown()
    assert a.handler.shutdown()
    assert a.handler.is_closed()
    b.await_call()
    c.await_call()
    assert {world_size for _, world_size in ranks(b, c)} == {2}
    assert not b.handler.is_closed()
    with pytest.raises(RendezvousClosedError, match="has left it"):
        a.rendezvous().result(TIMEOUT_S)


def test_one_that_is_shut_down_for_a_signal_has_not_failed(job: Job, coordinator: Coordinator) -> None:
    a, b = job.agent("2"), job.agent("2")
    meet(a, b)
    try:
        get_signal()
    except SignalException:
        a.handler.shutdown()
    b.await_call()
    assert sorted(ranks(b, job.agent("2"))) == [(0, 2), (1, 2)]
    assert coordinator.await_job(job.name, round=2)["restarts"]["used"] == 0


def test_one_that_is_dropped_leaves_at_once(job: Job) -> None:
    a, b = job.agent(), job.agent()
    meet(a, b)
    job.agents.remove(a)
    a.drop()
    b.await_call()
    assert ranks(b) == [(0, 1)]


def test_one_that_is_closed_gets_no_further_round(job: Job) -> None:
    a = job.agent()
    assert not a.handler.is_closed()
    meet(a)
    a.handler.set_closed()  # type: ignore[no-untyped-call]  # it is torch that says nothing of types
    assert a.handler.is_closed()
    with pytest.raises(RendezvousClosedError):
        a.rendezvous().result(TIMEOUT_S)


def test_one_that_never_began_can_be_shut_down(job: Job) -> None:
    a = job.agent()
    assert a.handler.num_nodes_waiting() == 0
    assert a.handler.shutdown()


def test_the_job_succeeds_when_all_are_in_the_exit_barrier(job: Job, coordinator: Coordinator) -> None:
    a, b = job.agent("2"), job.agent("2")
    meet(a, b)
    first = a.finish()
    await_node(coordinator, job.name, "succeeded")
    assert not first.done()
    b.finish().result(TIMEOUT_S)
    first.result(TIMEOUT_S)
    assert coordinator.await_job(job.name, state="succeeded")["restarts"]["used"] == 0


def test_one_that_succeeded_leaves_when_another_fails(job: Job) -> None:
    a, b = job.agent(), job.agent()
    meet(a, b)
    success = a.finish()
    while ranks(b) != [(0, 1)]:
        b.await_call()  # the node that leaves may have been given another round before it could report that
    success.result(TIMEOUT_S)
    assert a.handler.is_closed()


def test_a_spare_waits_takes_over_and_is_released(job: Job, coordinator: Coordinator) -> None:
    a, b, spare = (job.agent("2") for _ in range(3))
    left, stays = ranks(a, b)
    third = spare.rendezvous()
    await_node(coordinator, job.name, "spare")
    a.handler.shutdown()
    b.await_call()
    assert ranks(b) == [stays]
    assert third.result(TIMEOUT_S).rank == left[0]

    fourth = job.agent("2").rendezvous()
    await_node(coordinator, job.name, "spare")
    for success in [b.finish(), spare.finish()]:
        success.result(TIMEOUT_S)
    with pytest.raises(SystemExit) as released:
        fourth.result(TIMEOUT_S)
    assert released.value.code == 0


@pytest.mark.long
def test_one_that_waits_in_vain_gives_up_alone(job: Job) -> None:
    early = job.agent("2", join_timeout="3")
    with pytest.raises(RendezvousTimeoutError, match=r"not enough nodes .* --rdzv-conf join_timeout"):
        early.rendezvous().result(TIMEOUT_S)
    early.handler.shutdown()
    assert sorted(ranks(job.agent("2"), job.agent("2"))) == [(0, 2), (1, 2)]


def test_a_coordinator_that_is_not_there_is_named(job: Job) -> None:
    job.endpoint = "127.0.0.1:1"
    with pytest.raises(RendezvousConnectionError, match=r"no coordinator reached within 1 s: 127\.0\.0\.1:1"):
        job.agent(join_timeout=1).rendezvous().result(TIMEOUT_S)


def test_of_several_coordinators_one_is_enough(job: Job) -> None:
    job.endpoint = f"127.0.0.1:1,{job.endpoint}"
    assert ranks(job.agent("1")) == [(0, 1)]


@pytest.mark.long
def test_a_master_that_cannot_be_reached_is_named_and_the_node_gives_up(job: Job) -> None:
    # The address is reserved for documentation: nothing answers there. It is tried for four leases.
    hasty = Coordinator(*QUICK, "--heartbeat", "0.2")
    job.endpoint = hasty.endpoint
    with pytest.raises(
        RendezvousConnectionError, match=r"192\.0\.2\.1, offered by node .* cannot be reached .*--local-addr"
    ):
        job.agent("1", local_addr="192.0.2.1").rendezvous().result(TIMEOUT_S)
    hasty.close()


def test_nodeclients_and_torchruns_do_not_mix(job: Job, cluster: Cluster) -> None:
    meet(job.agent("1:2"))
    with Cluster(cluster.coordinator, job.name).join("n", "--nnodes", "1:2") as node:
        node.await_line(r"this node \(n\) is started by nodeclient, but .* was first, by torchrun")
        assert node.wait() == 77

    cluster.join("n", "--nnodes", "1:2").await_event("started")
    job.name = cluster.job
    with pytest.raises(RendezvousClosedError, match="is started by torchrun, but n, which was first, by nodeclient"):
        job.agent("1:2").rendezvous().result(TIMEOUT_S)


def test_an_agent_whose_peer_dies_before_ranks_are_divided_is_not_held_up(job: Job) -> None:
    a, b = job.agent(), job.agent()
    first, other = (a, b) if meet(a, b)[0].rank == 0 else (b, a)
    assert first.info is not None
    store = first.info.store
    store.set(f"{ROLE_INFO}0", role_info(0, 2))
    answer = first.run(store.multi_get, [f"{ROLE_INFO}0", f"{ROLE_INFO}1"])
    other.handler.shutdown()
    assert [json.loads(text)["local_world_size"] for text in answer.result(TIMEOUT_S)] == [2, 2]
    assert json.loads(store.get(f"{ASSIGNED_RANKS}0")) == [0, 4, 0, 4]
    first.await_call()
    assert ranks(first) == [(0, 1)]


def test_the_keys_of_torchruns_agents_are_what_they_are_taken_for() -> None:
    assert api._TERMINAL_STATE_SYNC_ID == TERMINAL_STATE
    constants = api.SimpleElasticAgent._assign_worker_ranks.__wrapped__.__code__.co_consts
    assert {ROLE_INFO, ASSIGNED_RANKS} <= set(constants)


def test_a_name_or_a_reason_may_have_letters_that_the_locale_has_not(coordinator: Coordinator) -> None:
    job = f"to-\N{INFINITY}-{secrets.token_hex(4)}"
    meets = f"""
import os
from tests.support.handlers import Job, meet

job = Job({coordinator.endpoint!r}, {job!a})
meet(job.agent("1"))
print(os.environ["COORDINATORD_JOB"])
job.close()
"""
    ascii_only = clean_environ(LC_ALL="C", PYTHONCOERCECLOCALE="0", PYTHONUTF8="0", PYTHONPATH=str(TREE))
    with Program(sys.executable, "-c", meets, environ=ascii_only) as program:
        assert program.wait() == 0
        assert program.lines[-1] == job.replace("\N{INFINITY}", r"\u221e")
