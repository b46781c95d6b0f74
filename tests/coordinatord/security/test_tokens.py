"""Tokens: their form, the file that keeps their hashes, and who is let in by them."""

import errno
import json
import os
import re
import resource
import stat
from collections.abc import Callable, ItemsView
from http import HTTPStatus
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinatord.protocol.access_token import AccessToken, Role, TokenFormError, parse_token, parse_tokens
from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.runtime.private_files import PrivateFileError
from coordinatord.security.browser_sessions import BrowserSessions
from coordinatord.security.gatekeeper import FAILURES_MAX, WINDOW_S, Caller, DeniedError, Gatekeeper
from coordinatord.security.token_store import (
    TOKENS,
    DamagedTokensError,
    KnownToken,
    TokenStore,
    TokenStoreError,
    merge_tokens,
    pack_tokens,
    unpack_tokens,
)
from tests.support.secured import add_token

PIN = "a" * 52


def bearer(token: AccessToken) -> str:
    return f"Bearer {token.text}"


def denied(gate: Gatekeeper, authorization: str, wanted: Role = Role.JOIN, job: str | None = None) -> DeniedError:
    with pytest.raises(DeniedError) as caught:
        gate.admit(authorization, wanted, "10.0.0.1", job)
    return caught.value


@pytest.fixture
def store(tmp_path: Path) -> TokenStore:
    return TokenStore(tmp_path / "security")


@pytest.fixture
def gate(store: TokenStore) -> Gatekeeper:
    return Gatekeeper(store, BrowserSessions(b"", lambda: 0.0), lambda: 0.0)


def test_a_token_is_text_and_back(store: TokenStore) -> None:
    token = add_token(store, PIN, Role.JOIN, "nodes")
    assert parse_token(token.text) == token
    assert parse_tokens(f"# about\n\n{token.text}\n") == (token,)
    assert token.secret not in repr(token)


@pytest.mark.parametrize("text", ["", "x", f"crd1.{PIN}.boss.{PIN}", f"crd1.{PIN}.join.{PIN}x", f"crd1.{PIN}.join"])
def test_what_is_no_token_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(TokenFormError) as caught:
        parse_token(text)
    assert PIN not in str(caught.value)


def test_the_file_holds_hashes_for_its_user_alone(store: TokenStore) -> None:
    token = add_token(store, PIN, Role.ADMIN, "ops")
    assert token.secret not in store.path.read_text()
    assert stat.S_IMODE(store.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(store.path.parent.stat().st_mode) == 0o700
    assert [path.name for path in store.path.parent.iterdir()] == [TOKENS]


@pytest.mark.skipif(os.geteuid() != 0, reason="is about root")
def test_root_makes_tokens_for_a_service_with_a_user_of_its_own(tmp_path: Path) -> None:
    service = 12345
    os.chown(tmp_path, service, service)
    store = TokenStore(tmp_path / "state" / "security")
    add_token(store, PIN, Role.JOIN, "first")
    written = [tmp_path / "state", tmp_path / "state" / "security", store.path]
    assert {(path.stat().st_uid, path.stat().st_gid) for path in written} == {(service, service)}
    again = TokenStore(store.directory)
    again.revoke("first")
    assert store.path.stat().st_uid == service, "the daemon can still read it"
    os.chown(store.path, 54321, -1)
    with pytest.raises(PrivateFileError, match="belongs to another user"):
        TokenStore(store.directory).refresh()


def test_a_revocation_is_durable_on_return(store: TokenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    add_token(store, PIN, Role.ADMIN, "ops")
    synced, sync = [], os.fsync

    def record(handle: int) -> None:
        synced.append((os.fstat(handle).st_ino, store.path.stat().st_ino))
        sync(handle)

    monkeypatch.setattr(os, "fsync", record)
    store.revoke("ops")
    replaced = store.path.stat().st_ino
    assert synced[-2:] == [(replaced, synced[0][1]), (store.path.parent.stat().st_ino, replaced)]


def test_a_link_is_not_followed(store: TokenStore, tmp_path: Path) -> None:
    add_token(store, PIN, Role.ADMIN, "ops")
    store.path.rename(tmp_path / "elsewhere")
    store.path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PrivateFileError, match="cannot be read"):
        TokenStore(store.directory).refresh()


@pytest.mark.parametrize(("call", "words"), [("fcntl.flock", "locked"), ("os.fstat", "read")])
def test_a_refusal_of_the_system_is_an_error_with_the_path(
    store: TokenStore, monkeypatch: pytest.MonkeyPatch, call: str, words: str
) -> None:
    add_token(store, PIN, Role.ADMIN, "ops")

    def fail(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    with monkeypatch.context() as system:
        system.setattr(call, fail)
        with pytest.raises(PrivateFileError, match=rf"/\S+ cannot be {words}: No locks available"):
            add_token(TokenStore(store.directory), PIN, Role.ADMIN, "more")


@pytest.mark.parametrize("text", ["", "{}", '{"version": 2, "tokens": []}', '{"version": 1, "tokens": [1]}'])
def test_a_damaged_file_is_an_error_with_its_name(store: TokenStore, text: str) -> None:
    add_token(store, PIN, Role.ADMIN, "ops")
    store.path.write_text(text)
    with pytest.raises(DamagedTokensError, match=r"tokens\.json is not as coordinatord writes it") as damaged:
        TokenStore(store.directory).refresh()
    assert damaged.value.exit_code is ExitCode.DATA_ERROR


def test_another_process_sees_changes(store: TokenStore) -> None:
    other = TokenStore(store.directory)
    token = add_token(store, PIN, Role.JOIN, "nodes")
    other.refresh()
    assert other.tokens == store.tokens
    other.revoke("nodes")
    store.refresh()
    assert other.tokens == store.tokens
    assert (
        denied(Gatekeeper(store, BrowserSessions(b"", lambda: 0.0), lambda: 0.0), bearer(token)).code == "revoked_token"
    )
    with pytest.raises(TokenStoreError, match="of the name nodes already"):
        add_token(store, PIN, Role.JOIN, "nodes")
    with pytest.raises(TokenStoreError, match="there are: none"):
        store.revoke("other")


def test_a_token_that_was_revoked_while_no_file_could_be_opened_is_known_as_revoked_later(
    store: TokenStore, gate: Gatekeeper, caplog: pytest.LogCaptureFixture
) -> None:
    token = add_token(store, PIN, Role.JOIN, "n1")
    caller = gate.admit(bearer(token), Role.JOIN, "10.0.0.1")
    assert store.directory is not None
    TokenStore(store.directory).revoke("n1")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        store.try_refresh()
        store.try_refresh()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert caplog.text.count("the tokens stay as they were") == 1, "the same reason is not repeated each second"
    assert gate.is_valid(caller)
    store.try_refresh()
    assert not gate.is_valid(caller)
    assert denied(gate, bearer(token)).code == "revoked_token"


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda path: path.write_text("{"), r".*tokens\.json is not as coordinatord writes it"),
        (lambda path: path.chmod(0o640), "others may read"),
        (Path.unlink, r".*tokens\.json is missing"),
    ],
)
def test_tokens_that_cannot_be_read_any_more_stay_as_they_were(
    store: TokenStore, gate: Gatekeeper, caplog: pytest.LogCaptureFixture, damage: Callable[[Path], object], words: str
) -> None:
    token = add_token(store, PIN, Role.JOIN, "n1")
    damage(store.path)
    unknown = add_token(TokenStore(None), PIN, Role.JOIN, "x")
    assert denied(gate, bearer(unknown)).code == "unknown_token", "for which the file was read again"
    assert re.search(f"the tokens stay as they were: {words}", caplog.text)
    assert gate.admit(bearer(token), Role.JOIN, "10.0.0.1").name == "n1"


def test_revoked_tokens_make_room(store: TokenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinatord.security.token_store.TOKENS_MAX", 2)
    for name in ("a", "b"):
        add_token(store, PIN, Role.JOIN, name)
    with pytest.raises(TokenStoreError, match="the limit: revoke one"):
        add_token(store, PIN, Role.JOIN, "c")
    store.revoke("a")
    add_token(store, PIN, Role.JOIN, "c")
    assert [token["name"] for token in json.loads(store.path.read_text())["tokens"]] == ["b", "c"]


def test_a_token_that_cannot_be_handed_out_is_not_valid_and_its_name_is_free(store: TokenStore) -> None:
    def fail(_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        store.make(PIN, {"ci": Role.JOIN}, "*", fail)
    assert not store.tokens
    add_token(store, PIN, Role.JOIN, "ci")
    with pytest.raises(TokenStoreError, match="of the name ci already"):
        store.make(PIN, {"ci": Role.JOIN}, "*", lambda _: pytest.fail("a token that cannot be stored"))


def test_the_error_of_the_hand_out_is_said_even_if_the_token_cannot_be_removed(store: TokenStore) -> None:
    def fail(_: object) -> None:
        assert store.directory is not None
        store.directory.rename(store.directory.with_name("away"))
        store.directory.write_text("in the way")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        store.make(PIN, {"ci": Role.JOIN}, "*", fail)


def test_a_token_that_cannot_be_stored_is_handed_out_to_nobody(store: TokenStore) -> None:
    assert store.directory is not None
    store.directory.parent.mkdir(parents=True, exist_ok=True)
    store.directory.write_text("in the way")
    with pytest.raises(PrivateFileError) as caught:
        store.make(PIN, {"ci": Role.JOIN}, "*", lambda _: pytest.fail("it is not valid"))
    assert caught.value.exit_code is ExitCode.IO_ERROR
    assert not store.tokens


def a_token(number: int, revoked_at: float | None = None, name: str = "") -> KnownToken:
    """Return the known token of this number; it has its own hash."""
    return KnownToken(name or f"t{number}", Role.JOIN, "*", f"{number:064x}", 5.0, revoked_at)


@given(
    *[st.dictionaries(st.integers(0, 5), st.none() | st.floats(0, 9), max_size=6).map(lambda each: each.items())] * 2
)
def test_united_tokens_are_those_that_anybody_made_without_those_that_anybody_revoked(
    ones: ItemsView[int, float | None], others: ItemsView[int, float | None]
) -> None:
    shared, own = ([a_token(number, revoked_at) for number, revoked_at in each] for each in (ones, others))
    found = merge_tokens(shared, own)
    assert {token.digest for token in found} == {token.digest for token in [*shared, *own]}
    revoked = {token.digest for token in [*shared, *own] if token.revoked_at is not None}
    assert {token.digest for token in found if token.revoked_at is not None} == revoked
    assert set(found) == set(merge_tokens(own, shared))
    assert merge_tokens(found, own) == merge_tokens(found, found) == merge_tokens(found, shared) == found


def test_of_two_tokens_with_one_name_the_shared_one_keeps_it() -> None:
    longest = "n" * 128
    shared, own = a_token(1, name=longest), a_token(2, name=longest)
    first, second = merge_tokens([shared], [own])
    assert (first, second.digest) == (shared, own.digest)
    assert second.name != longest
    assert unpack_tokens(pack_tokens([first, second])) == (first, second)
    assert merge_tokens([first, second], [own]) == (first, second), (
        "the other one knows it by its new name from then on"
    )


def test_tokens_of_others_are_known_and_kept_in_the_file(store: TokenStore, gate: Gatekeeper) -> None:
    add_token(store, PIN, Role.JOIN, "ours")
    other = TokenStore(None)
    theirs = add_token(other, PIN, Role.JOIN, "theirs")
    store.adopt(other.tokens)
    assert gate.admit(bearer(theirs), Role.JOIN, "10.0.0.1").name == "theirs"
    again = TokenStore(store.directory)
    again.refresh()
    assert [token.name for token in again.tokens] == ["theirs", "ours"]
    written = store.path.stat().st_mtime_ns
    store.adopt(other.tokens)
    assert store.path.stat().st_mtime_ns == written, "there was nothing to write"
    other.revoke("theirs")
    store.adopt(other.tokens)
    assert denied(gate, bearer(theirs)).code == "revoked_token"


def test_there_are_no_more_tokens_than_the_limit_when_those_of_others_come(
    store: TokenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinatord.security.token_store.TOKENS_MAX", 2)
    store.adopt([a_token(1, revoked_at=7.0), a_token(2, revoked_at=8.0), a_token(3)])
    assert [token.name for token in store.tokens] == ["t2", "t3"]
    with pytest.raises(TokenStoreError, match="the limit: revoke one"):
        store.adopt([a_token(4), a_token(5)])
    assert [token.name for token in store.tokens] == ["t2", "t3"]


@pytest.mark.parametrize(
    ("role", "allowed"), [(Role.JOIN, {Role.JOIN}), (Role.READ, {Role.READ}), (Role.ADMIN, {Role.ADMIN, Role.READ})]
)
def test_a_role_may_do_its_own_and_an_admin_reads(
    store: TokenStore, gate: Gatekeeper, role: Role, allowed: set[Role]
) -> None:
    token = add_token(store, PIN, role, "one")
    for wanted in Role:
        if wanted in allowed:
            assert gate.admit(bearer(token), wanted, "10.0.0.1").name == "one"
        else:
            assert denied(gate, bearer(token), wanted).status is HTTPStatus.FORBIDDEN


def test_several_are_valid_at_once_and_strangers_are_not(store: TokenStore, gate: Gatekeeper) -> None:
    tokens = [add_token(store, PIN, Role.JOIN, name) for name in ("a", "b", "c")]
    assert [gate.admit(bearer(token), Role.JOIN, "10.0.0.1").name for token in tokens] == ["a", "b", "c"]
    other = add_token(TokenStore(None), PIN, Role.JOIN, "a")
    assert denied(gate, bearer(other)).code == "unknown_token"
    assert denied(gate, "").code == "no_token"
    assert denied(gate, "Basic eDp5").code == "no_token"


def test_a_new_token_works_before_anybody_has_looked(store: TokenStore, gate: Gatekeeper) -> None:
    token = add_token(TokenStore(store.directory), PIN, Role.JOIN, "new")
    assert gate.admit(bearer(token), Role.JOIN, "10.0.0.1").name == "new"


def test_a_token_may_be_for_some_jobs(store: TokenStore, gate: Gatekeeper) -> None:
    token = add_token(store, PIN, Role.ADMIN, "ana", "ana-*")
    assert gate.admit(bearer(token), Role.ADMIN, "10.0.0.1", "ana-1").name == "ana"
    assert denied(gate, bearer(token), Role.ADMIN, "ben-1").code == "foreign_job"
    assert denied(gate, bearer(token), Role.READ).code == "foreign_job"
    joining = add_token(store, PIN, Role.JOIN, "ana-nodes", "ana-*")
    caller = gate.admit(bearer(joining), Role.JOIN, "10.0.0.1")
    caller.check_job("ana-2")
    with pytest.raises(DeniedError, match="is for jobs ana-\\*, and not for Ana-2"):
        caller.check_job("Ana-2")


def test_a_certificate_bounds_node_ids() -> None:
    caller = Caller(None, frozenset({"gpu7"}))
    for node in ("gpu7", "gpu7-2"):
        caller.check_node(node)
    for node in ("gpu77", "gpu8", "x-gpu7"):
        with pytest.raises(DeniedError, match="the client's certificate is for gpu7"):
            caller.check_node(node)


def test_a_certificate_without_a_name_is_for_no_node_and_without_one_asked_for_any_is_let_in() -> None:
    with pytest.raises(DeniedError, match="names no node") as refused:
        Caller(None, frozenset()).check_node("gpu8")
    assert refused.value.code == "foreign_node"
    Caller(None).check_node("gpu8")


def test_failures_of_an_address_are_bounded_and_valid_tokens_are_not(
    store: TokenStore, caplog: pytest.LogCaptureFixture
) -> None:
    now = 0.0
    gate = Gatekeeper(store, BrowserSessions(b"", lambda: now), lambda: now)
    token = add_token(store, PIN, Role.JOIN, "nodes")
    codes = [denied(gate, "").code for _ in range(FAILURES_MAX + 5)]
    assert codes == ["no_token"] * FAILURES_MAX + ["too_many"] * 5
    assert len(caplog.records) == FAILURES_MAX + 1
    assert gate.denied == FAILURES_MAX + 5
    assert gate.admit(bearer(token), Role.JOIN, "10.0.0.1").name == "nodes"
    with pytest.raises(DeniedError, match="a token is wanted here"):
        gate.admit("", Role.JOIN, "10.0.0.2")
    now = WINDOW_S + 1.0
    assert denied(gate, "").code == "no_token"
    assert token.secret not in caplog.text


def test_an_address_of_ipv6_counts_by_its_network(gate: Gatekeeper) -> None:
    for number in range(FAILURES_MAX):
        with pytest.raises(DeniedError):
            gate.admit("", Role.JOIN, f"2001:db8::{number:x}")
    with pytest.raises(DeniedError, match="too many requests"):
        gate.admit("", Role.JOIN, "2001:db8::ffff:1")
    with pytest.raises(DeniedError, match="a token is wanted here"):
        gate.admit("", Role.JOIN, "2001:db8:0:1::1")
