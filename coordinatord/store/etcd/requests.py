"""Builds requests to etcd's JSON gateway, and parses its answers.

A *revision* is a number of the cluster that every write raises. The fields are those of etcd's `rpc.proto`. In JSON,
keys and values are in base64, and 64-bit numbers are texts. The gateway leaves out fields with their default value.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Any

from msgspec import Struct

from coordinatord.store.interface import UnreadableStoreError

Body = dict[str, Any]


class KeyValue(Struct, frozen=True):
    """A key as it is stored."""

    key: bytes
    value: bytes
    create_revision: int
    """The revision of the cluster at which the key was created."""
    mod_revision: int
    """The revision of the cluster at the last write of the key."""
    lease: int = 0
    """The id of the lease with which it expires; 0 for none."""


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


def number(data: Any, name: str) -> int:
    """Return a number in an answer; 0 if it is missing. Raises `UnreadableStoreError`."""
    try:
        return int(data.get(name, 0))
    except (AttributeError, TypeError, ValueError) as error:
        raise _strange() from error


def revision_of(answer: Any) -> int:
    """Return the revision of the cluster in an answer. Raises `UnreadableStoreError`."""
    return number(_part(answer, "header"), "revision")


def key_values(answer: Any) -> list[KeyValue]:
    """Return the keys in the answer to a read. Raises `UnreadableStoreError`."""
    return [_key_value(pair) for pair in _part(answer, "kvs", list)]


def responses(answer: Any) -> list[Body]:
    """Return the answers to the operations of a transaction, each without its kind. Raises `UnreadableStoreError`."""
    found = _part(answer, "responses", list)
    try:
        return [next(iter(response.values())) for response in found]
    except (AttributeError, StopIteration) as error:
        raise _strange() from error


def _key_value(data: Any) -> KeyValue:
    try:
        key, value = b64decode(data["key"], validate=True), b64decode(data.get("value", ""), validate=True)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise _strange() from error
    return KeyValue(key, value, number(data, "create_revision"), number(data, "mod_revision"), number(data, "lease"))


def _part(answer: Any, name: str, kind: type = dict) -> Any:
    found = answer.get(name, kind()) if isinstance(answer, dict) else None
    if not isinstance(found, kind):
        raise _strange()
    return found


def _strange() -> UnreadableStoreError:
    return UnreadableStoreError("the answer is not that of an etcd: see --store")
