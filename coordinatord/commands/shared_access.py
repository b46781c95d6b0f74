"""What coordinators that share a store must have in common: the key that nodes know them by, and the tokens.

The key itself is only in the files of each coordinator. Its hash is in the store, so that a coordinator with another
key is found before a node comes to it. The hashes of the tokens are there as well: each coordinator adds its own, and
takes over those of the others. So a token that is made or revoked on one host is made or revoked on all.
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

LOOK_EVERY_S = 1.0
"""How often each coordinator looks for what the others have changed: as often as for changes of its own files."""

IN_THE_CLEAR = "insecure"
"""Stored in place of the key's hash where everybody is let in."""

OF_AN_AUTHORITY = "certificate"
"""Stored in place of the key's hash where coordinators show certificates of an organisation, whose keys may differ."""

_MEANINGS = {IN_THE_CLEAR: "let everybody in (--insecure)", OF_AN_AUTHORITY: "show certificates of --tls-cert"}


class OtherKeyError(OperationalError):
    """The other coordinators are known by another key than this one: nodes would not follow it."""

    exit_code = ExitCode.USAGE


class SharedAccess:
    """Shares key and tokens with the other coordinators, on behalf of this one."""

    def __init__(self, gateway: Gateway, keys: Keys, security: Security | None) -> None:
        """Begin without a look at the store. `security` is None where everybody is let in."""
        self._gateway = gateway
        self._keys = keys
        self._security = security
        self._known_by = _known_by(security)
        """The key's hash at the start: a key that SIGHUP brings later does not end a coordinator that serves."""
        self._seen: tuple[int, tuple[KnownToken, ...]] | None = None
        """The revision and our own tokens at the last look at which both agreed."""
        self._problem = ""
        """Why the tokens could not be shared at the last look."""

    async def watch(self) -> None:
        """Look again and again. Raises `OtherKeyError`."""
        while True:
            with suppress(StoreError):  # the code that leads or stands by logs errors of etcd
                await self.look()
            await asyncio.sleep(LOOK_EVERY_S)

    async def lead(self, fence: int) -> None:
        """Write as the leader the hash of the key, if there is none yet. Raises `OtherKeyError` and `StoreError`.

        `fence` is the revision at which this coordinator began to lead.
        """
        first = [created_at(self._keys.leader, fence), written_at(self._keys.pin, 0)]
        await self._gateway.call("/v3/kv/txn", txn(first, [put(self._keys.pin, self._known_by.encode())]))
        await self.look()

    async def look(self) -> None:
        """Compare the keys, and share the tokens. Raises `OtherKeyError` and `StoreError`."""
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
        """Take over the tokens of the others, and add those of this one. If another one has just written, do it later.

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
