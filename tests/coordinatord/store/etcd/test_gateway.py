"""Requests find a member that answers, and what fails says what to do."""

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509 import load_pem_x509_certificate
from msgspec.structs import replace

from coordinatord.runtime.tasks import Tasks
from coordinatord.store.etcd import gateway as gateway_module
from coordinatord.store.etcd.gateway import Gateway
from coordinatord.store.etcd.location import EtcdAccess, EtcdLocation
from coordinatord.store.etcd.refusals import EtcdAwayError, EtcdRefusedError
from coordinatord.store.etcd.requests import KeyValue, get, put, text_of, txn
from coordinatord.store.interface import StoreError, UnreadableStoreError
from tests.support.canned_http import body, canned, hang_up
from tests.support.etcd import (
    EtcdCluster,
    EtcdNamespace,
    SteppedGateway,
    gateway_to,
    needs_etcd,
    user_file,
    want_password,
)
from tests.support.raw_session import until

pytestmark = [pytest.mark.slow, needs_etcd]

KEY = b"some/key"


async def check_refusal(place: EtcdLocation, error: type[StoreError], words: str) -> None:
    """Check that a member does not read for us, and what is said of that."""
    async with gateway_to(place) as gateway:
        with pytest.raises(error, match=words):
            await gateway.read(KEY)


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[Callable[..., EtcdCluster]]:
    """Start a cluster for one test."""
    with ExitStack() as stack:
        yield lambda *flags, **tls: stack.enter_context(closing(EtcdCluster(tmp_path / "etcd", 1, *flags, **tls)))


async def test_a_transaction_does_all_or_the_other(space: EtcdNamespace) -> None:
    async with gateway_to(space.place) as gateway:
        answer = await gateway.call("/v3/kv/txn", txn([], [put(KEY, b"\0\xff"), get(KEY)]))
        assert [pair.value for pair in answer.results[1].kvs] == [b"\0\xff"]
        found = await gateway.read(KEY)
        assert found is not None
        assert found.value == b"\0\xff"
        assert await gateway.read(b"nothing") is None


async def test_more_keys_than_one_page_are_read_as_they_are_at_one_moment(space: EtcdNamespace) -> None:
    prefix = f"{space.keys.prefix}/many/".encode()
    async with gateway_to(space.place) as gateway:
        await gateway.call("/v3/kv/txn", txn([], [put(prefix + b"%02d" % number, b"v") for number in range(20)]))
        seen: list[bytes] = []
        async for pair in gateway.all_below(prefix, 7):
            seen.append(pair.key)
            await gateway.call("/v3/kv/put", dict(put(prefix + b"99", b"later")["request_put"]))
        assert seen == [prefix + b"%02d" % number for number in range(20)]


async def test_a_watch_tells_of_each_change(space: EtcdNamespace) -> None:
    key, seen = space.keys.leader, list[bytes | None]()
    changes: list[tuple[str, dict[str, Any]]] = [
        ("/v3/kv/put", dict(put(key, b"one")["request_put"])),
        ("/v3/kv/put", dict(put(key, b"two")["request_put"])),
        ("/v3/kv/deleterange", {"key": text_of(key)}),
    ]
    async with gateway_to(space.place) as gateway:
        async for found in gateway.watch(key):
            seen.append(None if found is None else found.value)
            if not changes:
                break
            await gateway.call(*changes.pop(0))
    assert seen == [None, b"one", b"two", None]


async def test_a_watch_that_is_silent_is_begun_anew_and_says_nothing_of_it(
    space: EtcdNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_module, "WATCH_SILENT_S_MAX", 0.05)
    key, begun, seen = space.keys.leader, 0, list[KeyValue | None]()

    async def count() -> None:
        nonlocal begun
        begun += 1

    gateway = SteppedGateway(space.place, count)
    gateway.stepping = True
    tasks = Tasks()

    async def look() -> None:
        async for found in gateway.watch(key):
            seen.append(found)

    watching = tasks.spawn(look(), name="watch")
    await until(lambda: begun >= 3 or watching.done())
    assert seen == [None]
    async with gateway_to(space.place) as other:
        await other.call("/v3/kv/put", dict(put(key, b"one")["request_put"]))
    await until(lambda: len(seen) == 2 or watching.done())
    assert [pair and pair.value for pair in seen] == [None, b"one"]
    await tasks.cancel()
    await gateway.close()


async def test_members_that_do_not_answer_are_passed_over(etcd: EtcdCluster) -> None:
    _, good = etcd.clients[0]
    with canned(hang_up) as (rude, asked), canned(body(b"<html>", 200)) as (strange, _):
        place = EtcdLocation.parse(f"etcd://127.0.0.1:1,{rude},{strange},127.0.0.1:{good}/any")
        async with gateway_to(place) as gateway:
            for _ in range(3):
                await gateway.read(KEY)
            assert len(asked) == 1, "the one that answered is asked first then"


@pytest.mark.parametrize(
    ("code", "text"),
    [(1, "grpc: the client connection is closing"), (2, "raft: stopped"), (4, "context deadline exceeded")],
)
async def test_a_member_that_ends_meanwhile_is_passed_over(etcd: EtcdCluster, code: int, text: str) -> None:
    _, good = etcd.clients[0]
    ending = body(json.dumps({"error": text, "message": text, "code": code}).encode(), 500)
    with canned(ending) as (ends, asked):
        async with gateway_to(EtcdLocation.parse(f"etcd://{ends},127.0.0.1:{good}/any")) as gateway:
            assert await gateway.read(b"nothing") is None
        assert len(asked) == 1
        await check_refusal(EtcdLocation.parse(f"etcd://{ends}/any"), EtcdAwayError, text)


async def test_where_nobody_answers_each_is_tried_twice_and_the_last_reason_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with canned(hang_up) as (rude, asked):
        words = f"etcd etcd://{rude}/any: http://{rude}: "
        await check_refusal(EtcdLocation.parse(f"etcd://{rude}/any"), EtcdAwayError, words)
        assert len(asked) == gateway_module.TRIES_PER_MEMBER
    monkeypatch.setattr(gateway_module, "REQUEST_WITHIN_S", 0.0)
    nobody = EtcdLocation.parse("etcd://127.0.0.1:1/any")
    await check_refusal(nobody, EtcdAwayError, "no member answers within 0 s")


async def test_an_answer_of_something_else_is_named(etcd: EtcdCluster) -> None:
    del etcd
    with canned(body(b'{"kvs": [{"key": 7}]}')) as (strange, _):
        place = EtcdLocation.parse(f"etcd://{strange}/any")
        await check_refusal(place, UnreadableStoreError, "not that of an etcd")


async def test_tls_and_a_user_with_a_password(tmp_path: Path, own_cluster: Callable[..., EtcdCluster]) -> None:
    authority = trustme.CA()
    server, ca = authority.issue_cert("127.0.0.1", "localhost"), tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(ca)
    server.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    server.private_key_pem.write_to_path(tmp_path / "key.pem")
    tls = ("--cert-file", str(tmp_path / "cert.pem"), "--key-file", str(tmp_path / "key.pem"))
    cluster = own_cluster(tls=tls)
    place = cluster.place("any", EtcdAccess(authorities=ca))
    await want_password(place, "very secret", ("user/add", {"name": "guest", "password": "secret"}))
    await check_refusal(place, EtcdRefusedError, "see --etcd-user-file")

    def known_as(user: str) -> EtcdLocation:
        return cluster.place("any", EtcdAccess(authorities=ca, user_file=user_file(tmp_path, user)))

    async with gateway_to(known_as("root:very secret")) as gateway:
        assert await gateway.read(KEY) is None
        gateway._token = "old.1"  # noqa: S105 - one that is over
        assert await gateway.read(KEY) is None
    async with gateway_to(known_as("root:guessed")) as gateway:
        with pytest.raises(EtcdRefusedError, match="does not know this user with this password") as caught:
            await gateway.read(KEY)
        assert "guessed" not in str(caught.value)
    words = "grant-permission ROLE readwrite any/ --prefix"
    await check_refusal(known_as("guest:secret"), EtcdRefusedError, words)
    with pytest.raises(StoreError, match=r"nowhere\.pem cannot be used: No such file"):
        Gateway(cluster.place("any", EtcdAccess(authorities=tmp_path / "nowhere.pem")))


@pytest.mark.long
async def test_a_signed_token_that_is_older_than_the_users_is_replaced(
    tmp_path: Path, own_cluster: Callable[..., EtcdCluster]
) -> None:
    signer = trustme.CA().issue_cert("etcd", key_type=trustme.KeyType.RSA)
    key, public = tmp_path / "key.pem", tmp_path / "public.pem"
    signer.private_key_pem.write_to_path(key)
    signed = load_pem_x509_certificate(signer.cert_chain_pems[0].bytes())
    public.write_bytes(signed.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    token = f"jwt,pub-key={public},priv-key={key},sign-method=RS256,ttl=10m"
    cluster = own_cluster("--auth-token", token)
    await want_password(cluster.place("any"), "secret")
    known = cluster.place("any", EtcdAccess(user_file=user_file(tmp_path, "root:secret")))
    async with gateway_to(known) as gateway:
        assert await gateway.read(KEY) is None
        await gateway.call("/v3/auth/role/add", {"name": "other"})
        assert await gateway.read(KEY) is None


@pytest.mark.long
async def test_a_password_that_is_changed_while_it_is_used_is_read_anew(
    tmp_path: Path, own_cluster: Callable[..., EtcdCluster]
) -> None:
    cluster = own_cluster("--bcrypt-cost", "4")
    await want_password(cluster.place("any"), "first")
    place = cluster.place("any", EtcdAccess(user_file=user_file(tmp_path, "root:first")))
    async with gateway_to(place) as gateway:
        assert await gateway.read(KEY) is None
        user_file(tmp_path, "root:second")
        assert await gateway.read(KEY) is None, "the token is good until the password is changed in etcd, too"
        await gateway.call("/v3/auth/user/changepw", {"name": "root", "password": "second"})
        assert await gateway.read(KEY) is None
        user_file(tmp_path, "root")
        gateway._token = "old.1"  # noqa: S105 - one that is over
        with pytest.raises(StoreError, match="has no USER:PASSWORD"):
            await gateway.read(KEY)


async def _renewed(gateway: Gateway, lease: int) -> float:
    """Renew a lease; a busy machine may take several tries."""
    while True:
        with suppress(EtcdAwayError):
            return await gateway.renew(lease, 0.2)


async def test_a_renewal_leaves_a_member_that_is_silent_in_time(etcd: EtcdCluster, space: EtcdNamespace) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        _, good = etcd.clients[0]
        place = EtcdLocation.parse(f"etcd://127.0.0.1:{silent.getsockname()[1]},127.0.0.1:{good}/any")
        async with gateway_to(place) as gateway, gateway_to(space.place) as other:
            lease = (await other.call("/v3/lease/grant", {"TTL": "60", "ID": "0"})).id
            assert await _renewed(gateway, lease) == 60.0
        async with gateway_to(replace(place, members=place.members[:1])) as gateway:
            with pytest.raises(EtcdAwayError, match=r"no answer within 0\.01 s"):
                await gateway.renew(lease, 0.01)
