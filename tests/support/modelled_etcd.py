"""An etcd in memory, and coordinators that take turns at each of its requests: any request may be lost, or come late.

Nothing here waits: whoever sends a request stands still until `World.step` lets it go on.
"""

from __future__ import annotations

import random
from base64 import b64decode
from collections.abc import Callable, Coroutine, Generator, Mapping
from contextlib import suppress
from enum import StrEnum
from typing import Any

from coordinatord.store.etcd.gateway import Gateway
from coordinatord.store.etcd.history import History
from coordinatord.store.etcd.keys import Keys
from coordinatord.store.etcd.leadership import Candidate
from coordinatord.store.etcd.refusals import EtcdAwayError, EtcdRefusedError
from coordinatord.store.etcd.requests import KeyValue, key_values, text_of
from coordinatord.store.etcd.roster import Coordinatord
from coordinatord.store.interface import LeadershipLostError, NothingStoredError, StoreError
from coordinatord.store.row_codec import Row

KEYS = Keys("model")


class Fate(StrEnum):
    """What becomes of a request."""

    DONE = "it is done and answered"
    UNSENT = "it never arrives"
    UNANSWERED = "it is done, and the answer is lost"
    LATE = "it is done later, when nobody waits for it any more"


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
        return next(iter(key_values(self._range({"key": text_of(KEYS.leader)}))), None)

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


class _Turn:
    """What a coroutine awaits to stand still; it is given the fate of its request."""

    def __await__(self) -> Generator[None, Fate, Fate]:
        return (yield)


class ModelledGateway(Gateway):
    """The requests of one coordinator."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._name = name

    async def call(self, path: str, body: Mapping[str, Any], try_within_s: float | None = None) -> Any:
        """Wait for a turn, and do the request as its fate is."""
        del try_within_s
        fate = await _Turn()
        if fate is Fate.LATE:
            self._world.late.append(lambda: self._do_late(path, body))
        if fate in {Fate.UNSENT, Fate.LATE}:
            raise EtcdAwayError("no answer")
        answer = self._do(path, body)
        if fate is Fate.UNANSWERED:
            raise EtcdAwayError("no answer")
        return answer

    def _do_late(self, path: str, body: Mapping[str, Any]) -> None:
        with suppress(EtcdRefusedError):
            self._do(path, body)

    def _do(self, path: str, body: Mapping[str, Any]) -> Any:
        answer = self._world.etcd.do(path, body)
        if path == "/v3/kv/txn" and answer["succeeded"] and changes_history(body):
            leader = self._world.etcd.leader
            leads = leader is not None and Coordinatord.unpack(leader).name == self._name
            assert leads, f"{self._name} changes the history, and does not lead"
        return answer


class World:
    """Two coordinators at one namespace, and the invariants of the history that they show."""

    def __init__(self, seed: int) -> None:
        self.etcd = ModelledEtcd()
        self.late: list[Callable[[], object]] = []
        self.shown: dict[int, Row] = {}
        """The rows that a client may have seen, by number."""
        self.forgotten: set[int] = set()
        """The numbers of the rows that a durable commit has dropped."""
        self._tried: dict[Row, list[int]] = {}
        """The rows that each commit that was ever tried drops, by the row that it adds."""
        self.takeovers = 0
        self._chance = random.Random(seed)  # noqa: S311 - repeatable on purpose
        self._lives = [self._begin(name) for name in ("h1", "h2")]

    def run(self, steps: int) -> None:
        """Let so many requests be sent. Raises `AssertionError` if an invariant is broken."""
        for _ in range(steps):
            self._step()
        for life in self._lives:
            life.close()

    def _step(self) -> None:
        chance = self._chance.random()
        if chance < 0.03:
            self.etcd.expire_leader()
        elif chance < 0.1 and self.late:
            self.late.pop(self._chance.randrange(len(self.late)))()
        weights = {Fate.DONE: 85, Fate.UNSENT: 5, Fate.UNANSWERED: 6, Fate.LATE: 4}
        [fate] = self._chance.choices([*weights], [*weights.values()])
        self._chance.choice(self._lives).send(fate)

    def _begin(self, name: str) -> Coroutine[None, Fate, None]:
        life = self._live(name)
        life.send(None)  # up to its first request
        return life

    async def _live(self, name: str) -> None:
        """Lead whenever that is possible, as `commands/turns_to_lead` does it."""
        while True:
            gateway = ModelledGateway(self, name)
            candidate = Candidate(gateway, KEYS, Coordinatord(name, f"{name}:1", secure=False, since=0.0), 5.0)
            try:
                await candidate.win_at_once()
                await self._lead(name, History(gateway, KEYS, candidate.fence))
            except (LeadershipLostError, StoreError):
                continue

    async def _lead(self, name: str, history: History) -> None:
        try:
            found = await history.read()
        except NothingStoredError:
            await history.begin()
            found = await history.read()
        await history.sweep()
        self.takeovers += 1
        rows = {row[0]: row for row in found.rows}
        self._judge(rows)
        last = max([*rows, *self.forgotten], default=0)
        while True:
            last += 1
            row: Row = (last, 0.0, "job", name, "JobStopAsked", None, None, str(self._chance.random()))
            dropped = self._tried[row] = [min(rows)] if len(rows) > 4 else []
            await self._commit(history, row, dropped)
            rows = {**{seq: kept for seq, kept in rows.items() if seq not in dropped}, last: row}
            assert self.shown.setdefault(last, row) == row, "two coordinators have shown different records"
            self.forgotten.update(dropped)
            merger = history.log.next_merger()
            if merger is not None:
                await history.merge(merger, [rows[seq] for seq in merger.rows])

    async def _commit(self, history: History, row: Row, dropped: list[int]) -> None:
        """Try the same commit until it is durable, as the driver does."""
        while True:
            try:
                await history.commit([row], dropped)
            except EtcdAwayError:
                continue
            return

    def _judge(self, rows: Mapping[int, Row]) -> None:
        """Check that a new leader has every row that was shown, and that was not forgotten."""
        for row in rows.values():  # also of commits whose answer was lost
            self.forgotten.update(self._tried[row])
        for seq, row in self.shown.items():
            if seq not in self.forgotten:
                assert rows.get(seq) == row, f"record {seq} was shown, and is {rows.get(seq)} now"
