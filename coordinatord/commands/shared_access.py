"""Synchronizes key and tokens among coordinators that share a store, so that nodes can follow any of them.

Each coordinator has the key in its own files. The store has the hash of the key, which reveals a coordinator with
another key before a node connects to it. The store also has the hashes of the tokens: each coordinator adds its own,
and copies those of the others. So a token that is made or revoked on one host is made or revoked on all.
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
from coordinatord.security.token_store import KnownToken, TokenStoreError, pack_tokens, unpack_tokens
from coordinatord.store.etcd.gateway import Gateway
from coordinatord.store.etcd.keys import Keys
from coordinatord.store.etcd.requests import KeyValue, created_at, get, key_values, put, responses, txn, written_at
from coordinatord.store.interface import StoreError

log = logging.getLogger(__name__)

POLL_EVERY_S = 1.0
"""How often each coordinator polls the changes of the others, as often as those of its own files."""

IN_THE_CLEAR = "insecure"
"""Stored instead of the key's hash with `--insecure`."""

OF_AN_AUTHORITY = "certificate"
"""Stored instead of the key's hash with certificates of an organisation, whose keys may differ."""

_MEANINGS = {IN_THE_CLEAR: "let everybody in (--insecure)", OF_AN_AUTHORITY: "show certificates of --tls-cert"}


class OtherKeyError(OperationalError):
    """The other coordinators have another key than this one: nodes would not follow it."""

    exit_code = ExitCode.USAGE


class SharedAccess:
    """Synchronizes this coordinator's key and tokens with the others."""

    def __init__(self, gateway: Gateway, keys: Keys, security: Security | None) -> None:
        """Begin without reading the store. `security` is None with `--insecure`."""
        self._gateway = gateway
        self._keys = keys
        self._security = security
        self._known_by = _known_by(security)
        """The key's hash at the start: reloading another key does not end a running coordinator."""
        self._seen: tuple[int, tuple[KnownToken, ...]] | None = None
        """The store's revision and our own tokens when they last agreed."""
        self._problem = ""
        """Why the last synchronization failed."""

    async def watch(self) -> None:
        """Synchronize at an interval. Raises `OtherKeyError`."""
        while True:
            with suppress(StoreError):  # the tasks that lead or stand by log errors of etcd
                await self.synchronize()
            await asyncio.sleep(POLL_EVERY_S)

    async def lead(self, fence: int) -> None:
        """Write the hash of the key as the leader, if there is none. Raises `OtherKeyError` and `StoreError`.

        `fence` is the revision of our leader key.
        """
        first = [created_at(self._keys.leader, fence), written_at(self._keys.pin, 0)]
        await self._gateway.call("/v3/kv/txn", txn(first, [put(self._keys.pin, self._known_by.encode())]))
        await self.synchronize()

    async def synchronize(self) -> None:
        """Compare the keys, and synchronize the tokens. Raises `OtherKeyError` and `StoreError`."""
        answer = await self._gateway.call("/v3/kv/txn", txn([], [get(self._keys.pin), get(self._keys.tokens)]))
        pins, tokens = (key_values(response) for response in responses(answer))
        for pin in pins:
            self._compare(pin.value.decode(errors="replace"))
        if self._security is None:
            return
        try:
            await self._share(self._security, tokens[0] if tokens else None)
        except (TokenStoreError, PrivateFileError) as error:
            if self._problem != str(error):
                log.error("tokens are not shared: %s", error, extra=fields("tokens_not_shared"))  # noqa: TRY400
            self._problem = str(error)
        else:
            self._problem = ""

    def _compare(self, known_by: str) -> None:
        if known_by == self._known_by:
            return
        theirs, ours = (_MEANINGS.get(key, f"have the key {key[:8]}...") for key in (known_by, self._known_by))
        raise OtherKeyError(
            f"the coordinators at {self._keys.prefix}/ {theirs}, and this one would {ours}: copy the folder security of"
            " one of their state directories to its own, and give it the same flags. To change the key of all, stop all"
            f" of them, and then: etcdctl del {self._keys.pin.decode()}"
        )

    async def _share(self, security: Security, pair: KeyValue | None) -> None:
        """Adopt the tokens of the others, and add ours. If another coordinator writes meanwhile, the next poll retries.

        Raises `TokenStoreError`, `PrivateFileError` and `StoreError`.
        """
        security.refresh()
        revision = 0 if pair is None else pair.mod_revision
        if self._seen == (revision, security.tokens):
            return
        shared = () if pair is None else self._unpacked(pair.value)
        security.adopt(shared)
        if security.tokens == shared:
            self._seen = revision, shared
            return
        value = pack_tokens(security.tokens).encode()
        unchanged = [written_at(self._keys.tokens, revision)]
        await self._gateway.call("/v3/kv/txn", txn(unchanged, [put(self._keys.tokens, value)]))

    def _unpacked(self, value: bytes) -> tuple[KnownToken, ...]:
        try:
            return unpack_tokens(value.decode())
        except (ValueError, RecursionError, SchemaError) as error:
            key = self._keys.tokens.decode()
            raise TokenStoreError(
                f"key {key} in etcd is damaged ({error}): etcdctl del {key}, and the coordinators write it anew"
            ) from error


def _known_by(security: Security | None) -> str:
    if security is None:
        return IN_THE_CLEAR
    return OF_AN_AUTHORITY if security.shows_given else security.pin
