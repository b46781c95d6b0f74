"""Builds requests to etcd's JSON gateway, and parses its answers.

A *revision* is a number of the cluster that every write raises. The fields are those of etcd's `rpc.proto`. In JSON,
keys and values are in base64, and 64-bit numbers are texts. The gateway leaves out fields with their default value.
"""

from __future__ import annotations

from base64 import b64encode
from typing import Any

from msgspec import Struct, convert, field

from coordinatord.protocol.schema import ERRORS
from coordinatord.store.interface import UnreadableStoreError

Body = dict[str, Any]


class KeyValue(Struct, frozen=True):
    """A key as it is stored."""

    key: bytes
    value: bytes = b""
    create_revision: int = 0
    """The revision of the cluster at which the key was created."""
    mod_revision: int = 0
    """The revision of the cluster at the last write of the key."""
    lease: int = 0
    """The id of the lease with which it expires; 0 for none."""


class Header(Struct, frozen=True):
    """The part that is common to all answers."""

    revision: int = 0
    """The revision of the cluster."""


class KeyEvent(Struct, frozen=True):
    """A change of a watched key."""

    kv: KeyValue
    type: str = "PUT"

    @property
    def present(self) -> KeyValue | None:
        """The key after the change; None after a deletion."""
        return None if self.type == "DELETE" else self.kv


class EtcdAnswer(Struct, frozen=True):
    """An answer to any request; each kind of answer has some of these fields."""

    header: Header = Header()
    kvs: tuple[KeyValue, ...] = ()
    """The keys that were read."""
    more: bool = False
    """Whether there are more keys than were asked for."""
    succeeded: bool = False
    """Whether all demands of a transaction held."""
    responses: tuple[dict[str, EtcdAnswer], ...] = ()
    """The answers to the operations of a transaction, each in a dict by its kind; `results` is the plain list."""
    id: int = field(default=0, name="ID")
    """The id of a lease."""
    ttl: int = field(default=0, name="TTL")
    """How many seconds a lease lasts; not positive for one that is over."""
    token: str = ""
    """The token of a user who has logged in."""
    result: EtcdAnswer | None = None
    """The answer in a line of a stream of answers."""
    canceled: bool = False
    """Whether the stream has ended."""
    events: tuple[KeyEvent, ...] = ()
    """The changes of a watched key."""

    @property
    def first(self) -> KeyValue | None:
        """The first key that was read; None if there is none."""
        return next(iter(self.kvs), None)

    @property
    def results(self) -> list[EtcdAnswer]:
        """The answers to the operations of a transaction."""
        return [answer for response in self.responses for answer in response.values()]


def parsed(data: Any) -> EtcdAnswer:
    """Parse an answer of the gateway. Raises `UnreadableStoreError`."""
    try:
        return convert(data, EtcdAnswer, strict=False)
    except ERRORS as error:
        raise UnreadableStoreError("the answer is not that of an etcd: see --store") from error


def text_of(data: bytes) -> str:
    """Encode bytes in base64."""
    return b64encode(data).decode()


def after(prefix: bytes) -> bytes:
    """Return the first key after all keys with a prefix, which must not end in 0xff."""
    return prefix[:-1] + bytes([prefix[-1] + 1])


def put(key: bytes, value: bytes, lease: int = 0) -> Body:
    """Return an operation that writes a key; with a `lease`, the key expires with it."""
    return {"request_put": {"key": text_of(key), "value": text_of(value), "lease": str(lease)}}


def delete(key: bytes, end: bytes | None = None) -> Body:
    """Return an operation that deletes a key, or the keys from it up to `end`."""
    up_to = {} if end is None else {"range_end": text_of(end)}
    return {"request_delete_range": {"key": text_of(key), **up_to}}


def get(key: bytes, *, keys_only: bool = False) -> Body:
    """Return an operation that reads a key."""
    return {"request_range": {"key": text_of(key), "keys_only": keys_only}}


def created_at(key: bytes, revision: int) -> Body:
    """Return the demand that a key was created at this revision; 0 for a missing key."""
    return {"key": text_of(key), "target": "CREATE", "result": "EQUAL", "create_revision": str(revision)}


def written_at(key: bytes, revision: int) -> Body:
    """Return the demand that a key was last written at this revision; 0 for a missing key."""
    return {"key": text_of(key), "target": "MOD", "result": "EQUAL", "mod_revision": str(revision)}


def txn(compare: list[Body], success: list[Body], failure: list[Body] | None = None) -> Body:
    """Return a transaction that runs all of `success` if every demand holds, else all of `failure`."""
    return {"compare": compare, "success": success, "failure": failure or []}
