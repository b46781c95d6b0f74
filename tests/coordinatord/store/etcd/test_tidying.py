"""etcd keeps no more than it must, and nobody waits while it is tidied."""

import asyncio
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from coordinatord.store import etcd_store
from coordinatord.store.etcd.location import EtcdAccess
from coordinatord.store.etcd.refusals import EtcdRefusedError
from coordinatord.store.etcd.requests import after, text_of
from tests.support.etcd import (
    EtcdCluster,
    EtcdNamespace,
    SteppedGateway,
    gateway_to,
    needs_etcd,
    tidied,
    user_file,
    want_password,
)
from tests.support.histories import a_join_of, a_loss_of, an_opening, made_at
from tests.support.raw_session import until

pytestmark = [pytest.mark.slow, needs_etcd]


@pytest.fixture(autouse=True)
def _compact_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(etcd_store, "COMPACT_EVERY_S", 0.0)


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


async def test_etcd_forgets_old_revisions(space: EtcdNamespace) -> None:
    with pytest.raises(EtcdRefusedError, match="has been compacted"):
        await commit_until_compacted(space)


@pytest.mark.long
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
