"""Compares the keys of coordinators that share a store, and synchronizes their tokens: nodes connect to any of them.

Each coordinator has the key in its own files. The store has the hash of the key, so that a coordinator with another key
ends before a node connects to it. The store also has the hashes of the tokens: each coordinator adds its own, and
copies those of the others. So a token that is made or revoked on one host is made or revoked on all.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from coordinatord.protocol.errors import OperationalError
from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.protocol.schema import SchemaError
from coordinatord.runtime.logs import fields
from coordinatord.runtime.private_files import PrivateFileError
from coordinatord.security.setup import Security
from coordinatord.security.token_store import KnownToken, TokenStore, TokenStoreError, pack_tokens, unpack_tokens
from coordinatord.store.etcd.gateway import Gateway
from coordinatord.store.etcd.keys import Keys
from coordinatord.store.etcd.requests import KeyValue, created_at, get, put, txn, written_at
from coordinatord.store.interface import StoreError

log = logging.getLogger(__name__)

POLL_EVERY_S = 1.0
"""The seconds between two polls of the store. Each coordinator looks at its own files as often."""

INSECURE = "insecure"
"""Stored instead of the key's hash with `--insecure`."""

GIVEN_CERTIFICATE = "certificate"
"""Stored instead of the key's hash with an organisation's certificates, which may have different keys."""

_MEANINGS = {INSECURE: "let everybody in (--insecure)", GIVEN_CERTIFICATE: "show certificates of --tls-cert"}


class OtherKeyError(OperationalError):
    """The other coordinators have another key than this one, so nodes would reject it."""

    exit_code = ExitCode.USAGE


class SharedAccess:
    """Compares this coordinator's key with that of the others, and synchronizes its tokens with theirs."""

    def __init__(self, gateway: Gateway, keys: Keys, security: Security | None) -> None:
        """Begin without reading the store. `security` is None with `--insecure`."""
        self._gateway = gateway
        self._keys = keys
        self._security = security
        self._key_id = _key_id(security)
        """The hash of the key at the start, or a constant: a reload of another key does not end this coordinator."""
        self._agreed: tuple[int, tuple[KnownToken, ...]] | None = None
        """The revision of the tokens in the store, and our tokens, when both last agreed."""
        self._problem = ""
        """Why the last synchronization failed."""

    async def watch(self) -> None:
        """Synchronize at an interval. Raises `OtherKeyError`."""
        while True:
            with suppress(StoreError):  # other tasks log etcd's errors
                await self.synchronize()
            await asyncio.sleep(POLL_EVERY_S)

    async def publish_key(self, fence: int) -> None:
        """Store the hash of our key if there is none, and synchronize. Raises `OtherKeyError` and `StoreError`.

        `fence` is the revision at which our leader key was created, by which etcd rejects all but the leader.
        """
        demands = [created_at(self._keys.leader, fence), written_at(self._keys.pin, 0)]
        await self._gateway.call("/v3/kv/txn", txn(demands, [put(self._keys.pin, self._key_id.encode())]))
        await self.synchronize()

    async def synchronize(self) -> None:
        """Compare our key with that of the others, make the first tokens for it, and merge the tokens of all.

        Raises `OtherKeyError`, `StoreError`, and the errors of `Security.make_first_tokens`.
        """
        answer = await self._gateway.call("/v3/kv/txn", txn([], [get(self._keys.pin), get(self._keys.tokens)]))
        pin, stored = (result.first for result in answer.results)
        if pin is not None:
            self._check_key(pin.value.decode(errors="replace"))
        if self._security is None:
            return
        if pin is not None:  # all agree on the key, so tokens for it are of use
            self._security.make_first_tokens()
        try:
            await self._merge_tokens(self._security.token_store, stored)
        except (TokenStoreError, PrivateFileError) as error:
            if self._problem != str(error):
                log.error("tokens are not shared: %s", error, extra=fields("tokens_not_shared"))  # noqa: TRY400
            self._problem = str(error)
        else:
            self._problem = ""

    def _check_key(self, key_id: str) -> None:
        if key_id == self._key_id:
            return
        theirs, ours = (_MEANINGS.get(key, f"have the key {key[:8]}...") for key in (key_id, self._key_id))
        raise OtherKeyError(
            f"the coordinators at {self._keys.prefix}/ {theirs}, and this one would {ours}: copy the folder security of"
            " one of their state directories to its own, and give it the same flags. To change the key of all, stop all"
            f" of them, and then: etcdctl del {self._keys.pin.decode()}"
        )

    async def _merge_tokens(self, tokens: TokenStore, stored: KeyValue | None) -> None:
        """Add the stored tokens to ours, and store the result; retry with the next poll if another coordinator wrote.

        Raises `TokenStoreError`, `PrivateFileError` and `StoreError`.
        """
        tokens.try_refresh()
        revision = 0 if stored is None else stored.mod_revision
        if self._agreed == (revision, tokens.tokens):
            return
        shared = () if stored is None else self._unpack(stored.value)
        tokens.adopt(shared)
        if tokens.tokens == shared:
            self._agreed = revision, shared
            return
        value = pack_tokens(tokens.tokens).encode()
        unchanged = [written_at(self._keys.tokens, revision)]
        # Another coordinator may have written first: the next poll shows it.
        await self._gateway.call("/v3/kv/txn", txn(unchanged, [put(self._keys.tokens, value)]))

    def _unpack(self, value: bytes) -> tuple[KnownToken, ...]:
        try:
            return unpack_tokens(value.decode())
        except (ValueError, RecursionError, SchemaError) as error:
            key = self._keys.tokens.decode()
            raise TokenStoreError(
                f"key {key} in etcd is damaged ({error}): etcdctl del {key}, and the coordinators write it anew"
            ) from error


def _key_id(security: Security | None) -> str:
    if security is None:
        return INSECURE
    return GIVEN_CERTIFICATE if security.has_given_certificate else security.pin
