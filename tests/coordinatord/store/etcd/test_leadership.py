"""One of two coordinators leads, one that was replaced changes nothing, and etcd keeps no more than it must."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from coordinatord.runtime.tasks import Tasks
from coordinatord.store import etcd_store
from coordinatord.store.database import Database
from coordinatord.store.etcd.gateway import Gateway
from coordinatord.store.etcd.history import History
from coordinatord.store.etcd.leadership import EARLIER_TERM, STANDBY_OVER, Candidate
from coordinatord.store.etcd.location import EtcdAccess
from coordinatord.store.etcd.refusals import EtcdAwayError, EtcdRefusedError
from coordinatord.store.etcd.requests import after, text_of
from coordinatord.store.etcd.roster import Coordinatord, read_coordinators
from coordinatord.store.etcd_store import EtcdStore
from coordinatord.store.interface import LeadershipLostError, StoreError
from tests.support.etcd import (
    LONG_LEASE_S,
    NOBODY,
    EtcdCluster,
    EtcdNamespace,
    SteppedGateway,
    gateway_to,
    needs_etcd,
    tidied,
    user_file,
    usurp,
    want_password,
)
from tests.support.histories import a_join_of, a_loss_of, an_opening, made_at
from tests.support.later_tables import LATER_STEPS
from tests.support.raw_session import until

pytestmark = [pytest.mark.slow, needs_etcd]

SHORT_REST_S = 0.2


@asynccontextmanager
async def candidate_in(space: EtcdNamespace, name: str, lease_s: float = LONG_LEASE_S) -> AsyncIterator[Candidate]:
    """Make a coordinator at a namespace, and have it resign in the end."""
    async with gateway_to(space.place) as gateway:
        candidate = Candidate(gateway, space.keys, Coordinatord(name, f"{name}:29400", secure=True, since=7.0), lease_s)
        try:
            yield candidate
        finally:
            await candidate.resign()


async def test_a_standby_knows_who_leads_and_leads_when_that_one_resigns(space: EtcdNamespace) -> None:
    async with candidate_in(space, "h1") as first, candidate_in(space, "h2") as second:
        await first.win()
        tasks = Tasks()
        won = asyncio.get_running_loop().create_future()

        async def stand_by() -> None:
            await second.win()
            won.set_result(None)

        tasks.spawn(stand_by(), name="standby")
        await until(lambda: second.leader is not None)
        assert (second.leader and second.leader.endpoint) == "h1:29400"
        gateway = Gateway(space.place)
        there = await read_coordinators(gateway, space.keys)
        assert ((there.leader and there.leader.name), [standby.name for standby in there.standbys]) == ("h1", ["h2"])
        assert there.lease_s is not None
        assert 0 <= there.lease_s <= LONG_LEASE_S
        await first.resign()
        await tasks.guard(won)
        there = await read_coordinators(gateway, space.keys)
        assert ((there.leader and there.leader.name), there.standbys) == ("h2", ())
        assert second.election.fence > 0
        assert second.may_act()
        await gateway.close()
        await tasks.cancel()


async def test_one_that_was_killed_does_not_take_its_earlier_term_for_a_leader(space: EtcdNamespace) -> None:
    async with candidate_in(space, "h1") as killed, candidate_in(space, "h1") as started_again, Tasks() as tasks:
        await killed.win()
        told = asyncio.Event()
        started_again.changed = told.set
        tasks.spawn(started_again.win(), name="standby")
        await told.wait()
        assert (started_again.leader, started_again.problem) == (None, EARLIER_TERM)


async def test_a_standby_whose_lease_is_over_does_not_begin_a_term(space: EtcdNamespace) -> None:
    now = 0.0
    me = Coordinatord("h1", "h1:29400", secure=True, since=8.0)
    async with gateway_to(space.place) as gateway:
        late = Candidate(gateway, space.keys, me, LONG_LEASE_S, lambda: now)
        await late._enroll()
        now = late.election.term_ends_at
        with pytest.raises(StoreError, match=STANDBY_OVER):
            await late._try_to_lead()
        assert (await read_coordinators(gateway, space.keys)).leader is None
        await late._enroll()
        assert await late._try_to_lead()
        await late.resign()


async def test_one_that_lets_others_lead_waits_for_another_one_but_not_without_an_end(space: EtcdNamespace) -> None:
    async def fail() -> None:
        raise EtcdAwayError("no answer to the first request")

    now = asyncio.get_running_loop().time
    gateway = SteppedGateway(space.place, fail)
    again = Candidate(gateway, space.keys, Coordinatord("h1", "h1:29400", secure=True, since=8.0), LONG_LEASE_S)
    async with candidate_in(space, "h1") as former, candidate_in(space, "h2") as other:
        began_at = now()
        await former.win_at_once()
        await again.let_others_lead(SHORT_REST_S)
        assert now() - began_at >= SHORT_REST_S, "the key of its own last turn is not that of another one"
        await former.resign()
        gateway.stepping = True
        tasks = Tasks()
        rest = tasks.spawn(again.let_others_lead(LONG_LEASE_S), name="rest")
        await other.win_at_once()
        await tasks.guard(rest)
        assert now() - began_at < LONG_LEASE_S
    await gateway.close()


async def test_the_leader_knows_who_stands_by_and_who_went(space: EtcdNamespace) -> None:
    async with candidate_in(space, "h1") as first, candidate_in(space, "h2") as second:
        await first.win_at_once()
        tasks, changes = Tasks(), asyncio.Queue[tuple[str, ...]]()
        first.roster.changed = lambda: changes.put_nowait(
            tuple(standby.endpoint for standby in first.status().standbys)
        )
        tasks.spawn(first.roster.watch(), name="roster")
        assert await changes.get() == ()
        await second._enroll()
        assert await changes.get() == ("h2:29400",)
        await second.resign()
        assert await changes.get() == ()
        status = first.status()
        assert (status.leader.endpoint, status.problem) == ("h1:29400", "")
        assert 0 < status.lease_s <= LONG_LEASE_S
        await tasks.cancel()


async def test_one_that_stands_by_anew_is_there_once(space: EtcdNamespace) -> None:
    async with gateway_to(space.place) as gateway:
        async with candidate_in(space, "h1") as standby:
            for _ in range(2):  # as where etcd has not answered for a moment
                await standby._enroll()
            there = await read_coordinators(gateway, space.keys)
            assert [found.endpoint for found in there.standbys] == ["h1:29400"]
        assert (await read_coordinators(gateway, space.keys)).standbys == ()


async def test_a_leader_whose_key_is_gone_can_change_nothing(space: EtcdNamespace) -> None:
    async with space.led() as (store, _):
        await store.append(made_at(1.0, an_opening()))
        await usurp(space.place)
        async with space.led() as (other, _):
            assert [entry.record for entry in await other.load()] == [an_opening()]
            with pytest.raises(LeadershipLostError, match="another coordinator leads"):
                await store.append(made_at(2.0, a_join_of("n1")))
            await other.append(made_at(3.0, a_join_of("n2")))
            assert [entry.record for entry in await other.load()] == [an_opening(), a_join_of("n2")]
            with pytest.raises(LeadershipLostError):
                await store.append(made_at(4.0, a_loss_of("n1")))
    async with space.life() as last:
        assert [entry.record for entry in await last.load()] == [an_opening(), a_join_of("n2")]


async def test_a_leader_learns_that_its_lease_is_over_from_etcd(space: EtcdNamespace) -> None:
    async with candidate_in(space, "h1", lease_s=1.0) as first:
        await first.win()
        lease = first.election.lease
        await first._gateway.call("/v3/lease/revoke", {"ID": str(lease)})
        with pytest.raises(LeadershipLostError, match="another coordinator may lead"):
            await first.lead()


async def test_a_leader_that_etcd_does_not_answer_says_so(
    space: EtcdNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    async def silence() -> None:
        await asyncio.get_running_loop().create_future()

    gateway = SteppedGateway(space.place, silence)
    candidate = Candidate(gateway, space.keys, Coordinatord("h1", "h1:29400", secure=True, since=7.0), 1.0)
    await candidate.win()
    gateway.stepping = True
    with pytest.raises(LeadershipLostError, match="another coordinator may lead"):
        await candidate._renew()
    assert "the lease is not renewed: etcd has not answered before it was over" in caplog.text
    await gateway.close()


async def test_one_that_cannot_keep_what_is_durable_stands_by_and_makes_no_second_commit_of_it(
    space: EtcdNamespace,
) -> None:
    def denies_commits(action: int, what: str | None, *_: object) -> int:
        denied = action == sqlite3.SQLITE_TRANSACTION and what == "COMMIT"
        return sqlite3.SQLITE_DENY if denied else sqlite3.SQLITE_OK

    async with space.led() as (store, _):
        await store.append(made_at(1.0, an_opening()))
        store._replica.database._connection.set_authorizer(denies_commits)
        with pytest.raises(LeadershipLostError, match="not in the replica"):
            await store.append(made_at(2.0, a_join_of("n1")))
        store._replica.database._connection.set_authorizer(None)
    async with space.life() as later:
        assert [entry.record for entry in await later.load()] == [an_opening(), a_join_of("n1")]


async def test_one_whose_own_disk_is_full_stands_by_where_another_one_may_lead(space: EtcdNamespace) -> None:
    def denies_inserts(action: int, *_: object) -> int:
        return sqlite3.SQLITE_DENY if action == sqlite3.SQLITE_INSERT else sqlite3.SQLITE_OK

    async with space.led() as (store, candidate), candidate_in(space, "h2") as second:
        store._replica.database._connection.set_authorizer(denies_inserts)
        with pytest.raises(StoreError):
            await store.append(made_at(1.0, an_opening()))  # nobody would do better
        await second._enroll()
        tasks = Tasks()
        tasks.spawn(candidate.roster.watch(), name="roster")
        await until(lambda: candidate.roster.standbys != ())
        with pytest.raises(LeadershipLostError, match="another coordinator may lead"):
            await store.append(made_at(1.0, an_opening()))
        await tasks.cancel()
        store._replica.database._connection.set_authorizer(None)
    async with space.life() as later:
        assert await later.load() == []


async def test_a_commit_larger_than_a_value_is_whole_or_not_there(
    space: EtcdNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinatord.store.etcd.history.VALUE_BYTES_MAX", 300)
    joins = [a_join_of(f"n{number}") for number in range(40)]
    left = await space.crashes_while(made_at(1.0, an_opening(), *joins))
    assert len(left) > 4, "a request for each part"
    for copy in left[:-1]:
        async with copy.life() as store:
            assert list(await store.load()) == []
            await store.append(made_at(2.0, an_opening()))
    async with left[-1].life() as store:
        assert [entry.record for entry in await store.load()] == [an_opening(), *joins]


async def test_a_copied_history_is_whole_or_not_there(space: EtcdNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinatord.store.etcd.history.ROWS_AT_ONCE", 1)
    records = [an_opening(), a_join_of("n1"), a_join_of("n2")]
    source = Database.in_memory()
    source.append(made_at(1.0, *records))

    async with space.copying() as (gateway, left):
        candidate = Candidate(gateway, space.keys, NOBODY, LONG_LEASE_S)
        await candidate.win_at_once()
        gateway.stepping = True
        await History(gateway, space.keys, candidate.election.fence).replace(source.rows(), source.identity)
        gateway.stepping = False
        await candidate.resign()
    unfinished, written = left[:-2], left[-2:]  # the last request deletes what was there before
    assert len(unfinished) > len(records), "a request for each value"
    for copy in unfinished:
        async with copy.life() as store:
            assert list(await store.load()) == []
            await store.append(made_at(2.0, an_opening()))
        async with copy.life() as store:
            assert [entry.record for entry in await store.load()] == [an_opening()]
    for copy in written:
        async with copy.life() as store:
            assert [entry.record for entry in await store.load()] == records


async def test_what_is_forgotten_leaves_etcd_too(space: EtcdNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinatord.store.etcd.commit_log.WASTE_ROWS", 10)
    async with gateway_to(space.place) as gateway, space.led(gateway) as (store, _):
        await store.append(made_at(1.0, an_opening()))
        for number in range(100):
            await store.append(made_at(1.0, a_join_of(f"n{number}"), a_loss_of(f"n{number}")))
        for number in range(2, 12):  # the third of these makes the first run superfluous
            await store.append(made_at(1.0, an_opening(run=f"e-{number}")))
        await tidied(store)
        loaded = await store.load()
        commits = [pair async for pair in gateway.all_below(space.keys.commits(store._history.about.generation), 100)]
        assert len(commits) == len(store._history.log._values) < 50
    async with space.life() as again:
        assert await again.load() == loaded


async def test_records_of_an_older_version_are_brought_up_to_date(space: EtcdNamespace) -> None:
    async with space.led() as (store, _):
        await store.append(made_at(1.0, an_opening(), a_join_of("n1")))
        identity, loaded = store.identity, await store.load()
    async with space.led(steps=LATER_STEPS) as (store, _):
        assert (store.identity, await store.load()) == (identity, loaded)
        await store.append(made_at(2.0, a_join_of("n2")))
    with pytest.raises(StoreError, match="a newer release of coordinatord has written version"):
        async with space.life():
            pass


async def test_one_whose_lease_ends_while_it_reads_the_history_does_not_begin_to_lead(space: EtcdNamespace) -> None:
    async with candidate_in(space, "h1") as candidate:
        await candidate.win_at_once()
        candidate.election.end()
        gateway = Gateway(space.place)
        with pytest.raises(LeadershipLostError, match="the lease is over"):
            await EtcdStore.open(gateway, space.keys, candidate)
        await gateway.close()


@pytest.fixture
def _compact_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(etcd_store, "COMPACT_EVERY_S", 0.0)


@pytest.mark.usefixtures("_compact_always")
async def test_a_commit_does_not_wait_for_what_is_done_after_it(
    space: EtcdNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinatord.store.etcd.commit_log.WASTE_ROWS", 0)
    go_on, sent = asyncio.Event(), 0

    async def hold() -> None:
        nonlocal sent
        sent += 1
        if sent > 1:
            await go_on.wait()

    gateway = SteppedGateway(space.place, hold)
    async with space.led(gateway) as (store, _):
        await store.append(made_at(1.0, an_opening(), a_join_of("n1"), a_loss_of("n1")))
        await store.append(made_at(1.0, a_join_of("n1"), a_loss_of("n1")))
        await tidied(store)
        gateway.stepping = True
        await store.append(made_at(2.0, a_join_of("n2"), a_loss_of("n2")))
        later = asyncio.ensure_future(store.append(made_at(3.0, a_join_of("n3"))))
        await until(lambda: sent == 2)
        assert not later.done(), "a commit does not come between the requests of a merger"
        go_on.set()
        await later
        gateway.stepping = False
        loaded = await store.load()
    async with space.life() as again:
        assert await again.load() == loaded
    await gateway.close()


async def commit_until_compacted(space: EtcdNamespace) -> None:
    """Commit, and ask for a revision that etcd has been told to forget. Raises `EtcdRefusedError`."""
    async with gateway_to(space.place) as gateway, space.led(gateway) as (store, _):
        await store.append(made_at(1.0, an_opening()))
        old = store._history.revision
        for turn in range(3):
            await store.append(made_at(2.0, a_join_of(f"n{turn}")))
            await tidied(store)
        assert len(await store.load()) == 4
        await gateway.call("/v3/kv/range", {"key": text_of(space.keys.head), "revision": str(old)})


@pytest.mark.usefixtures("_compact_always")
async def test_etcd_forgets_old_revisions(space: EtcdNamespace) -> None:
    with pytest.raises(EtcdRefusedError, match="has been compacted"):
        await commit_until_compacted(space)


@pytest.mark.long
@pytest.mark.usefixtures("_compact_always")
async def test_a_user_with_rights_below_the_prefix_alone_leads_and_has_etcd_forget(tmp_path: Path) -> None:
    with closing(EtcdCluster(tmp_path / "etcd", 1)) as cluster:
        space = EtcdNamespace(cluster)
        below = f"{space.keys.prefix}/".encode()
        rights = {"permType": "READWRITE", "key": text_of(below), "range_end": text_of(after(below))}
        await want_password(
            space.place,
            "r",
            ("user/add", {"name": "coordinatord", "password": "c"}),
            ("role/add", {"name": "below"}),
            ("role/grant", {"name": "below", "perm": rights}),
            ("user/grant", {"user": "coordinatord", "role": "below"}),
        )
        space.place = replace(space.place, access=EtcdAccess(user_file=user_file(tmp_path, "coordinatord:c")))
        with pytest.raises(EtcdRefusedError, match="has been compacted"):
            await commit_until_compacted(space)
