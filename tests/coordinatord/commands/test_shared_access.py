"""Coordinators that share a store have the same key, and know each other's tokens."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from coordinatord.commands.shared_access import OtherKeyError, SharedAccess
from coordinatord.config.store_flags import LEASE_S
from coordinatord.protocol.access_token import BEARER, Role
from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.security.gatekeeper import DeniedError
from coordinatord.security.setup import FOLDER
from coordinatord.store.etcd.gateway import Gateway
from coordinatord.store.etcd.leadership import Candidate
from coordinatord.store.etcd.requests import put, txn
from tests.support.etcd import NOBODY, EtcdNamespace, needs_etcd
from tests.support.programs import BIN, as_by_default, clean_environ, run
from tests.support.secured import Secured, secured

pytestmark = [needs_etcd, pytest.mark.slow]


@asynccontextmanager
async def leading(space: EtcdNamespace, first: Secured | None) -> AsyncIterator[Gateway]:
    """Lead as a coordinator with this key and these tokens, as far as others see it."""
    gateway = Gateway(space.place)
    candidate = Candidate(gateway, space.keys, NOBODY, LEASE_S)
    try:
        await candidate.win_at_once()
        await _access(gateway, space, first).publish_key(candidate.election.fence)
        yield gateway
    finally:
        await candidate.resign()
        await gateway.close()


def _access(gateway: Gateway, space: EtcdNamespace, which: Secured | None) -> SharedAccess:
    return SharedAccess(gateway, space.keys, None if which is None else which.security)


def _copied(first: Secured, folder: Path) -> Secured:
    """Copy the folder of keys and tokens to another coordinator, as an operator does."""
    shutil.copytree(first.folder / "state" / FOLDER, folder / "state" / FOLDER)
    return secured(folder)


def _knows(which: Secured, text: str) -> str:
    """Return the name of a token, or why a coordinator does not take it."""
    try:
        return which.security.gatekeeper.admit(BEARER + text, Role.JOIN, "10.0.0.1").name
    except DeniedError as error:
        return error.code


async def test_one_with_the_same_key_may_lead_and_one_with_another_may_not(
    space: EtcdNamespace, tmp_path: Path
) -> None:
    first = secured(tmp_path / "first")
    async with leading(space, first) as gateway:
        await _access(gateway, space, _copied(first, tmp_path / "copy")).synchronize()
        for other, words in ((secured(tmp_path / "other"), "would have the key"), (None, "would let everybody in")):
            with pytest.raises(OtherKeyError, match=f"at {space.keys.prefix}/ have the key .*, and this one {words}"):
                await _access(gateway, space, other).synchronize()
            with pytest.raises(OtherKeyError):
                await _access(gateway, space, other).watch()
    with pytest.raises(OtherKeyError):  # nobody else is there, and still nodes know the first one's key
        async with leading(space, secured(tmp_path / "third")):
            pass
    async with leading(space, first):
        pass


async def test_one_that_lets_everybody_in_is_followed_by_no_one_with_a_key(
    space: EtcdNamespace, tmp_path: Path
) -> None:
    async with leading(space, None) as gateway:
        await _access(gateway, space, None).synchronize()
        with pytest.raises(OtherKeyError, match=r"let everybody in .*, and this one would have the key"):
            await _access(gateway, space, secured(tmp_path)).synchronize()


async def test_tokens_that_are_made_or_revoked_anywhere_are_so_everywhere(space: EtcdNamespace, tmp_path: Path) -> None:
    first = secured(tmp_path / "first")
    second = _copied(first, tmp_path / "second")
    async with leading(space, first) as gateway:
        accesses = [_access(gateway, space, side) for side in (first, second)]
        ours, theirs = first.add("ours", Role.JOIN), second.add("theirs", Role.JOIN)
        for access in (*accesses, accesses[0]):
            await access.synchronize()
        for side in (first, second):
            assert (_knows(side, ours.text), _knows(side, theirs.text)) == ("ours", "theirs")
        second.store.revoke("ours")
        for access in reversed(accesses):
            await access.synchronize()
        assert [_knows(side, ours.text) for side in (first, second)] == ["revoked_token"] * 2
        kept = [pair.value.decode() async for pair in gateway.all_below(space.keys.tokens, 9)]
        assert len(kept) == 1
        assert "theirs" in kept[0]
        assert theirs.secret not in kept[0]


async def test_damaged_tokens_are_named_once_and_the_own_ones_stay(
    space: EtcdNamespace, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = secured(tmp_path)
    async with leading(space, first) as gateway:
        await gateway.call("/v3/kv/txn", txn([], [put(space.keys.tokens, b"\xff")]))
        access = _access(gateway, space, first)
        for _ in range(2):
            await access.synchronize()
        [said] = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
        assert f"key {space.keys.tokens.decode()} in etcd is damaged" in said
        assert _knows(first, first.token().text) == "first-join"


async def test_a_coordinator_with_a_key_of_its_own_ends_and_says_what_to_do(
    space: EtcdNamespace, tmp_path: Path
) -> None:
    async with leading(space, secured(tmp_path / "first")):
        pass
    where = ("--host", "127.0.0.1", "--port", "0", "--store", str(space.place))
    environ = clean_environ(**as_by_default(tmp_path / "config"))
    ended = run(BIN / "coordinatord", *where, "--state-dir", str(tmp_path / "second"), environ=environ)
    assert ended.returncode == ExitCode.USAGE, ended.stderr
    assert "copy the folder security of one of their state directories" in ended.stderr.splitlines()[-1]
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "config").exists(), "no tokens are left that no coordinator takes"
