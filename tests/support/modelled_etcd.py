"""An etcd in memory, which carries out each request at once."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping
from typing import Any

from coordinatord.store.etcd.keys import Keys
from coordinatord.store.etcd.refusals import EtcdRefusedError
from coordinatord.store.etcd.requests import KeyValue, parsed, text_of

KEYS = Keys("model")


class ModelledEtcd:
    """What the requests of the gateway do to keys, revisions and leases."""

    def __init__(self) -> None:
        self.revision = 1
        self._kvs: dict[bytes, dict[str, Any]] = {}
        self._leases = 0
        self._alive: set[str] = {"0"}
        """The leases that are not over, and the word for none."""

    def do(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Carry out a request. Raises `EtcdRefusedError`."""
        if path == "/v3/kv/txn":
            return self._txn(body)
        if path == "/v3/kv/range":
            return self._range(body)
        if path == "/v3/lease/grant":
            self._leases += 1
            self._alive.add(str(self._leases))
            return {"ID": str(self._leases), "TTL": body["TTL"]}
        assert path == "/v3/lease/revoke", path
        self.expire(body["ID"])
        return {}

    def expire(self, lease: str) -> None:
        """End a lease, and the keys that go with it."""
        self._alive.discard(lease)
        gone = [key for key, found in self._kvs.items() if found["lease"] == lease]
        self.revision += bool(gone)
        for key in gone:
            del self._kvs[key]

    @property
    def leader(self) -> KeyValue | None:
        """The leader key; None if there is none."""
        return parsed(self._range({"key": text_of(KEYS.leader)})).first

    def expire_leader(self) -> None:
        """End the lease of whoever leads."""
        if KEYS.leader in self._kvs:
            self.expire(self._kvs[KEYS.leader]["lease"])

    def _txn(self, body: Mapping[str, Any]) -> dict[str, Any]:
        holds = all(self._holds(demand) for demand in body["compare"])
        ops = body["success" if holds else "failure"]
        if not {op["request_put"]["lease"] for op in ops if "request_put" in op} <= self._alive:
            raise EtcdRefusedError(5, "requested lease not found")
        self.revision += any("request_range" not in op for op in ops)
        return {"succeeded": holds, "responses": [{"response": self._op(op)} for op in ops], **self._header}

    def _holds(self, demand: Mapping[str, Any]) -> bool:
        found = self._kvs.get(b64decode(demand["key"]), {"create_revision": "0", "mod_revision": "0"})
        field = "create_revision" if demand["target"] == "CREATE" else "mod_revision"
        return bool(found[field] == demand[field])

    def _op(self, op: Mapping[str, Any]) -> dict[str, Any]:
        [(kind, body)] = op.items()
        if kind == "request_range":
            return self._range(body)
        key = b64decode(body["key"])
        if kind == "request_put":
            now = str(self.revision)
            created = self._kvs[key]["create_revision"] if key in self._kvs else now
            found = {"value": body["value"], "lease": body["lease"], "create_revision": created, "mod_revision": now}
            self._kvs[key] = found
        else:
            for gone in self._keys(body):
                del self._kvs[gone]
        return {}

    def _range(self, body: Mapping[str, Any]) -> dict[str, Any]:
        kvs = [{"key": text_of(key), **self._kvs[key]} for key in self._keys(body)]
        return {"kvs": kvs, **self._header}

    def _keys(self, body: Mapping[str, Any]) -> list[bytes]:
        first = b64decode(body["key"])
        if "range_end" not in body:
            return [first] if first in self._kvs else []
        return sorted(key for key in self._kvs if first <= key < b64decode(body["range_end"]))

    @property
    def _header(self) -> dict[str, Any]:
        return {"header": {"revision": str(self.revision)}}


def changes_history(body: Mapping[str, Any]) -> bool:
    """Whether a transaction, if its demands hold, makes a commit or begins a generation."""
    keys = {op["request_put"]["key"] for op in body["success"] if "request_put" in op}
    return bool(keys & {text_of(KEYS.head), text_of(KEYS.about)})
